"""Exponential of vectors (``TensorSSA``) and scalars with a stated error, conversion, and division of coordinates.

``exp``, exact, for fp32:

    t = fl(d L)                    L = log2(e), rounded to fp32
    r = d - t ln(2)                rounding errors of d L and L; two fused multiply-adds, with ln(2) to 48 bits
    e^d = 2^t e^r = 2^t (1 + r)    |r| <= 2^-23 |d|, so the next term, r^2 / 2, is below 2^-33

The error is that of ``ex2.approx.ftz`` (2 ulp) and one fused multiply-add for any d, where rounding d L alone adds a
relative error of abs(d) 2^-24.  Results below 2^-126 are 0.
"""

from __future__ import annotations

import math
from typing import Any

import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int64, Uint32
from cutlass.cute import TensorSSA

LOG2_E = math.log2(math.e)
LN_2 = math.log(2)
# ln(2) minus its fp32 value, 0.693147182464599609375.
LN_2_REST = -1.904654299957767878541e-9

# 2^t is infinite from here on, and r positive here: infinity * (1 + r) is infinity, not NaN.
_HIGHEST = 88.72283935546875
# Above any r; replaces the NaN of an infinite d.
_MOST_REST = 0.01


def exp(x: Any, *, exact: bool = True) -> Any:
    """e^x.

    Args:
        x: a vector or scalar of fp32 or fp64.
        exact: error of fp32 about 2.5 ulp, for five more instructions per element; otherwise (4 + 3 abs(x)) 2^-24,
            relatively.  No effect on fp64.
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
    # fmin of a number and NaN is the number, so that e^-inf is 0; a NaN d is propagated by 2^t.
    return Float32(cute.math.fma(power, cute.arch.fmin(rest, Float32(_MOST_REST)), power))


def widened(x: Any) -> Any:
    """A vector of bf16 in fp32, by one instruction an element; the compiler takes two for the upper half of a word."""
    if x.dtype is not BFloat16 or cute.size(x.shape) % 2:
        return x.to(Float32)
    rPacked, rX = (cute.make_rmem_tensor(x.shape, dtype) for dtype in (BFloat16, Float32))
    rPacked.store(x)
    rWords, rBits = (cute.recast_tensor(r, Uint32) for r in (rPacked, rX))
    for i in range(cute.size(rWords)):
        rBits[2 * i], rBits[2 * i + 1] = rWords[i] << 16, rWords[i] & Uint32(0xFFFF0000)
    return rX.load()


def divisor(n: Any) -> Any:
    """What divides a 32-bit integer by multiplication, made on the host: for ``//``, ``%`` and ``divmod`` of a kernel.

    A kernel that divides by an integer finds a reciprocal first, in twenty instructions.  Constants need no help.
    """
    return n if isinstance(getattr(n, "value", n), int) else cute.FastDivmodDivisorV2(n)


@cute.jit
def step_dims(n: Int64, dims: tuple, offsets: tuple, nested: Any):
    """Splits the coordinates of dims off a linear index; if all have size 1, that costs one branch.

    A branch for each dim would be several jumps ahead of a kernel's first load, over code that a cold cache lacks.

    Args:
        n: linear index; below 2^32 unless all sizes are 1.
        dims: of each dim, the innermost first: its size, and its stride in each tensor.
        offsets: offset in each tensor.
        nested: the bitwise or of the sizes, 1 if all are 1.

    Returns:
        The linear index of the remaining dims, and the offsets with those of these dims added.
    """
    if nested != 1:
        for size, strides in dims:
            quotient = Int64(Uint32(n) // Uint32(size))
            place = n - quotient * Int64(size)
            offsets = tuple(offset + place * stride for offset, stride in zip(offsets, strides, strict=True))
            n = quotient
    return n, offsets
