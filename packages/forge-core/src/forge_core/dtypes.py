"""The dtypes that operators take, and their types in the CuTe DSL.

Kernels that only move data need an element's width (``dtype.itemsize``): one compiled kernel serves all dtypes of a
width.  Kernels that compute use :func:`cute_dtype`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

#: What operators that compute take, as PyTorch's do on a GPU.
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: What operators take whose result may have another dtype; bool among them, as in PyTorch.
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
#: What sums and means take beside those; complex32 has no sum on the CPU in PyTorch.
COMPLEX = (torch.complex64, torch.complex128)

#: The name of each dtype's type in ``cutlass``.  Complex and quantised types have none.
CUTE_NAMES: Mapping[torch.dtype, str] = {
    torch.bool: "Boolean",
    torch.uint8: "Uint8",
    torch.int8: "Int8",
    torch.uint16: "Uint16",
    torch.int16: "Int16",
    torch.uint32: "Uint32",
    torch.int32: "Int32",
    torch.uint64: "Uint64",
    torch.int64: "Int64",
    torch.float8_e4m3fn: "Float8E4M3FN",
    torch.float8_e5m2: "Float8E5M2",
    torch.float16: "Float16",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float32",
    torch.float64: "Float64",
}


def name_of(dtype: torch.dtype) -> str:
    """Its name without the module: ``float32``."""
    return str(dtype).removeprefix("torch.")


# Several elements in a byte, raw bits, or values that need a scale.
_NOT_MOVABLE = re.compile(r"q.*|bits.*|u?int[1-7]|.*_x\d+")

#: What data-movement operators take: every dtype whose elements are 1, 2, 4, 8 or 16 whole bytes.
MOVABLE: frozenset[torch.dtype] = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not _NOT_MOVABLE.fullmatch(name_of(dtype))
)

_LONG = re.compile(r"(b?f|c)(?:loat|omplex)(\d+)$")


def cute_dtype(dtype: torch.dtype) -> Any:
    """The CuTe DSL's type; imports cutlass.

    Raises:
        KeyError: the DSL has no such type.
    """
    import cutlass

    return getattr(cutlass, CUTE_NAMES[dtype])


def short_name(dtype: torch.dtype) -> str:
    """A short name for tables and kernel names: ``bf16``, ``f32``, ``int8``."""
    return _LONG.sub(r"\1\2", name_of(dtype))


def parse(name: str) -> torch.dtype:
    """A dtype from its torch name or its short name: ``"float32"``, ``"f32"`` or ``"fp32"``.

    Raises:
        ValueError: no dtype of ``MOVABLE`` has this name.
    """
    text = name.removeprefix("torch.")
    text = f"f{text[2:]}" if text.startswith("fp") else text
    for dtype in MOVABLE:
        if text in (name_of(dtype), short_name(dtype)):
            return dtype
    known = ", ".join(sorted(map(name_of, MOVABLE)))
    raise ValueError(f"unknown dtype {name!r}; known: {known}")
