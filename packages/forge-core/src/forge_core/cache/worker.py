"""A process that compiles kernels for another one: ``python -m forge_core.cache.worker``.

It reads one JSON line for each kernel and answers with one.  A kernel is named by its builder's import path and its
tagged configuration, so nothing is pickled, and nothing of the parent's main program is run again.  It sees no GPU.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from forge_core.cache.cached import builder_at
from forge_core.cache.key import untag
from forge_core.cache.store import Store
from forge_core.settings import use_settings

__all__ = ["main"]


def _compile(told: dict[str, Any]) -> dict[str, Any]:
    start = time.perf_counter()
    store = Store(Path(told["store"]), max_bytes=told["max_bytes"])
    with use_settings(debug=told["debug"]):
        # Imported before its key is made, so that a change of the sources in between is seen.
        builder = builder_at(told["builder"])._imported()
        config = untag(told["config"])
        entry, compiled = builder.ensure(config, arch=told["arch"], store=store)
    return {
        "digest": entry.key.digest,
        "compiled": compiled,
        "seconds": entry.seconds,
        "bytes": entry.bytes,
        "wall_s": round(time.perf_counter() - start, 4),
    }


def _serve(requests: TextIO, answers: TextIO) -> None:
    for line in requests:
        try:
            answer = _compile(json.loads(line))
        except Exception as error:  # noqa: BLE001 - it crosses to the parent as text, which reports it by kernel
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> int:
    """Serves until the parent closes its end."""
    # What kernels or libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _serve(sys.stdin, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
