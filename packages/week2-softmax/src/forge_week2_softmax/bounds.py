"""Derived error bounds of softmaxes and their gradients, per element, for ``forge_core.testing.tolerances``.

All functions take float64 tensors and return a float64 bound of the result's shape.  Their arguments:

    x, y, grad, lse    the input; the saved output; its gradient; the saved logsumexp, with reduced dims kept
    dim                the dim of a row (``logsumexp_bound``: or several)
    accumulator        the dtype that is computed in
    of_sum             the error of the row's sum by a model of the kernel, in eps: relative to the sum, of a gradient
                       relative to the sum of the absolute values; None for a balanced tree

The exponentials.  With m the largest element of a row, d = m - x >= 0, p = softmax(x), S = sum exp(-d) >= 1, N elements
in a row, and eps that of the accumulator (a rounding is at most eps / 2), to first order in eps:

    exp(-d)      computed as exp2(-d * log2(e)).  The subtraction, the constant and the product round by eps / 2 each,
                 relative to the exponent, and so change the result by (1.5 d) eps, relative; ex2.approx adds 2 eps
                 (PTX ISA: 2^-22).  fp64 uses exp, which is within 1 eps:            (1.5 d + 2) eps, relative
    a merge      of partial results rescales a sum to a larger maximum: another exponential, of the distance d' of the
                 two maxima.  An element's own distance and those of its merges add up to its d, and a balanced tree
                 has log2 N merges:                                                 (1.5 d + 2 (1 + log2 N)) eps
    S            the mean of that over the elements, by weight p, and for each of log2 N merges a product and an
                 addition, eps / 2 each.  The mean of d by weight p is the entropy of p less log S, which is at most
                 ln N:                                                              (1.5 ln N + 3 log2 N + 2) eps

An exponential below the smallest normal number may be flushed to zero (ex2.approx.ftz): an absolute error of at most
`tiny`, the smallest normal number.  In S it is N * 2^-126 beside at least 1, which the slack above covers.

Where a model of the kernel's own tree says less (``of_sum``), that is used: fewer merges than log2 N.  Kernels that
add serially within a thread have more additions than log2 N, but few merges, of 2.5 eps each.
"""

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
    """Error bound of ``exp(-d) / S``: the relative errors of both, and 4 eps for the reciprocal and the product.

    The reciprocal and the product need 1.5 eps of the 4; the rest covers the terms of second order.  The bound is
    proportional to the result, but for ``tiny``, which an exponential that is flushed to zero can lose.
    """
    info = torch.finfo(accumulator)
    factor = 1.5 * _distance(x, dim) + 2 + _of_sum(_count(x, dim), of_sum) + 4
    return torch.softmax(x, dim).nan_to_num(0.0) * factor * info.eps + info.tiny


def log_softmax_bound(x: torch.Tensor, dim: int, accumulator: torch.dtype, of_sum: float | None = None) -> torch.Tensor:
    """Error bound of ``-d - log S``: the error of S, the logarithm, and the roundings of each number.

    A relative error of S is an absolute error of its logarithm.  The logarithm itself is within 1 eps, relative, and
    the two subtractions round d and the result by eps / 2 each.  Since d and log S are not negative, their sum is the
    size of the result, and 2 eps of that cover all of these; 4 eps cover the terms of second order.
    """
    size = torch.log_softmax(x, dim).nan_to_num(0.0, 0.0, 0.0).abs()
    return (2 * size + _of_sum(_count(x, dim), of_sum) + 4) * torch.finfo(accumulator).eps


def logsumexp_bound(x: torch.Tensor, dim: Dims, accumulator: torch.dtype, of_sum: float | None = None) -> torch.Tensor:
    """Error bound of ``m + log S``: the error of S, the logarithm, and the rounding of the sum.

    A relative error of S is an absolute error of its logarithm, which is at most ln N and itself within 1 eps,
    relative; the addition rounds by eps / 2 of the result; 4 eps cover the terms of second order.
    """
    size = torch.logsumexp(x, dim).nan_to_num(0.0, 0.0, 0.0).abs()
    count = _count(x, dim)
    return (size + math.log(max(count, 1)) + _of_sum(count, of_sum) + 4) * torch.finfo(accumulator).eps


def softmax_gradient_bound(
    grad: torch.Tensor, y: torch.Tensor, dim: int, accumulator: torch.dtype, of_sum: float | None = None
) -> torch.Tensor:
    """Error bound of ``y * (grad - sum(y * grad))``: the sum, its products, and a rounding of each step.

    The sum loses 1 eps for each addition of a balanced tree and for the products, relative to the sum of the absolute
    values (``tree_bound``).  The difference and the product with ``y`` round by eps / 2 each, relative to the result;
    they are given 2 eps, since a float64 reference rounds as often.  A product below the smallest normal number rounds
    by half a subnormal, ``tiny * eps / 2``: that with ``y``, and each of the sum.
    """
    info = torch.finfo(accumulator)
    product = grad * y
    total = _of_terms(_count(y, dim), 1, of_sum) * product.abs().sum(dim, keepdim=True)
    normal = y.abs() * (total + 2 * (grad - product.sum(dim, keepdim=True)).abs())
    return (normal + (1 + _count(y, dim) * y.abs()) * info.tiny) * info.eps


def log_softmax_gradient_bound(
    grad: torch.Tensor, y: torch.Tensor, dim: int, accumulator: torch.dtype, of_sum: float | None = None
) -> torch.Tensor:
    """Error bound of ``grad - exp(y) * sum(grad)``: the sum, the exponential, and a rounding of each step.

    The sum loses 1 eps for each addition of a balanced tree, relative to the sum of the absolute values.  The
    exponential is within (|y| + 2) eps, relative, since nothing is subtracted first; its product with the sum and the
    difference round by eps / 2 each.  1.5 |y| + 4 covers these with what they add in second order.  An exponential that
    is flushed to zero loses ``tiny`` times the sum.
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
    """Error bound of ``grad * exp(x - lse)``: the exponential, and the rounding of the product.

    The exponential of a difference of size d is within (1.5 d + 2) eps, relative, and the product rounds by eps / 2;
    the rest of the 4 eps covers the terms of second order.  An exponential that is flushed to zero loses ``tiny``.
    """
    info = torch.finfo(accumulator)
    far = (x - lse).abs()
    far = torch.where(far.isfinite(), far, 0.0)
    weight = (x - lse).exp().nan_to_num(0.0)
    # The product with the gradient may be subnormal: half of tiny * eps.
    return grad.abs() * (weight * (1.5 * far + 4) * info.eps + info.tiny) + info.tiny * info.eps


# Peers round more often.  These bounds are for peers of the benchmarks alone, never for what Forge computes.
# With p = grad * y, s = sum p, and u half the eps of the dtype that is rounded to:
#
#   the product alone    (p + e) - y (s + sum e)                 e at most half an ulp of p
#   every step           round(y * round(grad - s'))             s' is off by sum e, and by `depth` successive roundings
#                                                                of sums that are at most sum |p| each
#
# k successive roundings come to k u / (1 - k u), relative.  An error can bring a result to a larger binade, where half
# an ulp is larger: by eps times the error, at most.


def rounded_product_bound(grad: torch.Tensor, y: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Error of ``grad * y - y * sum(grad * y)`` that rounding ``grad * y`` to a dtype adds, as PyTorch does on CUDA.

    ``aten::_softmax_backward_data`` multiplies in a kernel of its own and stores the product (ATen's
    ``native/cuda/SoftMax.cu``); what follows is computed in fp32 from that.
    """
    error = half_ulp(grad * y, dtype)
    return (error + y.abs() * error.sum(dim, keepdim=True)) * (1 + torch.finfo(dtype).eps)


def rounded_steps_bound(grad: torch.Tensor, y: torch.Tensor, dim: int, dtype: torch.dtype, depth: int) -> torch.Tensor:
    """Error of ``y * (grad - sum(grad * y))`` that rounding every step to a dtype adds, as in Triton without casts.

    At most ``depth`` additions are on the path from an element to the sum.

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
