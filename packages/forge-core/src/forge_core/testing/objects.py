"""What can be known of a compiled kernel without running it."""

from __future__ import annotations

from forge_core.profiling.cubin import read_cubin

__all__ = ["stack_bytes"]


def stack_bytes(cubin: bytes) -> int:
    """The largest stack frame of a cubin's kernels: where spilled registers go.

    Args:
        cubin: a 64-bit ELF object, as the compiler keeps it with ``--keep-cubin``.

    Raises:
        ValueError: it holds no kernel.
    """
    return max(kernel.stack_bytes for kernel in read_cubin(cubin))
