"""Error bounds of the norms and of their gradients, element by element, without the rounding of the result.

    e        eps of the compute dtype; a rounding is at most e / 2
    D        additions from an element of a row of N to its sum in a balanced tree, each given e (``tree_bound``)

Mean: absolute error dm = (D + 1) e mean|x|, which is large beside the deviations d where the mean is.

Variance: the sum of (d - dm)^2 is that of d^2 plus N dm^2, since deviations from the mean add up to 0.  Relative to
var + eps, its error is (D + 4) e, for the squares of rounded differences and their sum, plus dm^2 / (var + eps).  That
of E[x^2] - E[x]^2 would be e mean^2 / var, which no bound here allows.

rstd: relative error half that of the variance, plus 2 e for rsqrt.  An element: absolute error rstd dm, relative error
2 e for the difference and the product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from forge_core.testing.tolerances import balanced_depth

__all__ = ["gradient_bound", "norm_bound", "weight_bound"]

Tensor = torch.Tensor


def norm_bound(
    x: Tensor, weight: Tensor, bias: Tensor, dims: Sequence[int], eps: float, accumulator: torch.dtype, *, center: bool
) -> Tensor:
    """Error bound of ``hat * weight + bias``; weight and bias are broadcast over rows, all tensors float64."""
    dims, e = tuple(dims), torch.finfo(accumulator).eps
    depth = balanced_depth(math.prod(x.shape[i] for i in dims))
    d = x - x.mean(dims, keepdim=True) if center else x
    dm = (depth + 1) * e * x.abs().mean(dims, keepdim=True) if center else torch.zeros((), dtype=x.dtype)
    var = d.square().mean(dims, keepdim=True) + eps
    rstd = var.rsqrt()
    relative = 0.5 * ((depth + 4) * e + dm.to(x.device) ** 2 / var) + 4 * e
    error = rstd * dm.to(x.device) + (d * rstd).abs() * relative
    return weight.abs() * error + 2 * e * ((d * rstd * weight).abs() + bias.abs())


def gradient_bound(
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    dtotal: Tensor,
    weight: Tensor,
    dims: Sequence[int],
    accumulator: torch.dtype,
    *,
    center: bool,
) -> Tensor:
    """Error bound of ``rstd * (g - mean(g) - hat * mean(g * hat)) + dtotal``, of given statistics.

    Each mean loses (D + 4) e of the mean of magnitudes, its products among them; each step rounds once.
    """
    dims, e = tuple(dims), torch.finfo(accumulator).eps
    depth = balanced_depth(math.prod(x.shape[i] for i in dims)) + 4
    g, hat = dy * weight, (x - mean) * rstd
    of_hat = hat.abs() * depth * (g * hat).abs().mean(dims, keepdim=True)
    of_mean = depth * g.abs().mean(dims, keepdim=True) if center else 0.0
    return e * (rstd * (4 * g.abs() + 2 * of_hat + of_mean) + 2 * dtotal.abs())


def weight_bound(dy: Tensor, hat: Tensor, over: Sequence[int], accumulator: torch.dtype) -> Tensor:
    """Error bound of the sum of ``dy * hat`` over rows, of given statistics: three roundings, and the sum's."""
    depth = balanced_depth(math.prod(dy.shape[i] for i in over)) + 4
    return depth * torch.finfo(accumulator).eps * (dy * hat).abs().sum(tuple(over))
