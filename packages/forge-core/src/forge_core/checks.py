"""Argument checks that the fake and the real path of an operator share.

Each raises a typed error (see :class:`forge_core.errors.ArgumentError`) and reads metadata only, so it works on fake
tensors and symbolic sizes; :func:`no_overlap` alone needs real memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from forge_core.dtypes import name_of
from forge_core.errors import ArgumentError, ArgumentTypeError, DeviceError, DTypeError, LayoutError, ShapeError


def is_tensor(op: str, argument: str, value: object) -> None:
    """Raises ArgumentTypeError unless ``value`` is a tensor."""
    if not isinstance(value, torch.Tensor):
        got = type(value).__name__
        hint = "" if value is None or isinstance(value, (bool, str)) else "Convert it with torch.as_tensor."
        raise ArgumentTypeError(op, argument, "a torch.Tensor", got, hint)


def strided(op: str, argument: str, x: torch.Tensor) -> None:
    """Raises LayoutError for sparse, quantised, nested and other tensors without plain strides."""
    if x.is_quantized:
        got, hint = f"a quantised tensor ({x.dtype})", "Use x.dequantize() or x.int_repr()."
    elif x.is_nested:
        got, hint = "a nested tensor", "Pad it with x.to_padded_tensor(value)."
    elif x.layout is not torch.strided:
        got, hint = f"layout {x.layout}", "Use x.to_dense()."
    else:
        return
    raise LayoutError(op, argument, "a plain strided tensor", got, hint)


def supported_dtype(op: str, argument: str, x: torch.Tensor, supported: Collection[torch.dtype]) -> None:
    """Raises DTypeError unless the tensor's dtype is one of ``supported``."""
    if x.dtype not in supported:
        expected = f"one of the dtypes {', '.join(sorted(map(name_of, supported)))}"
        raise DTypeError(op, argument, expected, name_of(x.dtype), f"Convert it with {argument}.to(...).")


def operand(op: str, argument: str, x: torch.Tensor, dtypes: Collection[torch.dtype]) -> None:
    """Raises as :func:`is_tensor`, :func:`strided` and :func:`supported_dtype` do."""
    is_tensor(op, argument, x)
    strided(op, argument, x)
    supported_dtype(op, argument, x, dtypes)


def min_rank(op: str, argument: str, x: torch.Tensor, rank: int) -> None:
    """Raises ShapeError unless the tensor has at least ``rank`` dimensions."""
    if x.ndim < rank:
        got, hint = f"{x.ndim} (shape {tuple(x.shape)})", "Add dimensions with x.unsqueeze(0)."
        raise ShapeError(op, argument, f"at least {rank} dimensions", got, hint)


def one_of(op: str, argument: str, value: object, choices: Sequence[object]) -> None:
    """Raises ArgumentError unless ``value`` is one of ``choices``."""
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ArgumentError(op, argument, f"one of {', '.join(map(repr, choices))}", repr(value))


def same_device(op: str, argument: str, x: torch.Tensor, device: torch.device) -> None:
    """Raises DeviceError unless the tensor is on ``device``."""
    if x.device != device:
        hint = f"Move it with {argument}.to('{device}')."
        if x.is_meta or device.type == "meta":
            hint = "A tensor on meta has no data: load it, or allocate it on a device."
        raise DeviceError(op, argument, f"a tensor on {device}", f"one on {x.device}", hint)


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
        hint = "An out tensor is written as it is; nothing is converted."
        raise DTypeError(op, "out", f"dtype {name_of(dtype)}", name_of(out.dtype), hint)
    if tuple(out.shape) != tuple(shape):
        hint = "An out tensor is not resized; allocate it with this shape."
        raise ShapeError(op, "out", f"shape {tuple(shape)}", str(tuple(out.shape)), hint)
    materialised(op, "out", out)
    if _shares_elements(out):
        expected = "a tensor with one memory location for each element"
        got = f"strides {tuple(out.stride())} for shape {tuple(out.shape)}"
        raise LayoutError(op, "out", expected, got, "Pass out.contiguous(), or allocate a new tensor.")


def materialised(op: str, argument: str, x: torch.Tensor) -> None:
    """Raises LayoutError for a lazily conjugated or negated view, whose memory does not hold its values."""
    if x.is_conj() or x.is_neg():
        got, hint = "a lazily conjugated or negated view", f"Pass {argument}.resolve_conj().resolve_neg()."
        raise LayoutError(op, argument, "a tensor whose memory holds its values", got, hint)


def _shares_elements(x: torch.Tensor) -> bool:
    """Whether two indices of ``x`` can mean one memory location.

    Sorted by stride, each dimension must step past all that the smaller ones reach.  That is exact for the views
    that slicing, permuting and expanding make; exotic ``as_strided`` layouts that interleave are refused as well.
    """
    if x.numel() == 0:
        return False
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _byte_range(x: torch.Tensor) -> tuple[int, int]:
    """First and one past the last byte that ``x`` can touch."""
    last = sum(stride * (size - 1) for stride, size in zip(x.stride(), x.shape, strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def no_overlap(op: str, out: torch.Tensor, argument: str, x: torch.Tensor) -> None:
    """Raises LayoutError when ``out`` and an input can share memory.

    The spans from first to last element are compared, so two views that interleave inside one span are refused too:
    telling them apart is as hard as solving a Diophantine equation, and a wrong "no" would corrupt the result.
    """
    if out.numel() == 0 or x.numel() == 0:
        return
    out_start, out_end = _byte_range(out)
    x_start, x_end = _byte_range(x)
    shared = min(out_end, x_end) - max(out_start, x_start)
    if shared > 0:
        expected, got = f"memory apart from that of '{argument}'", f"{shared} bytes within the span of both"
        raise LayoutError(op, "out", expected, got, f"Allocate a new out tensor, or pass {argument}.clone().")
