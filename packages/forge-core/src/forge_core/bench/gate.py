"""Comparing a result with the reference's: bit by bit, or within the bound of an operator's declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forge_core.testing.subject import Subject
from forge_core.testing.tolerances import assert_same_bits

#: Elements that are compared with float64 at once: bounds the memory of the check itself.
PIECE = 2**26


def exact(got: torch.Tensor, want: torch.Tensor) -> str:
    """Compares two tensors bit by bit; returns "" or what differs."""
    try:
        assert_same_bits(got, want)
    except AssertionError as difference:
        return str(difference)
    return ""


def judged_by(
    subject: Subject, *args: Any, dim: int = 0
) -> Callable[[tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor], str]:
    """The `agree` of an operator or a peer, by :func:`near`; `args` are the further arguments of the call."""
    return lambda inputs, got, want: near(subject, inputs, args, got, want, dim=dim)


def near(
    subject: Subject,
    inputs: tuple[torch.Tensor, ...],
    args: tuple[Any, ...],
    got: torch.Tensor,
    want: torch.Tensor,
    *,
    dim: int = 0,
) -> str:
    """Compares a result with float64 by ``Subject.judge``, piece by piece; returns "" or what is wrong.

    Args:
        subject: the declaration, whose ``floor`` is the derived bound.
        inputs: the tensors of the call.
        args: its further arguments.
        got: the result.
        want: the reference's result, for shape and dtype.
        dim: a dimension across rows, by which inputs of the first one's rank are cut into pieces; it is the result's
            first one.
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
                subject.judge(got.narrow(0, start, length), (*parts, *args), {}, f"part from {start}")
    except AssertionError as wrong:
        return str(wrong)
    return ""
