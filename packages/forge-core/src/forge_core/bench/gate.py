"""The correctness gate: every contender is checked against the reference before and after timing.

Before a checked call, memory of its output's size is filled with a pattern and freed, so that the allocator reuses it
for the output: an element that is not written shows the pattern, not the last call's right result.  A result that
shares memory with an input is wrong, and so is a call that changes its input.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from forge_core.testing.subject import Subject
from forge_core.testing.tolerances import assert_same_bits

__all__ = ["POISON", "check", "exact", "near", "poison"]

#: The byte that output memory holds before a checked call.
POISON = 0xA5
# Two blocks, for a contender may allocate workspace before its output.
POISONED_BLOCKS = 2
#: Elements that are compared with float64 at once: bounds the memory of the check itself.
PIECE = 2**26


def exact(got: torch.Tensor, want: torch.Tensor) -> str:
    """Compares two tensors bit by bit; returns "" or what differs."""
    try:
        assert_same_bits(got, want)
    except AssertionError as difference:
        return str(difference)
    return ""


def near(
    subject: Subject,
    inputs: tuple[torch.Tensor, ...],
    args: tuple[Any, ...],
    got: torch.Tensor,
    want: torch.Tensor,
    *,
    dim: int = 0,
    result_dim: int = 0,
) -> str:
    """Compares a result with float64 by ``Subject.judge``, piece by piece; returns "" or what is wrong.

    Args:
        subject: the declaration, whose ``floor`` is the derived bound.
        inputs: the tensors of the call.  Those of the first one's rank are cut; others, such as a weight, stay whole.
        args: the further arguments of the call.
        got: the result.
        want: the reference's result, for shape and dtype.
        dim: a dimension of the inputs along which the operator computes nothing, which is cut into pieces.
        result_dim: the same dimension of the result.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"expected {tuple(want.shape)} {want.dtype}, got {tuple(got.shape)} {got.dtype}"
    size = inputs[0].shape[dim]
    step = max(1, PIECE * size // max(1, inputs[0].numel()))
    try:
        with torch.no_grad():
            for start in range(0, size, step):
                length = min(step, size - start)
                parts = [x.detach() for x in inputs]
                parts = [x.narrow(dim, start, length) if x.ndim == inputs[0].ndim else x for x in parts]
                subject.judge(got.narrow(result_dim, start, length), (*parts, *args), {}, f"part from {start}")
    except AssertionError as wrong:
        return str(wrong)
    return ""


def poison(nbytes: int, device: torch.device) -> None:
    """Fills memory of that size with the pattern and frees it, for the allocator to hand out next."""
    blocks = [torch.full((nbytes,), POISON, dtype=torch.uint8, device=device) for _ in range(POISONED_BLOCKS)]
    del blocks


def check(
    calls: Mapping[str, Callable[..., torch.Tensor]],
    *,
    inputs: tuple[torch.Tensor, ...],
    reference: Callable[..., torch.Tensor],
    agree: Callable[[str, tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor], str],
    refuse: Callable[[str, str | Exception], None],
) -> dict[str, float]:
    """Checks every contender on inputs that none has seen.

    Args:
        calls: the contenders by name; each takes the inputs.
        inputs: the inputs.
        reference: takes the inputs, too.
        agree: takes a contender's name, the inputs, its result and the reference's; returns "" or what is wrong.
        refuse: takes the name of a contender that is wrong or raised, and what is wrong or the error.

    Returns:
        Seconds of each correct contender's call, compiling included if it is the first.
    """
    device = inputs[0].device
    want = reference(*inputs)
    pristine = tuple(x.clone() for x in inputs)
    seconds = {}
    for name, call in calls.items():
        poison(want.numel() * want.element_size(), device)
        start = time.perf_counter()
        try:
            got = call(*inputs)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        except Exception as error:  # noqa: BLE001 - whoever refuses it raises it, or puts it into the record
            refuse(name, error)
            continue
        took = time.perf_counter() - start
        problem = agree(name, pristine, got, want)
        if got.numel() and any(got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for x in inputs):
            problem = "the result shares its memory with an input; expected memory of its own"
        for number, (x, before) in enumerate(zip(inputs, pristine, strict=True)):
            if exact(x, before):
                problem = problem or f"input {number} was changed by the call"
                x.detach().copy_(before)
        if problem:
            refuse(name, problem)
        else:
            seconds[name] = took
        del got
    return seconds
