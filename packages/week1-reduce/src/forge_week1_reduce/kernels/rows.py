"""What the kernels of the ladder share: the matrix and the result as tensors, the monoid of an operator, the walk.

    mX    (M, N):(s0, s1)     x, any strides
    mY    (M):(s0)            the results
    tXgX  (steps):(T * s1)    thread t's elements of a row: t, t + T, t + 2T, ...      T threads

A thread has four of its elements in flight, and an accumulator for each: four chains of additions that do not wait for
each other, and a smaller error of rounding.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from forge_core.cute.monoid import Maximum, Minimum, Monoid, Product, Sum
from forge_core.cute.strided import tensor
from forge_core.dtypes import cute_dtype
from forge_week1_reduce.config import NaiveConfig

__all__ = ["finish", "matrix", "monoid_of", "walk"]

_MONOIDS: dict[str, Any] = {"sum": Sum, "mean": Sum, "prod": Product, "amax": Maximum, "amin": Minimum}

#: Elements of a thread in flight.
STRANDS = 4


def monoid_of(config: NaiveConfig) -> Monoid:
    """How an operator combines; values are fp32."""
    found: Monoid = _MONOIDS[config.op](Float32)
    return found


def matrix(config: NaiveConfig, pX: Any, pY: Any, shape: tuple, xStrides: tuple, y0: Any) -> tuple[Any, Any]:
    """(M, N) of x, and (M) of the results."""
    dtype = cute_dtype(config.dtype)
    return tensor(pX, dtype, shape, xStrides), tensor(pY, dtype, shape[0], y0)


def finish(config: NaiveConfig, total: Any, length: Any) -> Any:
    """The result of a row, in its dtype."""
    total = total / Float32(length) if config.op == "mean" else total
    return total.to(cute_dtype(config.dtype))


@cute.jit
def walk(config: cutlass.Constexpr, gX: cute.Tensor, length: Any, thread: Int32) -> Any:
    """A thread's total of a row that ``config.threads`` threads take turns at."""
    monoid = monoid_of(config)
    tXgX = cute.local_partition(gX, cute.make_layout(config.threads), thread)
    steps = Int32((length - thread + (config.threads - 1)) // config.threads)
    rAcc = cute.make_rmem_tensor(STRANDS, Float32)
    rAcc.fill(monoid.identity()[0])
    for i in cutlass.range(0, steps, STRANDS, unroll=1):
        for k in cutlass.range_constexpr(STRANDS):
            inside = i + k < steps
            x = tXgX[cutlass.select_(inside, i + k, i)].to(Float32)
            x = Float32(cutlass.select_(inside, x, monoid.identity()[0]))
            rAcc[k] = monoid.combine((rAcc[k],), (x,))[0]
    half = monoid.combine((rAcc[0],), (rAcc[1],))
    return monoid.combine(half, monoid.combine((rAcc[2],), (rAcc[3],)))[0]
