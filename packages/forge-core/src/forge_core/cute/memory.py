"""Accesses at byte addresses; the name of a kernel, its launch bounds, the arguments it is traced with, its builder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Int64, Uint8

from forge_core.cache import CompileCached, Traceable, compile_cached
from forge_core.steps import CHUNK

__all__ = [
    "CHUNK",
    "GLOBAL",
    "Int32",
    "Int64",
    "builder",
    "elements_at",
    "example_arguments",
    "launch_bounds",
    "load_element",
    "name_kernel",
    "store_element",
]

GLOBAL = cute.AddressSpace.gmem


def elements_at(address: Any, dtype: Any, count: int, space: Any = GLOBAL) -> Any:
    """A tensor of ``count`` contiguous elements, a single access if 16 bytes or less.

    Args:
        address: byte address, aligned to the size of all elements or 16 bytes, whichever is less.
        dtype: element type.
        count: a power of two.
        space: address space.
    """
    width = min(CHUNK, count * dtype.width // 8)
    return cute.make_tensor(cute.make_ptr(dtype, address, space, assumed_align=width), cute.make_layout(count))


def load_element(address: Any, dtype: Any, space: Any = GLOBAL) -> Any:
    """Loads the element at an address."""
    # A loaded value has the signed integer type of its width.
    return dtype(elements_at(address, dtype, 1, space)[0])


def store_element(value: Any, address: Any, dtype: Any, space: Any = GLOBAL) -> None:
    """Stores an element at an address."""
    elements_at(address, dtype, 1, space)[0] = value


def name_kernel(kernel: Any, name: str) -> None:
    """Sets the name that profilers show; call it before the launch."""
    kernel.set_name_prefix(name, remove_cutlass_symbol=True, keep_mangled_name=False)


def launch_bounds(blocks: int) -> dict[str, Any]:
    """Launch bounds: keyword arguments of ``launch`` for a minimum of blocks per multiprocessor; 0: none.

    Without them ptxas may limit the registers so that one more block fits, and spill to local memory.  With a minimum
    of B blocks of T threads, a thread has up to 65536 / (T * B) registers.
    """
    if not blocks:
        return {}
    # With an explicit carveout (-1: the driver's choice) the compiler queries no device, so no GPU is needed.
    return {"min_blocks_per_mp": blocks, "preferred_smem_carveout": -1}


def example_arguments(*, pointers: int = 2, wide: int = 0, tuples: tuple[int, ...] = ()) -> tuple[Any, ...]:
    """Arguments to trace a kernel with: null pointers, 64-bit integers, tuples of them, and a stream.

    Args:
        pointers: number of pointers, to bytes without alignment, since a kernel states the width of each access.
        wide: number of 64-bit integers.
        tuples: length of each tuple of 64-bit integers.
    """
    return (
        *(cute.runtime.make_ptr(Uint8, 0, GLOBAL, assumed_align=1) for _ in range(pointers)),
        *(Int64(4) for _ in range(wide)),
        *(tuple(Int64(4) for _ in range(length)) for length in tuples),
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False),
    )


def builder(
    *kernels: Any, wide: int = 0, dims: str = "", arguments: Callable[[Any], tuple[Any, ...]] | None = None
) -> CompileCached[Any]:
    """The ``build`` of a module, for the configurations of its kernels.

    Args:
        kernels: each a subclass of the configuration that it is built for, its first base.
        wide: number of 64-bit integers.
        dims: field of a configuration with the number of dims; after the integers a launch then takes a tuple of a
            count, and a size and two strides for each dim.
        arguments: the arguments of a configuration's kernel; by default :func:`example_arguments` of two pointers.
    """

    def build(config: Any) -> Traceable:
        (kernel,) = (each for each in kernels if each.__bases__[0] is type(config))
        tuples = (1 + 3 * getattr(config, dims),) if dims else ()
        example = arguments(config) if arguments else example_arguments(wide=wide, tuples=tuples)
        made = kernel(**{field.name: getattr(config, field.name) for field in fields(config)})
        return Traceable(made, example, name=config.kernel_name)

    build.__module__, build.__qualname__ = kernels[0].__module__, "build"
    return compile_cached(build)
