"""Argument checks that the fake and the real path of an operator share.

Each check raises a typed error that names operator, argument, what was expected, what came, and the way out.  They
read metadata only, so they work on fake tensors and on symbolic sizes; :func:`no_overlap` alone needs real memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from forge_core.errors import ArgumentError, ArgumentTypeError, DeviceError, DTypeError, LayoutError, ShapeError

__all__ = [
    "is_tensor",
    "like_output",
    "materialised",
    "min_rank",
    "no_overlap",
    "one_of",
    "same_device",
    "strided",
    "supported_dtype",
]


def is_tensor(op: str, argument: str, value: object) -> None:
    """Raises ArgumentTypeError unless ``value`` is a tensor."""
    if not isinstance(value, torch.Tensor):
        raise ArgumentTypeError(
            op=op,
            argument=argument,
            expected="a torch.Tensor",
            got=type(value).__name__,
            hint="Convert it with torch.as_tensor.",
        )


def strided(op: str, argument: str, x: torch.Tensor) -> None:
    """Raises LayoutError for sparse, quantised, nested and other tensors without plain strides."""
    if x.is_quantized:
        raise LayoutError(
            op=op,
            argument=argument,
            expected="a plain strided tensor",
            got=f"a quantised tensor ({x.dtype})",
            hint="Use x.dequantize() or x.int_repr().",
        )
    if x.is_nested or x.layout is not torch.strided:
        got = "a nested tensor" if x.is_nested else f"layout {x.layout}"
        way = "Pad it with x.to_padded_tensor(value)." if x.is_nested else "Use x.to_dense()."
        raise LayoutError(op=op, argument=argument, expected="a plain strided tensor", got=got, hint=way)


def supported_dtype(op: str, argument: str, x: torch.Tensor, supported: Collection[torch.dtype]) -> None:
    """Raises DTypeError unless the tensor's dtype is one of ``supported``."""
    if x.dtype not in supported:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in supported))
        raise DTypeError(
            op=op,
            argument=argument,
            expected=f"one of the dtypes {names}",
            got=str(x.dtype).removeprefix("torch."),
            hint="Convert it with x.to(...) or reinterpret it with x.view(torch.uint8).",
        )


def min_rank(op: str, argument: str, x: torch.Tensor, rank: int) -> None:
    """Raises ShapeError unless the tensor has at least ``rank`` dimensions."""
    if x.ndim < rank:
        raise ShapeError(
            op=op,
            argument=argument,
            expected=f"at least {rank} dimensions",
            got=f"{x.ndim} (shape {tuple(x.shape)})",
            hint="Add dimensions with x.unsqueeze(0).",
        )


def one_of(op: str, argument: str, value: object, choices: Sequence[object]) -> None:
    """Raises ArgumentError unless ``value`` is one of ``choices``."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        listed = ", ".join(repr(choice) for choice in choices)
        raise ArgumentError(op=op, argument=argument, expected=f"one of {listed}", got=repr(value))


def same_device(op: str, argument: str, x: torch.Tensor, device: torch.device) -> None:
    """Raises DeviceError unless the tensor lives on ``device``."""
    if x.device != device:
        raise DeviceError(
            op=op,
            argument=argument,
            expected=f"a tensor on {device}",
            got=f"one on {x.device}",
            hint=f"Move it with {argument}.to('{device}').",
        )


def like_output(op: str, out: torch.Tensor, *, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
    """Checks the metadata of an ``out`` tensor: nothing is resized and nothing is converted.

    Raises:
        ArgumentError: not a tensor.
        ShapeError, DTypeError, DeviceError: not what the operator would have returned.
        LayoutError: not strided, or several indices share one element (an expanded tensor).
    """
    is_tensor(op, "out", out)
    strided(op, "out", out)
    same_device(op, "out", out, device)
    if out.dtype != dtype:
        raise DTypeError(
            op=op,
            argument="out",
            expected=f"dtype {str(dtype).removeprefix('torch.')}",
            got=str(out.dtype).removeprefix("torch."),
            hint="An out tensor is written as it is; nothing is converted.",
        )
    if tuple(out.shape) != tuple(shape):
        raise ShapeError(
            op=op,
            argument="out",
            expected=f"shape {tuple(shape)}",
            got=f"{tuple(out.shape)}",
            hint="An out tensor is not resized; allocate it with this shape.",
        )
    materialised(op, "out", out)
    if _shares_elements(out):
        raise LayoutError(
            op=op,
            argument="out",
            expected="a tensor with one memory location for each element",
            got=f"strides {tuple(out.stride())} for shape {tuple(out.shape)}",
            hint="Pass out.contiguous(), or allocate a new tensor.",
        )


def materialised(op: str, argument: str, x: torch.Tensor) -> None:
    """Raises LayoutError for a lazily conjugated or negated view, whose memory does not hold its values."""
    if x.is_conj() or x.is_neg():
        raise LayoutError(
            op=op,
            argument=argument,
            expected="a tensor whose memory holds its values",
            got="a lazily conjugated or negated view",
            hint=f"Pass {argument}.resolve_conj().resolve_neg().",
        )


def _shares_elements(x: torch.Tensor) -> bool:
    """Whether two indices of ``x`` can mean one memory location.

    Sorted by stride, each dimension must step past all that the smaller ones reach.  That is exact for the views
    that slicing, permuting and expanding make; exotic ``as_strided`` layouts that interleave are refused as well.
    """
    if x.numel() == 0:
        return False
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size <= 1:
            continue
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _byte_range(x: torch.Tensor) -> tuple[int, int]:
    """First and one past the last byte that ``x`` can touch."""
    start = x.data_ptr()
    last = sum(stride * (size - 1) for stride, size in zip(x.stride(), x.shape, strict=True))
    return start, start + (last + 1) * x.element_size()


def no_overlap(op: str, out: torch.Tensor, argument: str, x: torch.Tensor) -> None:
    """Raises LayoutError when ``out`` and an input can share memory.

    The spans from first to last element are compared, so two views that interleave inside one span are refused too:
    telling them apart is as hard as solving a Diophantine equation, and a wrong "no" would corrupt the result.
    """
    if out.numel() == 0 or x.numel() == 0:
        return
    out_start, out_end = _byte_range(out)
    x_start, x_end = _byte_range(x)
    if out_start < x_end and x_start < out_end:
        raise LayoutError(
            op=op,
            argument="out",
            expected=f"memory apart from that of '{argument}'",
            got=f"{min(out_end, x_end) - max(out_start, x_start)} bytes within the span of both",
            hint=f"Allocate a new out tensor, or pass {argument}.clone().",
        )
