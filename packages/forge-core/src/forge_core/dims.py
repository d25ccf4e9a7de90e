"""Dimensions as PyTorch takes them: an int, several, or all; negative ones count from the end."""

from __future__ import annotations

from collections.abc import Sequence

from forge_core.errors import DimError, RepeatedDimError

__all__ = ["Dims", "normalize_dim", "normalize_dims", "result_shape"]

#: What operators take for ``dim``: one, several, or None for all.
Dims = int | Sequence[int] | None


def normalize_dim(op: str, dim: int, ndim: int) -> int:
    """One dimension, none negative.

    Args:
        op: for messages.
        dim: the dimension; a tensor without any has the dimensions 0 and -1, as in PyTorch.
        ndim: dimensions of the tensor.

    Raises:
        DimError: out of range, an IndexError too; or no int.
    """
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise DimError(op=op, argument="dim", expected="an int", got=type(dim).__name__)
    span = max(ndim, 1)
    if not -span <= dim < span:
        raise DimError(
            op=op, argument="dim", expected=f"a dimension in the range from {-span} to {span - 1}", got=str(dim)
        )
    return dim % span


def normalize_dims(op: str, dim: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """The dimensions that are meant, sorted, none negative.

    Args:
        op: for messages.
        dim: an int, a sequence of ints, or None for all; an empty sequence means all too, as in PyTorch.
        ndim: dimensions of the tensor; a tensor without any has the dimensions 0 and -1, as in PyTorch.

    Raises:
        DimError: out of range; an IndexError too.
        RepeatedDimError: given twice; a RuntimeError too.
    """
    if dim is None:
        return tuple(range(ndim))
    if not isinstance(dim, (int, Sequence)) or isinstance(dim, (bool, str)):
        raise DimError(op=op, argument="dim", expected="an int, a tuple of ints, or None", got=type(dim).__name__)
    given = (dim,) if isinstance(dim, int) else tuple(dim)
    if not given:
        return tuple(range(ndim))
    found: list[int] = []
    for one in given:
        place = normalize_dim(op, one, ndim)
        if place in found:
            raise RepeatedDimError(
                op=op, argument="dim", expected="each dimension once", got=f"dimension {place} again in {given}"
            )
        found.append(place)
    return tuple(sorted(found)) if ndim else ()


def result_shape(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    """The sizes that are left when ``dims`` are reduced; they stay with size 1 where ``keepdim`` is true."""
    if keepdim:
        return tuple(1 if i in dims else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in dims)
