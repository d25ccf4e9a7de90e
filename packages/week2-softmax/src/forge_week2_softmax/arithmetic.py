"""What is computed: the operators of the family, the dtypes of each tensor, and where the rounding happens.

forward     x --convert--> via --exactly--> accumulator ... (max, sum) ... map --round--> result
backward    grad, saved --exactly--> accumulator ... sum ... map --round--> gradient of the input

fp16, bf16 and fp32 accumulate in fp32, fp64 in fp64.  ``dtype=`` of a call is ``via``: each element is rounded to it as
it is loaded, as PyTorch's conversion in front of the operator would, without that conversion's pass over memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["OPS", "Arithmetic"]

#: The family.
OPS = ("softmax", "log_softmax", "logsumexp")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Arithmetic:
    """One computation; make it with :meth:`forward` or :meth:`backward_of`.

    Attributes:
        op: one of :data:`OPS`.
        backward: the gradient of it.
        sources: the dtypes of the tensors that are read, in the order of the operator's arguments.
        dst: the dtype of the tensor that is written.
        via: what an element of the first source is converted to before anything is computed from it.
        acc: what is computed in.
    """

    op: str
    backward: bool
    sources: tuple[torch.dtype, ...]
    dst: torch.dtype
    via: torch.dtype
    acc: torch.dtype

    @classmethod
    def forward(cls, op: str, x: torch.dtype, out: torch.dtype, convert: torch.dtype | None) -> Arithmetic:
        """Of an operator on ``x``, rounded to ``convert`` first where that is not None."""
        via = convert or x
        acc = torch.float64 if via is torch.float64 else torch.float32
        return cls(op, backward=False, sources=(x,), dst=out, via=via, acc=acc)

    @classmethod
    def backward_of(cls, op: str, sources: tuple[torch.dtype, ...], grad_input: torch.dtype) -> Arithmetic:
        """Of an operator's gradient from ``grad`` and what the forward pass saved."""
        acc = torch.float64 if torch.float64 in sources else torch.float32
        return cls(op, backward=True, sources=sources, dst=grad_input, via=sources[0], acc=acc)

    @property
    def on_rows(self) -> tuple[bool, ...]:
        """For each source and then the destination: whether it has one element a row, and not one an element."""
        if self.op != "logsumexp":
            return (False,) * (len(self.sources) + 1)
        return (True, False, True, False) if self.backward else (False, True)

    @property
    def rounds_first(self) -> bool:
        """Whether each element is rounded to 16 bits as it is used: a row then takes the registers of its roundings.

        The compiler keeps them from one use to the next, and the maximum cannot be taken of elements as they lie.
        """
        stored = self.sources[0]
        return self.via.itemsize == 2 and self.via != stored and stored.is_floating_point

    @property
    def name(self) -> str:
        """For kernel names: ``softmax_bfloat16``, with what else takes part where that differs."""
        main = self.sources[1] if self.backward else self.sources[0]
        parts = [self.op + ("_backward" if self.backward else ""), _name(main)]
        if not self.backward and self.via != main:
            parts.append(f"as_{_name(self.via)}")
        if self.backward and self.sources[0] != main:
            parts.append(f"grad_{_name(self.sources[0])}")
        if self.dst not in (main, self.via):
            parts.append(f"to_{_name(self.dst)}")
        return "_".join(parts)
