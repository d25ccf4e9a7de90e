"""The (max, sum) monoid of online softmax: a maximum and a sum of exponentials in one pass.

A set X of numbers has the pair

    (m, s)        m = max of X,        s = sum over x in X of exp(x - m)

and the pair of a union follows from the pairs of its parts, with m = max(a, b):

    (a, s) + (b, t) = (m,  s exp(a - m) + t exp(b - m))

*Proof.*  For a part with maximum a, s exp(a - m) = sum of exp(x - a) exp(a - m) = sum of exp(x - m).  The sums of two
disjoint parts add up to the sum of the union, and the maximum of the union is m.  So any tree of merges over a row
gives the same pair: merging is associative and commutative.  The identity is (-inf, 0), since exp(-inf) = 0.

*In floating point.*  One of the two factors is exp(0) = 1, so a merge takes one exponential and one fused
multiply-add: s + t e, where e belongs to the smaller maximum.  This does not depend on the order of the operands, so
two lanes that exchange their pairs get the same bits.  When several pairs are merged at once, all are scaled to their
common maximum and then added.  Each merge rounds once, relative to a sum of non-negative terms; a tree of depth k
therefore adds a relative error of at most k 2^-24 (for fp32) to the sum, beside that of the exponentials.

*The exponential.*  With d = fl(x - m) <= 0, rounding d, log2(e) and their product shifts the exponent by at most
3 |d| 2^-24 relative to e, and ``ex2.approx.ftz`` adds 2^-22, so

    |exp computed - exp(x - m)|  <=  (4 + 3 |d|) 2^-24 exp(d)  <=  5.2 * 2^-24

since |d| exp(d) <= 1/e; results below 2^-126 become 0.  The maximum is subtracted before the multiplication and not
folded into it as fma(x, log2 e, -m log2 e): rounding m log2(e) would leave a factor of 2^(m 2^-24), which overflows for
a row such as 1e30, 1e30.
"""

from __future__ import annotations

import operator
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from forge_core.cute.math import exp
from forge_core.cute.monoid import Maximum, Sum, Uniform, lowest


def reciprocal(x: Any) -> Any:
    """1 / x, correctly rounded, for x from 1 to 2^126 or NaN; NaN for 0 in fp32.

    The compiler's division is the same sequence, and a branch with a call for operands whose reciprocal is subnormal:
    a quarter of the code of a kernel for short rows.
    """
    if not isinstance(x, Float32):
        return type(x)(1) / x
    return cute.arch.inline_ptx(
        "{\n\t.reg .f32 first, off;\n\t"
        "rcp.approx.ftz.f32 first, {$r0};\n\t"
        "fma.rn.f32 off, {$r0}, first, 0fBF800000;\n\t"
        "neg.f32 off, off;\n\t"
        "fma.rn.f32 {$w0}, first, off, first;\n\t}",
        write_only_types=[Float32],
        read_only_args=[x],
    )


def exponential(x: Any) -> Any:
    """exp(x); fp32: within (4 + 3 |x|) 2^-24, relatively, and 0 below 2^-126."""
    return exp(x, exact=False)


class MaxSum(Uniform):
    """The pair of a union, of fp32 or fp64; propagates NaN."""

    parts = 2

    def identity(self) -> tuple[Any, ...]:
        return (lowest(self.dtype), self.dtype(0))

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        first = a[0] >= b[0]
        high = self.dtype(cutlass.select_(first, a[0], b[0]))
        low = self.dtype(cutlass.select_(first, b[0], a[0]))
        high_sum = self.dtype(cutlass.select_(first, a[1], b[1]))
        low_sum = self.dtype(cutlass.select_(first, b[1], a[1]))
        # The difference of equal maxima would be NaN for -inf.
        factor = self.dtype(cutlass.select_(low == high, self.dtype(1), exponential(low - high)))
        return Maximum(self.dtype).combine((high,), (low,))[0], high_sum + low_sum * factor

    def together(self, acc: tuple[Any, ...], across: Any) -> tuple[Any, ...]:
        """Reduces over lanes: the maximum, one exponential per lane, then a sum."""
        top = across(acc[0], Maximum(self.dtype))
        return top, across(acc[1] * exponential(acc[0] - self.base(top)), Sum(self.dtype))

    def many(self, pairs: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Combines several pairs, with independent exponentials."""
        (top,) = _tree([pair[:1] for pair in pairs], Maximum(self.dtype).combine)
        base = self.base(top)
        return top, _tree([pair[1] * exponential(pair[0] - base) for pair in pairs], operator.add)

    def base(self, top: Any) -> Any:
        """What to subtract before exponentiation, given the maximum: 0 for -inf, which avoids -inf - -inf."""
        return self.dtype(cutlass.select_(top == lowest(self.dtype), self.dtype(0), top))


def _tree(parts: list[Any], combine: Any) -> Any:
    """Pairwise tree reduction: combines element i with i + ceil(n / 2)."""
    while len(parts) > 1:
        half = (len(parts) + 1) // 2
        parts = [combine(parts[i], parts[i + half]) if i + half < len(parts) else parts[i] for i in range(half)]
    return parts[0]
