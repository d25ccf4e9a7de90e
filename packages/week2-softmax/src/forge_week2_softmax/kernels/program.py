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

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
import torch
from cutlass import BFloat16, Boolean, Float16, Float32, Int32, Uint8, Uint32

from forge_core.device_code.memory import elements_at, load_element, store_element
from forge_core.device_code.monoid import Maximum, Monoid, Sum, lowest
from forge_core.device_code.online import MaxSum, exponential, packed_maximum, strand_sum, tree
from forge_core.dtypes import cute_dtype
from forge_week2_softmax.arithmetic import Arithmetic

__all__ = ["Program"]

#: Running sums of a thread that do not wait for each other.
STRANDS = 4


def _stored(dtype: torch.dtype) -> Any:
    # A bool lies in memory as a byte.
    return Uint8 if dtype is torch.bool else cute_dtype(dtype)


def _whole_words(rChunks: Any) -> bool:
    """Whether 16-bit elements lie in pairs: all of a chunk, and not one place of many."""
    inner = cute.rank(rChunks) - 1
    stride = rChunks.stride[inner] if isinstance(rChunks.stride, tuple) else rChunks.stride
    return bool(stride == 1 and cute.size(rChunks, mode=[inner]) % 2 == 0)


@dataclass(frozen=True)
class Program:
    """The steps of one computation.

    Frozen, so that the DSL lets it be used inside branches and loops.

    Attributes:
        arithmetic: what is computed.
    """

    arithmetic: Arithmetic

    @property
    def acc(self) -> Any:
        """The type that everything is computed in."""
        return cute_dtype(self.arithmetic.acc)

    @property
    def dst(self) -> Any:
        """The type of a result in memory."""
        return _stored(self.arithmetic.dst)

    @property
    def sides(self) -> int:
        """Tensors: those that are read, and the one that is written."""
        return len(self.arithmetic.sources) + 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """For each tensor, bytes of an element."""
        return tuple(d.itemsize for d in (*self.arithmetic.sources, self.arithmetic.dst))

    @property
    def elements(self) -> tuple[int, ...]:
        """The tensors that are read element by element, by number."""
        return tuple(i for i, on_row in enumerate(self.arithmetic.on_rows[:-1]) if not on_row)

    @property
    def scalars(self) -> tuple[int, ...]:
        """The tensors of which a row has one element, by number."""
        return tuple(i for i, on_row in enumerate(self.arithmetic.on_rows[:-1]) if on_row)

    @property
    def one_result(self) -> bool:
        """Whether a row has one result."""
        return self.arithmetic.on_rows[-1]

    @property
    def monoid(self) -> Monoid | None:
        """How two accumulators become one; None where there is nothing to reduce."""
        if not self.arithmetic.backward:
            return MaxSum(self.acc)
        return None if self.arithmetic.op == "logsumexp" else Sum(self.acc)

    # -- elements -----------------------------------------------------------------------------------------------

    def src(self, side: int) -> Any:
        """The type of an element in memory."""
        return _stored(self.arithmetic.sources[side])

    def kept(self, side: int) -> Any:
        """The type in which an element waits in registers: as it is stored, but integers as what they become."""
        dtype = self.arithmetic.sources[side]
        return cute_dtype(dtype if dtype.is_floating_point else self.arithmetic.via)

    def neutral(self, side: int) -> Any:
        """What stands where there is no element: it changes no accumulator."""
        return self.kept(side)(0.0 if self.arithmetic.backward else float("-inf"))

    def load(self, side: int, address: Any) -> Any:
        """The element at an address, as it waits in registers."""
        x = load_element(address, self.src(side))
        return x if self.src(side) is self.kept(side) else self._from_integer(side, x)

    def fetch(self, side: int, address: Any, rChunk: Any) -> None:
        """Loads a chunk, whose address is a multiple of its bytes (or of 16)."""
        count = cute.size(rChunk)
        if self.src(side) is self.kept(side):
            cute.autovec_copy(elements_at(address, self.src(side), count), rChunk)
            return
        rRaw = cute.make_rmem_tensor(count, self.src(side))
        cute.autovec_copy(elements_at(address, self.src(side), count), rRaw)
        for i in range(count):
            rChunk[i] = self._from_integer(side, rRaw[i])

    def _from_integer(self, side: int, x: Any) -> Any:
        if self.arithmetic.sources[side] is torch.bool:
            x = Int32(Boolean(x != Uint8(0)))
        target = self.kept(side)
        # PyTorch rounds an integer to fp32 before it rounds it to a 16-bit type.
        return x.to(Float32).to(target) if target.width < 32 else x.to(target)

    def forget(self, chunks: list[Any], zero: Any) -> None:
        """Makes the compiler forget what it computed from some chunks of 16-bit elements.

        It would otherwise keep their conversions to 32 bits from the reduction to the map, in twice the registers, and
        half as many blocks would be resident.

        Args:
            chunks: for each tensor of :attr:`elements`, registers.
            zero: a 32-bit zero that the compiler does not know to be one.
        """
        for side, rChunks in zip(self.elements, chunks, strict=True):
            if self.kept(side).width == 16 and _whole_words(rChunks):
                rWords = cute.recast_tensor(rChunks, Uint32)
                for i in range(cute.size(rWords)):
                    rWords[i] = rWords[i] ^ zero

    def value(self, side: int, x: Any) -> Any:
        """An element as it waits in registers, in the type of the computation."""
        if not self.arithmetic.backward:
            via = cute_dtype(self.arithmetic.via)
            x = x if self.kept(side) is via else x.to(via)
        return x if type(x) is self.acc else x.to(self.acc)

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
        columns = self._values(chunks)
        if not self.arithmetic.backward:
            return MaxSum(self.acc).of([x for (x,) in columns], STRANDS, self._packed_top(chunks[0]))
        return (strand_sum([self.term(*column) for column in columns], STRANDS),)

    def _packed_top(self, rChunks: Any) -> Any:
        """The maximum of 16-bit elements, two at a time, without their conversions; None for others."""
        kept = self.kept(0)
        kind = {Float16: "f16x2", BFloat16: "bf16x2"}.get(kept)
        if kind is None or cute_dtype(self.arithmetic.via) is not kept or not _whole_words(rChunks):
            return None
        rTop = cute.make_rmem_tensor(2, kept)
        cute.recast_tensor(rTop, Uint32)[0] = packed_maximum(cute.recast_tensor(rChunks, Uint32), kind)
        return Maximum(self.acc).combine((rTop[0].to(self.acc),), (rTop[1].to(self.acc),))[0]

    def term(self, g: Any, y: Any) -> Any:
        """What one element adds to the sum of a backward pass."""
        return g * y if self.arithmetic.op == "softmax" else g

    def _values(self, chunks: list[Any]) -> list[tuple[Any, ...]]:
        count = cute.size(chunks[0])
        return [
            tuple(self.value(side, chunk[i]) for side, chunk in zip(self.elements, chunks, strict=True))
            for i in range(count)
        ]

    # -- the three passes of naive ------------------------------------------------------------------------------

    def top(self, chunks: list[Any]) -> Any:
        """The maximum of some elements."""
        return tree([column for column in self._values(chunks)], Maximum(self.acc).combine)[0]

    def sum_below(self, chunks: list[Any], top: Any) -> Any:
        """The sum of exp(x - top) over some elements."""
        base = self.acc(cutlass.select_(top == lowest(self.acc), self.acc(0), top))
        return strand_sum([exponential(x - base) for (x,) in self._values(chunks)], STRANDS)

    # -- results ------------------------------------------------------------------------------------------------

    def constants(self, total: tuple[Any, ...], scalars: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the map needs to know of a row; computed once a row.

        Args:
            total: the row's accumulator.
            scalars: the row's element of each tensor of :attr:`scalars`, in the type of the computation.
        """
        if self.arithmetic.backward:
            return total or scalars
        if self.arithmetic.op == "softmax":
            return total[0], self.acc(1) / total[1]
        return total[0], cute.math.log(total[1])

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
