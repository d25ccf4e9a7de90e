"""Elementary functions of vectors (``TensorSSA``) and numbers, with stated errors.

``exp``, exact, for fp32 and d <= 0:

    t = fl(d L)                       L = log2(e), rounded to fp32; L + M = log2(e) to 48 bits
    r = fma(d, L, -t) + d M           what the product lost, and what L lacks: |r| <= 2^-23 |t|
    e^d = 2^t 2^r = 2^t (1 + r ln 2)  the next term, (r ln 2)^2 / 2, is below 2^-30 for d > -2^7

So the error is that of ``ex2.approx.ftz`` (2 ulp) and of one fused multiply-add, whatever d is, where rounding d L
alone shifts the result by |d| 2^-24.  Below 2^-126 the result is 0.
"""

from __future__ import annotations

import math
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int64, Uint32
from cutlass.cute import TensorSSA

__all__ = ["LN_2", "LOG2_E", "LOG2_E_REST", "divide", "exp"]

LOG2_E = math.log2(math.e)
#: log2(e) less its fp32, 1.44269502162933349609375.
LOG2_E_REST = 1.92596299112661746887e-8
LN_2 = math.log(2)

# Below it e^d is 0 in fp32, and above it no term is infinite less infinite.
_LOWEST = -200.0


def exp(x: Any, *, exact: bool = True) -> Any:
    """e^x.

    Args:
        x: a vector or a number of fp32 or fp64.
        exact: fp32 within about 2.5 ulp, which costs seven more instructions an element; otherwise
            within (4 + 3 |x|) 2^-24, relatively.  fp64 is always exact.
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
    d = cute.arch.fmax(d, Float32(_LOWEST), nan=True)
    t = d * Float32(LOG2_E)
    rest = cute.math.fma(d, Float32(LOG2_E), -t) + d * Float32(LOG2_E_REST)
    power = cute.math.exp2(t, fastmath=True)
    # Where 2^t is infinite, the rest may be of the other sign, or NaN.
    return Float32(cutlass.select_(t >= 128.0, power, cute.math.fma(power, rest * Float32(LN_2), power)))


@cute.jit
def divide(n: Int64, by: Uint32):
    """Quotient and rest of a number below 2^32, or of any number by 1, which costs a branch."""
    quotient, rest = n, Uint32(0)
    if by != 1:
        quotient = Int64(Uint32(n) // by)
        rest = Uint32(n) - Uint32(quotient) * by
    return quotient, rest
