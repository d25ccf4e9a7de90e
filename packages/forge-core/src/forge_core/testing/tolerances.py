"""When a floating-point result is right: the one policy for everything that is not exact.

A result is compared with the same operation in float64, and its error may be at most

    2 * PyTorch's own error      for the same input and dtype, element by element or the largest of the case
  + the derived bound            of what is computed: for a sum ceil(log2 N) * eps(accumulator) * sum |x|
  + half an ulp of the output    rounding the result to its dtype, which nobody can avoid

The first term lets an ill-conditioned input be as inaccurate for Forge as it is for PyTorch; the second is what adding
N numbers in a balanced tree can lose at most, whatever their order; without it a lucky PyTorch result of error 0 would
demand the same luck.  Nothing here is measured, so nothing has to be loosened when a kernel changes.

``softmax_bounds`` derives what softmaxes and their gradients can lose.
"""

from __future__ import annotations

import math

import torch

__all__ = [
    "FACTOR",
    "assert_near_float64",
    "balanced_depth",
    "half_ulp",
    "tree_bound",
]

#: How much worse than PyTorch a result may be.
FACTOR = 2.0


def balanced_depth(count: int) -> int:
    """Additions that a number takes part in, one behind the other, where a balanced tree adds up so many."""
    return max(1, math.ceil(math.log2(count))) if count > 0 else 0


def tree_bound(magnitude: torch.Tensor, count: int, accumulator: torch.dtype, depth: int | None = None) -> torch.Tensor:
    """What a balanced tree over ``count`` numbers can lose, or the kernel's own tree where that is less.

    Args:
        magnitude: the sum of the absolute values, float64.
        count: how many numbers are added.
        accumulator: the dtype of the additions.
        depth: how many additions an element takes part in, one behind the other, as a model of the kernel says; None
            where there is none.

    Returns:
        The bound, float64, of the shape of ``magnitude``.
    """
    eps = torch.finfo(accumulator).eps
    balanced = balanced_depth(count) * eps
    # Each addition rounds by half an eps (Higham, lemma 3.1).
    own = balanced if depth is None else depth * eps / 2 / (1 - depth * eps / 2)
    return min(own, balanced) * magnitude


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
    factor: float = FACTOR,
    what: str = "result",
) -> None:
    """Fails unless a result is as near to float64 as the policy asks.

    Args:
        got: the result under test.
        exact: the same in float64, computed from the same input.
        peer: PyTorch's result, of the dtype of ``got``.
        floor: the derived bound of the computation itself, for example :func:`tree_bound`.
        factor: how much worse than PyTorch a result may be.
        what: names the case in the message.

    Raises:
        AssertionError: a result is further away, or is NaN or infinite where float64 is not (what overflows the
            output's dtype for PyTorch too is allowed to).
    """
    for name, other in (("float64", exact), ("PyTorch", peer)):
        if got.shape != other.shape:
            raise AssertionError(f"{what}: expected the shape {tuple(other.shape)} of {name}, got {tuple(got.shape)}")
    if got.dtype != peer.dtype:
        raise AssertionError(f"{what}: expected dtype {peer.dtype}, got {got.dtype}")
    if got.numel() == 0:
        return
    same = (got == peer) | (got.isnan() & peer.isnan())
    mine, theirs = got.double(), peer.double()
    error = (mine - exact).abs()
    peers = (theirs - exact).abs()
    finite = peers.isfinite()
    largest = peers[finite].max() if bool(finite.any()) else peers.new_zeros(())
    allowed = factor * largest + floor + half_ulp(exact, got.dtype)
    # NaN compares as false, so it counts as wrong unless PyTorch has it in the same place.
    wrong = ~((error <= allowed) | same)
    if bool(wrong.any()):
        flat = int(wrong.flatten().nonzero()[0])
        place = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), got.shape))
        limit = allowed[place] if allowed.ndim else allowed
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} results are off; first at {place}: "
            f"got {mine[place].item()}, float64 {exact[place].item()}, PyTorch {theirs[place].item()}, "
            f"error {error[place].item():.3g}, allowed {limit.item():.3g}"
        )
