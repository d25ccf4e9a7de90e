"""The elements of a row on the GPU: how they are stored, how they wait in registers, how they are read.

    memory -> registers (as stored; integers as what they become) -> via -> the type of the computation

Elements wait as they are stored, so that a row of 16-bit elements takes half the registers of one in fp32; each is
converted where it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
import torch
from cutlass import Boolean, Float32, Int32, Uint8, Uint32

from forge_core.cute.memory import elements_at, load_element
from forge_core.dtypes import cute_dtype
from forge_week2_softmax.arithmetic import Arithmetic

__all__ = ["Elements", "whole_words"]


def _stored(dtype: torch.dtype) -> Any:
    # A bool lies in memory as a byte.
    return Uint8 if dtype is torch.bool else cute_dtype(dtype)


def whole_words(rChunks: Any) -> bool:
    """Whether 16-bit elements lie in pairs: all of a chunk, and not one place of many."""
    inner = cute.rank(rChunks) - 1
    stride = rChunks.stride[inner] if isinstance(rChunks.stride, tuple) else rChunks.stride
    return bool(stride == 1 and cute.size(rChunks, mode=[inner]) % 2 == 0)


@dataclass(frozen=True)
class Elements:
    """The elements of one computation's tensors.

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

    def src(self, side: int) -> Any:
        """The type of an element in memory."""
        return _stored(self.arithmetic.sources[side])

    def kept(self, side: int) -> Any:
        """The type in which an element waits in registers: as it is stored, but integers as what they become."""
        dtype = self.arithmetic.sources[side]
        return cute_dtype(dtype if dtype.is_floating_point else self.arithmetic.via)

    def words(self, side: int, vector: int) -> int:
        """Words of 32 bits of a chunk, if it waits as it is stored and is 1, 2 or 4 of them; else 0, and for fp64."""
        width = vector * self.sizes[side]
        return width // 4 if self.src(side) is self.kept(side) and self.acc is Float32 and width in (4, 8, 16) else 0

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
            if self.kept(side).width == 16 and whole_words(rChunks):
                rWords = cute.recast_tensor(rChunks, Uint32)
                for i in range(cute.size(rWords)):
                    rWords[i] = rWords[i] ^ zero

    def value(self, side: int, x: Any) -> Any:
        """An element as it waits in registers, in the type of the computation."""
        if not self.arithmetic.backward:
            via = cute_dtype(self.arithmetic.via)
            x = x if self.kept(side) is via else x.to(via)
        return x if type(x) is self.acc else x.to(self.acc)
