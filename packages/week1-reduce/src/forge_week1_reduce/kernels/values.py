"""An :class:`~forge_week1_reduce.arithmetic.Arithmetic` on the GPU: how elements become accumulators, and results.

    memory -> registers (as stored) -> via -> accumulator lanes -> one accumulator -> result

A thread that loads V elements at once has V accumulators, one for each place in the load: V chains of additions that
do not wait for each other, and a tree that is that much flatter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
import torch
from cutlass import Boolean, Float32, Float64, Int32, Int64, Uint8, Uint32

from forge_core.cute.hold import load_held
from forge_core.cute.memory import CHUNK, elements_at, load_element, store_element
from forge_core.cute.monoid import Maximum, Minimum, Monoid, Product, Sum
from forge_core.dtypes import cute_dtype
from forge_week1_reduce.arithmetic import Arithmetic

__all__ = ["Values"]

_MONOIDS: dict[str, Any] = {"sum": Sum, "mean": Sum, "prod": Product, "amax": Maximum, "amin": Minimum}


def _stored(dtype: torch.dtype) -> Any:
    # A bool lies in memory as a byte.
    return Uint8 if dtype is torch.bool else cute_dtype(dtype)


@dataclass(frozen=True)
class Values:
    """The steps of one computation.

    Frozen, so that the DSL lets it be used inside branches and loops.

    Attributes:
        arithmetic: what is computed.
    """

    arithmetic: Arithmetic

    @property
    def src(self) -> Any:
        """The type of an element in memory."""
        return _stored(self.arithmetic.src)

    @property
    def acc(self) -> Any:
        """The type of an accumulator."""
        return cute_dtype(self.arithmetic.acc)

    @property
    def dst(self) -> Any:
        """The type of a result in memory."""
        return _stored(self.arithmetic.dst)

    @property
    def monoid(self) -> Monoid:
        """How two accumulators become one."""
        monoid: Monoid = _MONOIDS[self.arithmetic.op](self.acc)
        return monoid

    @property
    def size(self) -> int:
        """Bytes of an element in memory."""
        return self.arithmetic.src.itemsize

    @property
    def narrow(self) -> bool:
        """Whether a load is added up in 32 bits first.

        Up to 16 small integers cannot overflow them, and one 64-bit addition for all of them is then enough.
        """
        kinds = (self.arithmetic.via, self.arithmetic.src)
        return self.arithmetic.op == "sum" and self.size <= 2 and not any(kind.is_floating_point for kind in kinds)

    # -- elements -----------------------------------------------------------------------------------------------

    def convert(self, x: Any, target: Any = None) -> Any:
        """One element as it is stored, to an accumulator (or to ``target``)."""
        target = target or self.acc
        via, src = self.arithmetic.via, self.arithmetic.src
        if src is torch.bool:
            x = Int32(Boolean(x != Uint8(0)))
        if via is torch.bool and src is not torch.bool:
            x = Int32(Boolean(x != self.src(0)))
        elif via is not src and via is not torch.bool:
            if src.is_floating_point and not via.is_floating_point:
                x = x.to(Float64 if src is torch.float64 else Float32).to(Int64)
            x = x.to(cute_dtype(via))
        return x.to(target)

    def load(self, address: Any) -> Any:
        """The element at an address, as an accumulator's part."""
        return self.convert(load_element(address, self.src))

    def neutral(self) -> Any:
        """An element, as stored, that changes no accumulator which has seen another one."""
        op = self.arithmetic.op
        if op in ("sum", "mean"):
            return self.src(0)
        if op == "prod":
            return self.src(1)
        return (Maximum if op == "amax" else Minimum)(self.src).identity()[0]

    # -- loads of several elements ------------------------------------------------------------------------------

    def vector(self, width: int) -> int:
        """Elements of a load of ``width`` bytes."""
        return width // self.size

    def lanes(self, width: int) -> int:
        """Accumulators of a thread that loads ``width`` bytes at once."""
        return 1 if self.narrow else self.vector(width)

    def new_lanes(self, width: int) -> Any:
        """Accumulators in registers, all of nothing."""
        return self.new_strands(self.lanes(width))

    def new_strands(self, count: int) -> Any:
        """``count`` accumulators in registers, all of nothing."""
        rAcc = cute.make_rmem_tensor(count, self.acc)
        for i in range(count):
            rAcc[i] = self.monoid.identity()[0]
        return rAcc

    def new_chunks(self, count: int, width: int) -> Any:
        """Registers for ``count`` loads; a row of the tensor is one."""
        vector = self.vector(width)
        return cute.make_rmem_tensor(cute.make_layout((count, vector), stride=(vector, 1)), self.src)

    def clear(self, rChunk: Any) -> None:
        """Fills a load's registers with what changes nothing."""
        for i in range(cute.size(rChunk)):
            rChunk[i] = self.neutral()

    def fetch(self, address: Any, rChunk: Any, *, once: bool = False, policy: Any = None) -> None:
        """Loads a chunk, whose address is a multiple of its bytes.

        Args:
            address: in bytes.
            rChunk: where to.
            once: nobody reads these 16 bytes again: the load asks the caches to keep others instead.
            policy: that of ``hold.hold_policy`` for 16 bytes that the L2 is to keep; None for no wish.
        """
        if policy is not None:
            load_held(address, cute.recast_tensor(rChunk, Uint32), CHUNK, policy)
            return
        if not once:
            cute.autovec_copy(elements_at(address, self.src, cute.size(rChunk)), rChunk)
            return
        # A copy's cache hint does not reach the instruction in CuTe DSL 4.8, so the instruction is written out.
        words = cute.arch.inline_ptx(
            "ld.global.L1::no_allocate.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
            write_only_types=[Int32] * 4,
            read_only_args=[address],
        )
        rWords = cute.recast_tensor(rChunk, Int32)
        for i, word in enumerate(words):
            rWords[i] = word

    def add(self, rChunk: Any, rAcc: Any) -> None:
        """Adds a chunk to a thread's accumulators of one row: place by place, or all to one."""
        count = cute.size(rChunk)
        if self.narrow:
            total = self.convert(rChunk[0], Int32)
            for i in range(1, count):
                total = total + self.convert(rChunk[i], Int32)
            rAcc[0] = rAcc[0] + Int64(total)
        else:
            self.add_places(rChunk, rAcc)

    def add_places(self, rChunk: Any, rAcc: Any) -> None:
        """Adds a chunk place by place, whatever the type: each place is a column of its own."""
        for i in range(cute.size(rChunk)):
            rAcc[i] = self.monoid.combine((rAcc[i],), (self.convert(rChunk[i]),))[0]

    def add_element(self, address: Any, rAcc: Any) -> None:
        """Adds the element at an address to a thread's first accumulator."""
        rAcc[0] = self.monoid.combine((rAcc[0],), (self.load(address),))[0]

    def collapse(self, rAcc: Any) -> tuple[Any, ...]:
        """A thread's accumulators become one, in a tree."""
        parts = [(rAcc[i],) for i in range(cute.size(rAcc))]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self.monoid.combine(parts[i], parts[i + half]) for i in range(half)]
        return parts[0]

    # -- results ------------------------------------------------------------------------------------------------

    def result(self, acc: Any, count: Any) -> Any:
        """An accumulator of ``count`` elements, as it is stored."""
        if self.arithmetic.op == "mean":
            acc = acc / self.acc(count)
        if self.arithmetic.dst is torch.bool:
            return Uint8(Boolean(acc != self.acc(0)))
        return acc if self.dst is self.acc else acc.to(self.dst)

    def store(self, acc: tuple[Any, ...], count: Any, address: Any) -> None:
        """Writes the result of an accumulator."""
        store_element(self.result(acc[0], count), address, self.dst)
