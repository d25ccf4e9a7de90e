"""When a result is correct: the one rule for tests, GPU validation and benchmarks.

What only moves data is compared bit for bit (``assert_same_bits``).  A floating-point result is compared with the same
operation in float64, element by element.  It is correct if

    |result - float64|  <=  bound + half an ulp of the float64 value in the result's dtype

or if it is PyTorch's result for the same input.  The bound is derived from what is computed, per element, so a small
result has a small allowance.  ``tree_bound`` and ``product_bound`` are those of sums and products; a package derives
its own.  Nothing in the rule is measured, and no term is shared by the elements of a case: neither the largest error
nor the largest result of a case makes room for another element.

Equality with PyTorch decides overflow, NaN and infinities, where a difference from float64 means nothing, and allows an
operator to use PyTorch itself for CPU tensors, whose 16-bit kernels round more often than ours.
"""

from __future__ import annotations

import math

import torch

# Comparing in pieces bounds the memory of the comparison itself: a result of 8 GiB needs no second 8 GiB.
PIECE_BYTES = 2**28


def balanced_depth(count: int) -> int:
    """Depth of a balanced tree of additions over ``count`` numbers; at least 1 unless there are none."""
    return max(1, math.ceil(math.log2(count))) if count > 0 else 0


def tree_bound(magnitude: torch.Tensor, count: int, accumulator: torch.dtype, depth: int | None = None) -> torch.Tensor:
    """Error bound of a sum: that of a balanced tree, or of the kernel's own tree where that is smaller.

    Each addition on an element's path to the result rounds by at most ``eps / 2``, so ``depth`` of them lose at most
    ``depth * eps / 2 / (1 - depth * eps / 2)`` of the sum of the absolute values (Higham, Accuracy and Stability of
    Numerical Algorithms, lemma 3.1).

    A balanced tree is given ``eps`` for each addition, twice its worst case: a float64 result is compared with a
    float64 sum that has an error of its own.  This is required of every kernel, also of one whose tree is deeper
    because its threads add serially.  Of such a tree it is not the worst case, which only numbers reach whose roundings
    all have the same sign, such as equal ones; the worst case of 1000 serial additions would not show a lost element.

    Args:
        magnitude: sum of the absolute values, float64.
        count: how many numbers are added.
        accumulator: dtype of the additions.
        depth: additions on the longest path from an element to the result, from a model of the kernel; None if unknown.

    Returns:
        The bound, float64, of the shape of ``magnitude``.
    """
    eps = torch.finfo(accumulator).eps
    balanced = balanced_depth(count) * eps
    own = balanced if depth is None else depth * eps / 2 / (1 - depth * eps / 2)
    return min(own, balanced) * magnitude


def product_bound(x: torch.Tensor, dim: int, accumulator: torch.dtype) -> torch.Tensor:
    """Error bound of a product along a dimension, in any order of the multiplications.

    A multiplication rounds by at most ``eps / 2`` relative to its result, so relative to the product too, unless one
    factor is 0 or a power of two, when it is exact.  With n other factors, at most n - 1 multiplications round.  Each
    is given ``eps``: for float64 results the reference rounds as often.

    Args:
        x: input, float64; partial products must be normal numbers of the accumulator.
        dim: the reduced dimension.
        accumulator: dtype of the multiplications.

    Returns:
        The bound, float64, of the shape of the product.
    """
    exact = (torch.frexp(x).mantissa.abs() == 0.5) | (x == 0)
    rounded = ((~exact).sum(dim) - 1).clamp_min(0)
    return rounded * torch.finfo(accumulator).eps * x.prod(dim).abs()


def half_ulp(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half a unit in the last place of ``value`` (float64) in ``dtype``, subnormal values included."""
    info = torch.finfo(dtype)
    # frexp gives a mantissa in [0.5, 1), so eps * 2^(exponent - 1) is the distance to the next number.
    exponent = torch.frexp(value.abs().clamp_min(info.tiny))[1].to(torch.float64)
    return 0.5 * info.eps * torch.exp2(exponent - 1)


def assert_near_float64(
    got: torch.Tensor,
    exact: torch.Tensor,
    peer: torch.Tensor,
    *,
    floor: torch.Tensor | float,
    what: str = "result",
) -> float:
    """Fails unless each element is within its bound and half an ulp of float64, or equal to PyTorch's result.

    Args:
        got: the result under test.
        exact: the same operation on the same input in float64.
        peer: PyTorch's result, of the shape and dtype of ``got``.
        floor: the derived bound of the computation, without the rounding of the result to its dtype: one number, or
            one for each element.
        what: names the case in the message.

    Returns:
        The largest share of its allowance that a finite element uses: error / (bound + half an ulp).  Above 1 only
        where an element is accepted because it equals ``peer``.

    Raises:
        AssertionError: shapes or dtypes differ, or an element is neither within its allowance nor equal to ``peer``.
    """
    for name, other in (("float64", exact), ("PyTorch", peer)):
        if got.shape != other.shape:
            raise AssertionError(f"{what}: expected the shape {tuple(other.shape)} of {name}, got {tuple(got.shape)}")
    if got.dtype != peer.dtype:
        raise AssertionError(f"{what}: expected dtype {peer.dtype}, got {got.dtype}")
    if got.numel() == 0:
        return 0.0
    same = (got == peer) | (got.isnan() & peer.isnan())
    mine = got.double()
    error = (mine - exact).abs()
    allowed = (floor + half_ulp(exact, got.dtype)).expand(got.shape)
    # NaN compares as false, and an infinite bound (that of an exact result which overflows) allows no infinite error.
    near = (error <= allowed) & error.isfinite()
    wrong = ~(near | same)
    if bool(wrong.any()):
        flat = int(wrong.flatten().nonzero()[0])
        place = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), got.shape))
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} results are off; first at {place}: "
            f"got {mine[place].item()}, float64 {exact[place].item()}, PyTorch {peer[place].item()}, "
            f"error {error[place].item():.3g}, allowed {allowed[place].item():.3g}"
        )
    # An error of 0 uses nothing, also where half an ulp of a subnormal float64 underflows to an allowance of 0.
    share = torch.where(error.isfinite() & (error > 0), error / allowed, 0.0)
    return float(share.nan_to_num(0.0).max())


def assert_same_bits(got: torch.Tensor, expected: torch.Tensor, *, what: str = "result") -> None:
    """Fails unless both tensors have the same shape, dtype, device, strides and bits.

    Bits, not values: NaN payloads and the sign of zero must survive a move, and ``==`` sees neither.

    Raises:
        AssertionError: they differ; the message begins with ``what`` and says where first and in how many elements.
    """
    for aspect in ("shape", "dtype", "device", "layout"):
        left, right = getattr(got, aspect), getattr(expected, aspect)
        if left != right:
            raise AssertionError(f"{what}: {aspect}: expected {right}, got {left}")
    # The stride of a dimension of size 1 is never used, and that of an empty tensor neither.
    steps = [s for s, size in zip(got.stride(), got.shape, strict=True) if size > 1]
    wanted = [s for s, size in zip(expected.stride(), expected.shape, strict=True) if size > 1]
    if got.numel() and steps != wanted:
        raise AssertionError(f"{what}: strides: expected {expected.stride()}, got {got.stride()}")
    if got.is_conj() or got.is_neg():
        raise AssertionError(f"{what}: expected materialised values, got a lazily conjugated or negated view")
    left, right = bytes_of(got), bytes_of(expected)
    for start in range(0, left.numel(), PIECE_BYTES):
        a, b = left[start : start + PIECE_BYTES], right[start : start + PIECE_BYTES]
        if not torch.equal(a, b):
            _fail(got, expected, what)


def assert_same_values(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Fails unless two tensors are of one shape, dtype and device and equal; NaN is equal to NaN, and -0 to 0."""
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def bytes_of(x: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor, in the order of its dimensions, as bytes."""
    return x.contiguous().reshape(-1).view(torch.uint8)


def _fail(got: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    size = got.element_size()
    differs = (bytes_of(got) != bytes_of(expected)).view(-1, size).any(dim=1)
    flat = int(differs.nonzero()[0])
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), got.shape))
    raise AssertionError(
        f"{what}: {int(differs.sum())} of {differs.numel()} elements differ; first at {index}: "
        f"expected {expected[index].item()!r}, got {got[index].item()!r}"
    )
