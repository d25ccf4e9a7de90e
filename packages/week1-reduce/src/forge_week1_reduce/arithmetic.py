"""What is computed: the operators of the family, their dtypes, and where the rounding happens.

stored dtype --convert--> via --exactly--> accumulator ... combine ... --finish--> result

sum, mean, prod    fp16, bf16, fp32 accumulate in fp32, fp64 in fp64, integers and bool in int64
amax, amin         in a type that holds every value exactly: fp32, fp64, int32 or int64
dtype=             each element is converted to it first, as PyTorch does
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from forge_core.dtypes import FLOATS, INTEGERS
from forge_core.errors import DTypeError

__all__ = ["DTYPES", "OPS", "Arithmetic", "result_dtype"]

#: The family; ``max`` and ``min`` are other names of the last two.
OPS = ("sum", "mean", "prod", "amax", "amin")

#: What the operators take.
DTYPES: tuple[torch.dtype, ...] = (*INTEGERS, *FLOATS)


def _name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def result_dtype(op: str, src: torch.dtype, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of a result, by PyTorch's rules.

    Args:
        op: one of :data:`OPS`.
        src: the input's.
        dtype: what the caller asked for, or None.

    Raises:
        DTypeError: a dtype that the family does not take, or a mean of integers.
    """
    if dtype is not None and dtype not in DTYPES:
        raise DTypeError(
            op=op, argument="dtype", expected=f"None or one of {', '.join(map(_name, DTYPES))}", got=_name(dtype)
        )
    if op == "mean" and not (dtype or src).is_floating_point:
        raise DTypeError(
            op=op,
            argument="x" if dtype is None else "dtype",
            expected="a floating-point dtype (float16, bfloat16, float32, float64), since a mean is none of the others",
            got=_name(dtype or src),
            hint="Pass dtype=torch.float32.",
        )
    if dtype is not None:
        return dtype
    if op in ("sum", "prod") and not src.is_floating_point:
        return torch.int64
    return src


@dataclass(frozen=True)
class Arithmetic:
    """One computation; make it with :meth:`of`.

    Attributes:
        op: one of :data:`OPS`.
        src: the dtype in memory.
        via: what each element is converted to first.
        acc: what is accumulated in.
        dst: the dtype of the result.
    """

    op: str
    src: torch.dtype
    via: torch.dtype
    acc: torch.dtype
    dst: torch.dtype

    @classmethod
    def of(cls, op: str, src: torch.dtype, dst: torch.dtype, dtype: torch.dtype | None) -> Arithmetic:
        """The computation of an operator on ``src``, with the ``dtype=`` of the call."""
        via = dtype or src
        if op in ("sum", "prod") and via is torch.bool and dst is torch.bool:
            # Arithmetic on truth values: a sum is "any", a product is "all".
            op = "amax" if op == "sum" else "amin"
        if via is torch.float64:
            acc = torch.float64
        elif via.is_floating_point:
            acc = torch.float32
        elif op in ("amax", "amin") and via is not torch.int64:
            acc = torch.int32
        else:
            acc = torch.int64
        return cls(op, src, via, acc, dst)

    @property
    def partial(self) -> Arithmetic:
        """From elements to accumulators, with nothing finished: the first of two passes."""
        return Arithmetic("sum" if self.op == "mean" else self.op, self.src, self.via, self.acc, self.acc)

    @property
    def final(self) -> Arithmetic:
        """From accumulators to the result: the second of two passes."""
        return Arithmetic(self.op, self.acc, self.acc, self.acc, self.dst)

    @property
    def name(self) -> str:
        """For kernel names: ``sum_bfloat16``, with what is written where that differs."""
        parts = [self.op, _name(self.src)]
        if self.via != self.src:
            parts.append(f"as_{_name(self.via)}")
        if self.dst not in (self.src, self.via):
            parts.append(f"to_{_name(self.dst)}")
        return "_".join(parts)
