"""What softmaxes and their gradients can lose: the derived bounds, for the policy of ``tolerances``."""

from __future__ import annotations

import math

import torch

from forge_core.testing.tolerances import balanced_depth, half_ulp

__all__ = [
    "log_softmax_bound",
    "log_softmax_gradient_bound",
    "logsumexp_bound",
    "logsumexp_gradient_bound",
    "rounded_product_bound",
    "rounded_steps_bound",
    "softmax_bound",
    "softmax_gradient_bound",
]

Dims = int | tuple[int, ...]

# The exponentials.  With m the largest of a row, d = m - x, p = softmax(x), S = sum exp(-d), N numbers a row, and eps
# that of the accumulator, to first order in eps:
#
#   exp(-d)      x - m rounds to 1/2 eps d, the factor log2(e) and the product with it to another eps d; exp2 of the
#                GPU adds 2 eps (PTX: 2^-22):                                       (1.5 d + 2) eps, relative
#   a merge      brings a sum to a larger maximum: exp(-d') of its own, on top.  The d' of an element's merges and its
#                first d add up to its d, and a balanced tree has log2 N merges:    (1.5 d + 2 (1 + log2 N)) eps
#   S            the mean of that over the elements, by weight p, and log2 N additions.  The mean of d by weight p is
#                the entropy of p less log S, which is at most ln N:                (1.5 ln N + 3 log2 N + 2) eps
#
# An exponential below the smallest normal number may be flushed to zero.
#
# Where a model of the kernel's own tree says less (``of_sum``), that holds: its additions round by 1/2 eps each, and it
# has fewer merges than log2 N.


def _of_sum(count: int, modelled: float | None) -> float:
    balanced = 1.5 * math.log(max(count, 1)) + 3 * balanced_depth(count) + 2
    return balanced if modelled is None else min(modelled, balanced)


def _of_terms(count: int, products: int, modelled: float | None) -> float:
    balanced = float(balanced_depth(count) + products)
    return balanced if modelled is None else min(modelled, balanced)


def _count(x: torch.Tensor, dim: Dims) -> int:
    dims = (dim,) if isinstance(dim, int) else dim
    return math.prod(x.shape[i] for i in dims) if x.ndim else 1


def _distance(x: torch.Tensor, dim: Dims) -> torch.Tensor:
    """How far each element is below the largest of its row; -inf, whose exponential is exact, as no distance."""
    far = x.amax(dim, keepdim=True) - x
    return torch.where(far.isfinite(), far, 0.0)


def softmax_bound(x: torch.Tensor, dim: int, accumulator: torch.dtype, of_sum: float | None = None) -> torch.Tensor:
    """What ``exp(-d) / S`` can lose: the errors of both, and 4 eps for the reciprocal and the product.

    Args:
        x: the input, float64.
        dim: the dimension of a row.
        accumulator: the dtype that is computed in.
        of_sum: what a model of the kernel says that the row's sum can lose, in eps, relative; None where there is none.

    Returns:
        The bound, float64, of the shape of ``x``.
    """
    info = torch.finfo(accumulator)
    factor = 1.5 * _distance(x, dim) + 2 + _of_sum(_count(x, dim), of_sum) + 4
    return torch.softmax(x, dim).nan_to_num(0.0) * factor * info.eps + info.tiny


def log_softmax_bound(x: torch.Tensor, dim: int, accumulator: torch.dtype, of_sum: float | None = None) -> torch.Tensor:
    """What ``-d - log S`` can lose: the error of S, 4 eps of the logarithm, and a rounding of each of the numbers.

    Args:
        x: the input, float64.
        dim: the dimension of a row.
        accumulator: the dtype that is computed in.
        of_sum: what a model of the kernel says that the row's sum can lose, in eps, relative; None where there is none.

    Returns:
        The bound, float64, of the shape of ``x``.
    """
    size = torch.log_softmax(x, dim).nan_to_num(0.0, 0.0, 0.0).abs()
    return (2 * size + _of_sum(_count(x, dim), of_sum) + 4) * torch.finfo(accumulator).eps


def logsumexp_bound(x: torch.Tensor, dim: Dims, accumulator: torch.dtype, of_sum: float | None = None) -> torch.Tensor:
    """What ``m + log S`` can lose: the error of S, 4 eps of the logarithm, and a rounding of both numbers.

    Args:
        x: the input, float64.
        dim: the dimensions that are reduced.
        accumulator: the dtype that is computed in.
        of_sum: what a model of the kernel says that the row's sum can lose, in eps, relative; None where there is none.

    Returns:
        The bound, float64, of the shape of the result without ``dim``.
    """
    size = torch.logsumexp(x, dim).nan_to_num(0.0, 0.0, 0.0).abs()
    count = _count(x, dim)
    return (size + math.log(max(count, 1)) + _of_sum(count, of_sum) + 4) * torch.finfo(accumulator).eps


def softmax_gradient_bound(
    grad: torch.Tensor, y: torch.Tensor, dim: int, accumulator: torch.dtype, of_sum: float | None = None
) -> torch.Tensor:
    """What ``y * (grad - sum(y * grad))`` can lose: the tree of the sum, its products, and a rounding of each step.

    Args:
        grad: the gradient of the output, float64.
        y: the output that was saved, float64.
        dim: the dimension of a row.
        accumulator: the dtype that is computed in.
        of_sum: what a model of the kernel says that the row's sum can lose, in eps, relative to the sum of the
            absolute values; None where there is none.

    Returns:
        The bound, float64, of the shape of ``y``.
    """
    eps = torch.finfo(accumulator).eps
    product = grad * y
    total = _of_terms(_count(y, dim), 1, of_sum) * product.abs().sum(dim, keepdim=True)
    return y.abs() * eps * (total + 2 * (grad - product.sum(dim, keepdim=True)).abs())


# Others round more often.  These bounds are for them alone, never for what Forge computes.
# With p = grad * y, s = sum p, and u half the eps of the dtype that is rounded to:
#
#   the product alone    (p + e) - y (s + sum e)                 e at most half an ulp of p
#   every step           round(y * round(grad - s'))             s' is off by sum e, and by `depth` roundings in turn of
#                                                                sums that are at most sum |p| each
#
# k roundings in turn come to k u / (1 - k u), relative.  An error can bring a result to a larger binade, where half an
# ulp is larger: by eps times the error, at most.


def rounded_product_bound(grad: torch.Tensor, y: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """What rounding ``grad * y`` to a dtype adds to ``grad * y - y * sum(grad * y)``, as PyTorch does on CUDA.

    ``aten::_softmax_backward_data`` multiplies in a kernel of its own and stores the product (ATen's
    ``native/cuda/SoftMax.cu``); what follows is computed in fp32 from that.

    Args:
        grad: the gradient of the output, float64.
        y: the output that was saved, float64.
        dim: the dimension of a row.
        dtype: what the product is stored as.

    Returns:
        The bound, float64, of the shape of ``y``.
    """
    error = half_ulp(grad * y, dtype)
    return (error + y.abs() * error.sum(dim, keepdim=True)) * (1 + torch.finfo(dtype).eps)


def rounded_steps_bound(grad: torch.Tensor, y: torch.Tensor, dim: int, dtype: torch.dtype, depth: int) -> torch.Tensor:
    """What rounding every step to a dtype adds to ``y * (grad - sum(grad * y))``, as Triton does where nothing is cast.

    Args:
        grad: the gradient of the output, float64.
        y: the output that was saved, float64.
        dim: the dimension of a row.
        dtype: what each step is rounded to.
        depth: how many additions an element takes part in, one behind the other.

    Returns:
        The bound, float64, of the shape of ``y``.

    Raises:
        ValueError: so many roundings in this dtype that nothing can be said.
    """
    eps = torch.finfo(dtype).eps
    roundings = depth * eps / 2
    if roundings >= 1:
        raise ValueError(f"expected fewer than {2 / eps:.0f} additions one behind the other in {dtype}, got {depth}")
    product = grad * y
    e = half_ulp(product, dtype)
    total = e.sum(dim, keepdim=True) + roundings / (1 - roundings) * (product.abs() + e).sum(dim, keepdim=True)
    difference = (grad - product.sum(dim, keepdim=True)).abs() + total
    return y.abs() * (total + eps / 2 * difference) * (1 + eps)


def log_softmax_gradient_bound(
    grad: torch.Tensor, y: torch.Tensor, dim: int, accumulator: torch.dtype, of_sum: float | None = None
) -> torch.Tensor:
    """What ``grad - exp(y) * sum(grad)`` can lose: the tree of the sum, the exponential, and a rounding of each step.

    Args:
        grad: the gradient of the output, float64.
        y: the output that was saved, float64.
        dim: the dimension of a row.
        accumulator: the dtype that is computed in.
        of_sum: what a model of the kernel says that the row's sum can lose, in eps, relative to the sum of the
            absolute values; None where there is none.

    Returns:
        The bound, float64, of the shape of ``y``.
    """
    info = torch.finfo(accumulator)
    total = grad.sum(dim, keepdim=True).abs()
    tree = _of_terms(_count(y, dim), 0, of_sum) * grad.abs().sum(dim, keepdim=True)
    size = torch.where(y.isfinite(), y.abs(), 0.0)
    part = y.exp() * (tree + (1.5 * size + 4) * total)
    return (part + grad.abs()) * info.eps + info.tiny * total


def logsumexp_gradient_bound(
    grad: torch.Tensor, x: torch.Tensor, lse: torch.Tensor, accumulator: torch.dtype
) -> torch.Tensor:
    """What ``grad * exp(x - lse)`` can lose: the exponential, and a rounding of the product.

    Args:
        grad: the gradient of the output, float64, with the reduced dimensions in place.
        x: the input, float64.
        lse: the output that was saved, float64, with the reduced dimensions in place.
        accumulator: the dtype that is computed in.

    Returns:
        The bound, float64, of the shape of ``x``.
    """
    info = torch.finfo(accumulator)
    far = (x - lse).abs()
    far = torch.where(far.isfinite(), far, 0.0)
    weight = (x - lse).exp().nan_to_num(0.0)
    return grad.abs() * (weight * (1.5 * far + 4) * info.eps + info.tiny)
