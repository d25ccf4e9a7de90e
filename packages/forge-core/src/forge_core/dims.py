"""Arguments ``dim`` as PyTorch takes them: one dimension, several, or all; negative ones count from the end."""

from __future__ import annotations

from collections.abc import Sequence

from forge_core.errors import DimError, RepeatedDimError

#: An argument ``dim``: one dimension, several, or None for all.
Dims = int | Sequence[int] | None


def normalize_dim(op: str, dim: int, ndim: int) -> int:
    """Wraps a dimension of a tensor of rank ``ndim`` to a non-negative one; rank 0 takes 0 and -1, as in PyTorch.

    Raises:
        DimError: out of range, or not an int.
    """
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise DimError(op, "dim", "an int", type(dim).__name__)
    span = max(ndim, 1)
    if not -span <= dim < span:
        raise DimError(op, "dim", f"a dimension in the range from {-span} to {span - 1}", str(dim))
    return dim % span


def normalize_dims(op: str, dim: Dims, ndim: int) -> tuple[int, ...]:
    """The dimensions of a tensor of rank ``ndim``, sorted and non-negative; see :func:`normalize_dim`.

    Args:
        op: the operator's name, for messages.
        dim: one or several dimensions; None and an empty sequence mean all, as in PyTorch.
        ndim: the tensor's rank.

    Raises:
        DimError: out of range, or not an int.
        RepeatedDimError: given twice.
    """
    if dim is not None and (not isinstance(dim, (int, Sequence)) or isinstance(dim, (bool, str))):
        raise DimError(op, "dim", "an int, a tuple of ints, or None", type(dim).__name__)
    given = (dim,) if isinstance(dim, int) else tuple(dim or ())
    found: list[int] = []
    for one in given:
        place = normalize_dim(op, one, ndim)
        if place in found:
            raise RepeatedDimError(op, "dim", "each dimension once", f"dimension {place} again in {given}")
        found.append(place)
    return tuple(sorted(found)) if found and ndim else tuple(range(ndim))


def result_shape(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    """The shape that is left when the non-negative ``dims`` are reduced; ``keepdim`` keeps them with size 1."""
    if keepdim:
        return tuple(1 if i in dims else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in dims)
