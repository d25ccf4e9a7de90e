"""Detecting work on another stream, by holding the current one up.

    current   |<--- spinning --------------------------->| the call's work -> the right result over the poison
    other                        | poison the output |
    astray          the work  -> the poison over the right result

The call is enqueued on a spinning stream, where its work cannot begin.  Work on another stream does begin, and is done
long before the output is overwritten.  In the end the output is right only if the work waited.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from forge_core.errors import BenchmarkError

POISON = 0xA5
#: The time that work on another stream gets to finish: so long, plus so many times what the call takes.
SETTLE_S = 0.001
SETTLE_FACTOR = 3.0
#: Milliseconds of spinning beyond that, in turn, until one is long enough for the host.
SPINS_MS = (4.0, 40.0, 400.0)
CYCLES_PER_MS = 2_000_000  # at 2 GHz; a slower clock spins longer, which does no harm


def check_stream(
    call: Callable[..., torch.Tensor],
    inputs: tuple[torch.Tensor, ...],
    agree: Callable[[torch.Tensor], str],
    **names: str,
) -> bool:
    """Whether a call was seen to work on the current stream; it cannot be seen if the call synchronizes.

    `call` takes the inputs, on the current CUDA device; it was called before and gave the right result.  `agree` takes
    the result and returns "" or what is wrong with it; `names` are those of the error.

    Raises:
        BenchmarkError: the work landed on another stream.
    """
    device = inputs[0].device
    current, other, gate = torch.cuda.Stream(device), torch.cuda.Stream(device), torch.cuda.Event()
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    call(*inputs)
    torch.cuda.synchronize(device)
    settle_s = SETTLE_S + SETTLE_FACTOR * (time.perf_counter() - began)
    for spin_ms in SPINS_MS:
        with torch.cuda.stream(current):
            torch.cuda._sleep(int((spin_ms + settle_s * 1e3) * CYCLES_PER_MS))
            gate.record(current)
            got = call(*inputs)
        time.sleep(settle_s)
        with torch.cuda.stream(other):
            torch.empty(0, dtype=torch.uint8, device=device).set_(got.untyped_storage()).fill_(POISON)
        other.synchronize()
        covered = not gate.query()
        torch.cuda.synchronize(device)
        if covered:
            problem = agree(got)
            if problem:
                raise BenchmarkError(
                    "a launch landed on another stream than the current one: its result was there while the current "
                    f"stream was still busy, and what was written over it stayed ({problem})",
                    **names,
                )
            return True
        del got
    return False
