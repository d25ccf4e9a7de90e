"""What finding a kernel again costs the host, beside a plain dict; needs no GPU.

    python tools/cache/lookup.py [--out FILE]

The kernel is found by its builder, as `builder(config, arch=...)`; the dicts are what somebody would write instead of
it: one with the configuration and the architecture as its key, and one with the configuration's identity.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forge_core.cache import CompileCached, Compiled


@dataclass(frozen=True)
class Config:
    """As large as a real one."""

    itemsize: int = 2
    row_chunks: int = 16
    col_chunks: int = 16
    src_width: int = 16
    dst_width: int = 16
    batch_rank: int = 0


class _NoCompiler:
    def compile(self, build: Any, config: Any, key: Any, *, keep: bool = False) -> Compiled:
        return Compiled(launch=print, key=key, seconds=0.0)


def _nanoseconds(call: Callable[[], Any], count: int = 200_000, repeats: int = 11) -> dict[str, float]:
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(count):
            call()
        samples.append((time.perf_counter() - start) / count * 1e9)
    return {"median_ns": round(statistics.median(samples), 1), "least_ns": round(min(samples), 1)}


def main() -> int:
    """Measures, prints, and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    def build(config: Config) -> Any:
        raise AssertionError("nothing is compiled here")

    builder: CompileCached[Config] = CompileCached(build, compiler=_NoCompiler())  # type: ignore[arg-type]
    config = Config()
    kernel = builder(config, arch="sm_90a")
    by_value, by_identity = {(config, "sm_90a"): kernel}, {id(config): kernel}
    told = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "an empty call": _nanoseconds(lambda: None),
        "dict[config, arch]": _nanoseconds(lambda: by_value[config, "sm_90a"]),
        "dict[id(config)]": _nanoseconds(lambda: by_identity[id(config)]),
        "builder(config, arch=...)": _nanoseconds(lambda: builder(config, arch="sm_90a")),
        "builder(an equal config, arch=...)": _nanoseconds(lambda: builder(replace(config), arch="sm_90a"), 2_000),
    }
    print(json.dumps(told, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
