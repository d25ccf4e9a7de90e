"""A row program: an :class:`~forge_week2_softmax.arithmetic.Arithmetic` on the GPU.

Every kernel of this week is a skeleton, a way to move rows, that takes a program, what is done with a row:

    softmax               pair (m, s) of x        y  = exp(x - m) / s
    log_softmax           pair (m, s) of x        y  = (x - m) - log(s)
    logsumexp             pair (m, s) of x        one result a row: m + log(s)
    softmax backward      sum d of y * g          dx = y * (g - d)
    log_softmax backward  sum d of g              dx = g - exp(y) * d
    logsumexp backward    nothing to reduce       dx = g * exp(x - lse)          g and lse: one a row

A skeleton loads the elements of a row from each tensor that has them, lets :meth:`Program.absorb` reduce them,
combines the accumulators among threads, turns the total into the row's constants once, and maps each element.

Special values.  A row of nothing but -inf has the pair (-inf, 0): the map gives exp(-inf + inf) = NaN, and logsumexp
-inf.  +inf in a row makes the sum NaN, and so every result of a softmax; logsumexp is then +inf, which
:meth:`Program.result` sees to, once a row.  NaN wins every maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float16, Uint32

from forge_core.cute.memory import store_element
from forge_core.cute.monoid import Maximum, Sum, lowest
from forge_core.cute.online import MaxSum, exponential, packed_maximum, reciprocal, strand_sum, tree
from forge_core.cute.warp import reduce_part
from forge_core.dtypes import cute_dtype
from forge_week2_softmax.kernels.elements import Elements, whole_words

__all__ = ["Program"]

#: Running sums of a thread that do not wait for each other.
STRANDS = 4


@dataclass(frozen=True)
class Program(Elements):
    """The steps of one computation.

    Frozen, so that the DSL lets it be used inside branches and loops.
    """

    @property
    def one_result(self) -> bool:
        """Whether a row has one result."""
        return self.arithmetic.on_rows[-1]

    @property
    def monoid(self) -> Any:
        """How two accumulators become one, a ``Monoid``; None where there is nothing to reduce."""
        if not self.arithmetic.backward:
            return MaxSum(self.acc)
        return None if self.arithmetic.op == "logsumexp" else Sum(self.acc)

    # -- the reduction ------------------------------------------------------------------------------------------

    def new_accumulator(self) -> Any:
        """An accumulator of nothing, in registers."""
        identity = self.monoid.identity() if self.monoid else ()
        rAcc = cute.make_rmem_tensor(max(len(identity), 1), self.acc)
        self.put(rAcc, identity)
        return rAcc

    def put(self, rAcc: Any, acc: tuple[Any, ...]) -> None:
        """Writes an accumulator's parts."""
        for i, part in enumerate(acc):
            rAcc[i] = part

    def get(self, rAcc: Any) -> tuple[Any, ...]:
        """Reads an accumulator's parts."""
        return tuple(rAcc[i] for i in range(len(self.monoid.types))) if self.monoid else ()

    def absorb(self, rAcc: Any, chunks: list[Any]) -> None:
        """Reduces some elements into a thread's accumulator.

        Args:
            rAcc: the accumulator.
            chunks: for each tensor of :attr:`elements`, registers with the same number of elements.
        """
        if self.monoid is not None:
            self.put(rAcc, self.monoid.combine(self.get(rAcc), self.gather(chunks)))

    def gather(self, chunks: list[Any]) -> tuple[Any, ...]:
        """The accumulator of some elements."""
        return self.gather_all([lambda: [chunks]])

    def gather_all(self, groups: Sequence[Callable[[], Iterable[list[Any]]]]) -> tuple[Any, ...]:
        """The accumulator of some groups of elements.

        Args:
            groups: of each a function that gives its pieces one after the other, each as ``chunks`` of :meth:`absorb`;
                it is called for every pass over the elements, so what it reads need not stay in registers.
        """
        if self.arithmetic.backward:
            terms = [(self.term(*column) for piece in group() for column in self._values(piece)) for group in groups]
            return (tree([strand_sum(each, STRANDS) for each in terms], lambda a, b: a + b),)
        top = tree([self.top(piece) for group in groups for piece in group()], self._maximum)
        return top, tree([self._sum_below(group(), top) for group in groups], lambda a, b: a + b)

    def gather_row(self, groups: Sequence[Callable[[], Iterable[list[Any]]]], lanes: int) -> tuple[Any, ...]:
        """The accumulator of a row that some lanes of a warp share; each of them gets it.

        They find the row's maximum before they sum, so that an element has one exponential, which the map uses again,
        and the lanes' sums need no factors.  For a forward pass.

        Args:
            groups: as of :meth:`gather_all`, a lane's.
            lanes: a power of two up to 32.
        """
        top = tree([self.top(piece) for group in groups for piece in group()], self._maximum)
        top = reduce_part(top, Maximum(self.acc), lanes)
        own = tree([self._sum_below(group(), top) for group in groups], lambda a, b: a + b)
        return top, reduce_part(own, Sum(self.acc), lanes)

    def top(self, chunks: list[Any]) -> Any:
        """The maximum of some elements."""
        packed = self._packed_top(chunks[0])
        return tree([x for (x,) in self._values(chunks)], self._maximum) if packed is None else packed

    def sum_below(self, chunks: list[Any], top: Any) -> Any:
        """The sum of exp(x - top) over some elements."""
        return self._sum_below([chunks], top)

    def _sum_below(self, pieces: Iterable[list[Any]], top: Any) -> Any:
        base = MaxSum(self.acc).base(top)  # once a call, not once an element
        return strand_sum((exponential(x - base) for piece in pieces for (x,) in self._values(piece)), STRANDS)

    def _maximum(self, a: Any, b: Any) -> Any:
        return Maximum(self.acc).combine((a,), (b,))[0]

    def _packed_top(self, rChunks: Any) -> Any:
        """The maximum of 16-bit elements, two at a time, without their conversions; None for others."""
        kept = self.kept(0)
        kind = {Float16: "f16x2", BFloat16: "bf16x2"}.get(kept)
        if kind is None or cute_dtype(self.arithmetic.via) is not kept or not whole_words(rChunks):
            return None
        rTop = cute.make_rmem_tensor(2, kept)
        cute.recast_tensor(rTop, Uint32)[0] = packed_maximum(cute.recast_tensor(rChunks, Uint32), kind)
        return self._maximum(rTop[0].to(self.acc), rTop[1].to(self.acc))

    def term(self, g: Any, y: Any) -> Any:
        """What one element adds to the sum of a backward pass."""
        return g * y if self.arithmetic.op == "softmax" else g

    def _values(self, chunks: list[Any]) -> list[tuple[Any, ...]]:
        count = cute.size(chunks[0])
        return [
            tuple(self.value(side, chunk[i]) for side, chunk in zip(self.elements, chunks, strict=True))
            for i in range(count)
        ]

    # -- results ------------------------------------------------------------------------------------------------

    def constants(self, total: tuple[Any, ...], scalars: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the map needs to know of a row; computed once a row.

        Args:
            total: the row's accumulator.
            scalars: the row's element of each tensor of :attr:`scalars`, in the type of the computation.
        """
        if self.arithmetic.backward:
            return total or scalars
        # The base, not the maximum: of a row of nothing but -inf the sum makes the results NaN.  Where the row's sum
        # was taken below the same base, the compiler need not compute an exponential again.
        base = MaxSum(self.acc).base(total[0])
        return base, reciprocal(total[1]) if self.arithmetic.op == "softmax" else cute.math.log(total[1])

    def map(self, chunks: list[Any], constants: tuple[Any, ...], rOut: Any) -> None:
        """Computes the results of some elements.

        Args:
            chunks: as for :meth:`absorb`.
            constants: those of the row.
            rOut: registers for as many results, as they are stored.
        """
        for i in range(cute.size(chunks[0])):
            rOut[i] = self.outcome([rChunk[i] for rChunk in chunks], constants)

    def outcome(self, elements: list[Any], constants: tuple[Any, ...]) -> Any:
        """The result of one element of each tensor, from and to the types in which they wait and are stored."""
        column = tuple(self.value(side, x) for side, x in zip(self.elements, elements, strict=True))
        y = self.apply(column, constants)
        return y if self.dst is self.acc else y.to(self.dst)

    def apply(self, column: tuple[Any, ...], constants: tuple[Any, ...]) -> Any:
        """The result of one element."""
        op, backward = self.arithmetic.op, self.arithmetic.backward
        if not backward:
            below = column[0] - constants[0]
            return exponential(below) * constants[1] if op == "softmax" else below - constants[1]
        if op == "softmax":
            return column[1] * (column[0] - constants[0])
        if op == "log_softmax":
            return column[0] - exponential(column[1]) * constants[0]
        grad, lse = constants
        return grad * exponential(column[0] - lse)

    def result(self, total: tuple[Any, ...]) -> Any:
        """The result of a row, as it is stored."""
        top, total_sum = total
        infinite = (top == self.acc(float("inf"))) | (top == lowest(self.acc))
        y = self.acc(cutlass.select_(infinite, top, top + cute.math.log(total_sum)))
        return y if self.dst is self.acc else y.to(self.dst)

    def store_result(self, total: tuple[Any, ...], address: Any) -> None:
        """Writes the result of a row."""
        store_element(self.result(total), address, self.dst)
