"""Elementary functions of vectors (``TensorSSA``) and numbers, with stated errors.

``exp``, exact, for fp32:

    t = fl(d L)                    L = log2(e), rounded to fp32
    r = d - t ln(2)                what the product lost, and what L lacks; two fused steps, with ln(2) to 48 bits
    e^d = 2^t e^r = 2^t (1 + r)    |r| <= 2^-23 |d|, so the next term, r^2 / 2, is below 2^-33

So the error is that of ``ex2.approx.ftz`` (2 ulp) and of one fused multiply-add, whatever d is, where rounding d L
alone shifts the result by abs(d) 2^-24.  Below 2^-126 the result is 0.
"""

from __future__ import annotations

import math
from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int64, Uint32
from cutlass.cute import TensorSSA

__all__ = ["LN_2", "LN_2_REST", "LOG2_E", "exp", "step_dim"]

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
#: ln(2) less its fp32, 0.693147182464599609375.
LN_2_REST = -1.904654299957767878541e-9

# From here on 2^t is infinite, and here r is positive: infinity times 1 + r is infinite, not NaN.
_HIGHEST = 88.72283935546875
# No r is as large, unless d is infinite and r is not a number.
_MOST_REST = 0.01


def exp(x: Any, *, exact: bool = True) -> Any:
    """e^x.

    Args:
        x: a vector or a number of fp32 or fp64.
        exact: fp32 within about 2.5 ulp, which costs five more instructions an element; otherwise
            within (4 + 3 abs(x)) 2^-24, relatively.  fp64 is always exact.
    """
    dtype = x.dtype if isinstance(x, TensorSSA) else type(x)
    if dtype is not Float32:
        return cute.math.exp(x)
    if not exact:
        return cute.math.exp2(x * LOG2_E, fastmath=True)
    if not isinstance(x, TensorSSA):
        return _exact(x)
    rX = cute.make_rmem_tensor(x.shape, Float32)
    rX.store(x)
    for i in range(cute.size(rX)):
        rX[i] = _exact(rX[i])
    return rX.load()


def _exact(d: Float32) -> Float32:
    d = cute.arch.fmin(d, Float32(_HIGHEST), nan=True)
    t = d * Float32(LOG2_E)
    rest = cute.math.fma(-t, Float32(LN_2_REST), cute.math.fma(-t, Float32(LN_2), d))
    power = cute.math.exp2(t, fastmath=True)
    # Of a number and NaN the minimum is the number, so that e^-inf is 0; NaN comes back from 2^t.
    return Float32(cute.math.fma(power, cute.arch.fmin(rest, Float32(_MOST_REST)), power))


@cute.jit
def step_dim(n: Int64, size: Uint32, strides: tuple, offsets: tuple):
    """A number along several dims: takes the innermost one out, which costs a branch where it has size 1.

    Args:
        n: the number; below 2^32, unless the size is 1.
        size: of the dim.
        strides: of the dim, in several tensors.
        offsets: of the dims taken out before, in each of them.

    Returns:
        The number along the other dims, and the offsets.
    """
    if size != 1:
        quotient = Int64(Uint32(n) // size)
        place = n - quotient * Int64(size)
        offsets = tuple(offset + place * stride for offset, stride in zip(offsets, strides, strict=True))
        n = quotient
    return n, offsets
