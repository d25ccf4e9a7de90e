"""First calls: what a fresh process pays, with empty caches and with the caches that an earlier process left.

Each contender gets a folder of its own for every cache that it could use (Forge's, torch.compile's, Triton's, the
driver's, and the folder for temporary files, where quack keeps its own).  The first process finds it empty and
compiles; the next one finds what that left.  The medians over several such pairs are kept.  The process is this module,
run as a program: it takes what is asked as JSON, and prints one line of JSON.  It makes the CUDA context before any
clock starts.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from forge_core import dtypes, settings
from forge_core.bench import Case, plan
from forge_core.bench.measure import Context, blank, contender_record, willing_peers
from forge_core.bench.records import CaseRecord, Cold
from forge_core.bench.schema import AUTO, our_name, parse_shape, variant_of
from forge_core.timing import Timing
from forge_core.timing.host import fresh_process

METHOD = "perf_counter in fresh processes, around the first call and its synchronisation; caches empty, then kept"
#: The variables that name folders of caches; quack keeps its cache among the temporary files.
CACHES = ("TMPDIR", "FORGE_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
#: Processes of each kind, for each contender.
PROCESSES = 3
#: Calls once the kernel is in memory.
AGAIN = 50


def measure_cold(planned: plan.PlannedCase, context: Context) -> CaseRecord:
    """The first calls of a case's contenders; their times are those with empty caches.

    Raises:
        BenchmarkError: a process failed, or a peer that was asked for by name cannot run.
    """
    case, options, record = planned.case, context.options, blank(planned, l2="not controlled: first calls")
    names = [our_name(variant) for variant in planned.variants if options.backend == "kernel" or variant == AUTO]
    names += [peer.name for peer in willing_peers(planned, context, record.left_out)]
    same = {"package": planned.bench.package, "operator": case.operator, "layout": case.layout, "seed": options.seed}
    same |= {"shape": case.shape_text, "dtype": case.dtype_text, "device": str(options.device)}
    for name in names:
        asked = {**same, "contender": name, "backend": options.backend if variant_of(name) else None}
        empty, kept = [], []
        for _ in range(options.policy.iterations or PROCESSES):
            with tempfile.TemporaryDirectory(prefix="forge-cold-") as folder:
                caches = {variable: f"{folder}/{variable}" for variable in CACHES}
                Path(caches["TMPDIR"]).mkdir()
                empty.append(start(asked, caches))
                kept.append(start(asked, caches))
        import_s, again_us = (median(first[key] for first in empty + kept) for key in ("import_s", "again_us"))
        empty_s, kept_s = (median(first["first_s"] for first in taken) for taken in (empty, kept))
        figures = round(import_s, 4), round(empty_s, 4), round(kept_s, 4), round(again_us, 2)
        cold = Cold(*figures, processes=len(empty))
        timing = Timing(tuple(first["first_s"] * 1e3 for first in empty), METHOD)
        when = "after the first call"
        record.contenders.append(contender_record(planned, name, timing, options, nbytes=None, when=when, cold=cold))
    return record


def start(asked: dict[str, Any], caches: Mapping[str, str]) -> dict[str, float]:
    """:func:`run` in a fresh process with these environment variables; BenchmarkError if it fails."""
    arguments = ["-m", "forge_core.bench.cold", json.dumps(asked)]
    first: dict[str, float] = json.loads(fresh_process(arguments, "the first call", caches, peer=asked["contender"]))
    return first


def run(asked: dict[str, Any]) -> dict[str, float]:
    """Makes the first call in this process, and further ones; returns ``import_s``, ``first_s`` and ``again_us``.

    ``import_s`` is importing the package for a contender of ours, and for a peer what its `make` does: importing its
    library, or making the compiled function.
    """
    device = torch.device(asked["device"])
    cuda = device.type == "cuda"
    synchronize: Callable[[], None] = partial(torch.cuda.synchronize, device) if cuda else lambda: None
    torch.zeros(1, device=device)
    synchronize()
    began = time.perf_counter()
    importlib.import_module(asked["package"])
    import_s = time.perf_counter() - began
    operator = next(bench.by_name[asked["operator"]] for bench in plan.discover() if bench.package == asked["package"])
    case = Case(asked["operator"], parse_shape(asked["shape"]), dtypes.parse(asked["dtype"]), asked["layout"])
    inputs = operator.random_inputs(case, device, seed=asked["seed"], what=case.name)
    name = asked["contender"]
    peer = operator.peer(name)
    began = time.perf_counter()
    call = operator.call(variant_of(name)) if peer is None else peer.make(case)
    if peer is not None:
        # Ours was imported for its declaration only; a program that calls the peer pays for the peer's.
        import_s = time.perf_counter() - began
    with settings.use_settings(backend=asked["backend"]):
        began = time.perf_counter()
        got = call(*inputs)
        synchronize()
        first_s = time.perf_counter() - began
        problem = operator.wrong(name, inputs, got, operator.reference(*inputs))
        if problem:
            raise RuntimeError(f"wrong result of the first call: {problem}")
        again = []
        for _ in range(AGAIN):
            began = time.perf_counter()
            call(*inputs)
            again.append((time.perf_counter() - began) * 1e6)
            synchronize()
    return {"import_s": import_s, "first_s": first_s, "again_us": median(again)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(json.loads(sys.argv[1]))) + "\n")
