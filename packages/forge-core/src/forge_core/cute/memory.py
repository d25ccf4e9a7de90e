"""Accesses at addresses, which are 64-bit integers in bytes; a kernel's name, and what it is traced with."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Int64, Uint8

__all__ = [
    "CHUNK",
    "GLOBAL",
    "Int32",
    "Int64",
    "elements_at",
    "example_arguments",
    "load_element",
    "name_kernel",
    "store_element",
]

GLOBAL = cute.AddressSpace.gmem

#: Bytes of the widest access of a thread.
CHUNK = 16


def elements_at(address: Any, dtype: Any, count: int, space: Any = GLOBAL) -> Any:
    """A tensor over ``count`` elements, which one access covers if they are 16 bytes or less.

    Args:
        address: in bytes; a multiple of the elements' bytes, or of 16.
        dtype: the DSL's type of an element.
        count: a power of two.
        space: global or shared memory.
    """
    width = min(CHUNK, count * dtype.width // 8)
    return cute.make_tensor(cute.make_ptr(dtype, address, space, assumed_align=width), cute.make_layout(count))


def load_element(address: Any, dtype: Any, space: Any = GLOBAL) -> Any:
    """The element at an address."""
    # Memory knows widths only: an unsigned byte comes back as a signed one.
    return dtype(elements_at(address, dtype, 1, space)[0])


def store_element(value: Any, address: Any, dtype: Any, space: Any = GLOBAL) -> None:
    """Writes one element."""
    elements_at(address, dtype, 1, space)[0] = value


def name_kernel(kernel: Any, name: str) -> None:
    """Gives a kernel the short name that profilers show; must be called before it is launched."""
    kernel.set_name_prefix(name, remove_cutlass_symbol=True, keep_mangled_name=False)


def example_arguments(*, pointers: int = 2, wide: int = 0, tuples: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """What a kernel is traced with: null pointers, 64-bit integers, tuples of them, and a stream.

    Args:
        pointers: declared as bytes without alignment, since a kernel states the width of each access itself.
        wide: 64-bit integers.
        tuples: the length of each tuple of 64-bit integers.
    """
    return (
        *(cute.runtime.make_ptr(Uint8, 0, GLOBAL, assumed_align=1) for _ in range(pointers)),
        *(Int64(4) for _ in range(wide)),
        *(tuple(Int64(4) for _ in range(length)) for length in tuples),
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False),
    )
