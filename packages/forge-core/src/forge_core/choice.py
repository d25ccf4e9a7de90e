"""Common parts of kernel selection: a kernel returns a configuration for a problem, or a :class:`Refusal`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NoReturn

from forge_core.device import Device
from forge_core.errors import ArgumentError, UnsupportedError


@dataclass(frozen=True)
class Refusal:
    """Why a kernel does not support a problem."""

    needs: str  #: what it requires, for example "contiguous rows"
    got: str  #: what the problem has instead

    def __str__(self) -> str:
        return f"needs {self.needs}; got {self.got}"


def power_of_two(n: int) -> int:
    """The smallest power of two not below ``n``; 1 for 0 and less."""
    return 1 << max(n - 1, 0).bit_length()


def max_cluster(device: Device) -> int:
    """Blocks of the largest cluster, non-portable sizes included; 1 before sm_90."""
    if device.capability < (9, 0):
        return 1
    return 16 if device.capability[0] in (9, 10) else 8


def require_known(op: str, variant: str, variants: Collection[str]) -> None:
    """Raises ArgumentError unless ``variant`` is among an operator's; ``"auto"`` is not among them."""
    if variant not in variants:
        expected = f"'auto' or one of {', '.join(map(repr, variants))}"
        raise ArgumentError(op, "variant", expected, repr(variant))


def refuse(op: str, variant: str, reason: Refusal, supported: Iterable[str]) -> NoReturn:
    """Raises UnsupportedError for a call that a variant, or with ``"auto"`` every kernel, does not support.

    Args:
        op: the operator's name.
        variant: ``"auto"``, or the variant that was requested by name.
        reason: what the call lacks.
        supported: the variants that support the call, which the message lists.
    """
    text = f"{op}: no kernel supports this call: it {reason}. PyTorch computes it with FORGE_BACKEND=ref."
    if variant != "auto":
        others = ", ".join(map(repr, supported)) or "none"
        text = (
            f"{op}: variant {variant!r} was asked for, and it {reason}. "
            f"Variants that can do this call: {others}; or leave variant='auto'."
        )
    raise UnsupportedError(text, requirement=reason.needs)
