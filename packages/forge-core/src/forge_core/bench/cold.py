"""First calls: what a fresh process pays, with empty caches and with the caches that an earlier process left.

Each contender gets a folder of its own for every cache that it could use (Forge's, torch.compile's, Triton's, the
driver's, and the folder for temporary files, where quack keeps what it compiled).  The first process finds it empty and
compiles; the next one finds what that left.  This is repeated, each time with another empty folder, and the medians are
kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from forge_core.bench.first_call import Asked, First
from forge_core.bench.measure import Context, Outcome, willing_peers
from forge_core.bench.plan import PlannedCase
from forge_core.bench.records import Cold
from forge_core.bench.schema import AUTO, OURS, our_name
from forge_core.errors import BenchmarkError
from forge_core.timing import Timing, quantile

__all__ = ["METHOD", "PROCESSES", "measure_cold", "start"]

METHOD = "perf_counter in fresh processes, around the first call and its synchronisation; caches empty, then kept"
#: Processes of each kind, for each contender.
PROCESSES = 3
SECONDS = 600


def start(asked: Asked, caches: Mapping[str, str]) -> First:
    """Runs :mod:`forge_core.bench.first_call` in a fresh process.

    Raises:
        BenchmarkError: it failed; the message has its last line of error.
    """
    done = subprocess.run(
        [sys.executable, "-m", "forge_core.bench.first_call", json.dumps(asked)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env={**os.environ, **caches},
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise BenchmarkError(f"the first call failed in a fresh process: {lines[-1]}", peer=asked["contender"])
    first: First = json.loads(done.stdout.strip().splitlines()[-1])
    return first


def _caches(folder: str) -> dict[str, str]:
    temporary = Path(folder, "tmp")
    temporary.mkdir(exist_ok=True)
    return {
        "TMPDIR": str(temporary),
        "FORGE_CACHE_DIR": f"{folder}/forge",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "CUDA_CACHE_PATH": f"{folder}/cuda",
    }


def measure_cold(planned: PlannedCase, context: Context) -> Outcome:
    """The first calls of a case's contenders; ``timings`` holds those with empty caches.

    Raises:
        BenchmarkError: a process failed, or a peer that was asked for by name misses a requirement.
    """
    case, outcome = planned.case, Outcome(l2="not controlled: first calls")
    names = [our_name(variant) for variant in planned.variants if context.backend == "kernel" or variant == AUTO]
    names += [peer.name for peer in willing_peers(planned, context, outcome)]
    for name in names:
        asked = {
            "package": planned.bench.package,
            "operator": case.operator,
            "shape": case.shape_text,
            "dtype": case.dtype_text,
            "layout": case.layout,
            "contender": name,
            "device": str(context.device),
            # A peer is what it is; the backend says what is timed under our name.
            "backend": context.backend if name.split(":")[0] == OURS else None,
            "seed": context.seed,
        }
        empty, kept = [], []
        for _ in range(context.policy.iterations or PROCESSES):
            with tempfile.TemporaryDirectory(prefix="forge-cold-") as folder:
                empty.append(start(asked, _caches(folder)))
                kept.append(start(asked, _caches(folder)))
        outcome.cold[name] = Cold(
            import_s=_median(empty + kept, "import_s", 4),
            empty_s=_median(empty, "first_s", 4),
            kept_s=_median(kept, "first_s", 4),
            again_us=_median(empty + kept, "again_us", 2),
            processes=len(empty),
        )
        outcome.timings[name] = Timing(tuple(first["first_s"] * 1e3 for first in empty), method=METHOD)
    return outcome


def _median(found: list[First], key: str, digits: int) -> float:
    return round(quantile([first[key] for first in found], 0.5), digits)
