"""What a process pays for its first call; run as a program, once for each contender and state of the caches.

    python -m forge_core.bench.first_call '{"operator": "copy", "shape": "64x64", ...}'

It prints one line of JSON.  The CUDA context is made before any clock starts: every program pays for that, whatever it
calls.  See :mod:`forge_core.bench.cold` for who starts it.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Asked", "First", "run"]

#: Calls once the kernel is in memory, of which the median is taken.
AGAIN = 50

Asked = dict[str, Any]
First = dict[str, float]


def run(asked: Asked) -> First:
    """Makes the first call.

    Args:
        asked: ``package``, ``operator``, ``shape``, ``dtype``, ``layout``, ``contender``, ``device`` and ``backend``,
            all texts; ``seed``.

    Returns:
        ``import_s``, ``first_s`` and ``again_us``.  ``import_s`` is importing the package for a contender of ours, and
        for a peer what its `make` does: importing its library, or making the compiled function.
    """
    device = torch.device(asked["device"])
    if device.type == "cuda":
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    importlib.import_module(asked["package"])
    import_s = time.perf_counter() - began

    # Only now: these import the package, too.
    from forge_core import dtypes, settings
    from forge_core.bench import plan
    from forge_core.bench.declare import Case
    from forge_core.bench.inputs import generator_for
    from forge_core.bench.schema import AUTO, OURS, parse_shape
    from forge_core.timing import quantile

    operator = next(bench.by_name[asked["operator"]] for bench in plan.discover() if bench.package == asked["package"])
    case = Case(asked["operator"], parse_shape(asked["shape"]), dtypes.parse(asked["dtype"]), asked["layout"])
    inputs = operator.inputs(case, device, generator_for(device, seed=asked["seed"], what=case.name))
    name = asked["contender"]
    peer = operator.peer(name)
    variant = AUTO if name == OURS else name.removeprefix(f"{OURS}:")
    began = time.perf_counter()
    call: Callable[..., torch.Tensor] = operator.call(variant) if peer is None else peer.make(case)
    if peer is not None:
        # Ours was imported for its declaration only; a program that calls the peer pays for the peer's.
        import_s = time.perf_counter() - began
    with settings.use_settings(backend=asked["backend"]):
        began = time.perf_counter()
        got = call(*inputs)
        _finish(device)
        first_s = time.perf_counter() - began
        problem = operator.wrong(name, inputs, got, operator.reference(*inputs))
        if problem:
            raise RuntimeError(f"wrong result of the first call: {problem}")
        again = []
        for _ in range(AGAIN):
            began = time.perf_counter()
            call(*inputs)
            again.append((time.perf_counter() - began) * 1e6)
            _finish(device)
    return {"import_s": import_s, "first_s": first_s, "again_us": quantile(again, 0.5)}


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(json.loads(sys.argv[1]))) + "\n")
