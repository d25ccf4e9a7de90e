"""What kernel selection has in common: a kernel gives a configuration for a problem, or a :class:`Refusal`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NoReturn

from forge_core.device import Device
from forge_core.errors import ArgumentError, UnsupportedError

__all__ = ["Refusal", "max_cluster", "power_of_two", "refuse", "require_known"]


@dataclass(frozen=True)
class Refusal:
    """Why a kernel does not support a problem.

    Attributes:
        needs: what it requires, for example ``"contiguous rows"``.
        got: what the problem has instead.
    """

    needs: str
    got: str

    def __str__(self) -> str:
        return f"needs {self.needs}; got {self.got}"


def power_of_two(n: int) -> int:
    """The smallest power of two not below ``n``; 1 for 0 and less."""
    return 1 << max(n - 1, 0).bit_length()


def max_cluster(device: Device) -> int:
    """Blocks of the largest cluster: 16 where a GPU takes more than the 8 that every one from sm_90 on does, else 1."""
    if device.capability < (9, 0):
        return 1
    return 16 if device.capability[0] in (9, 10) else 8


def require_known(op: str, variant: str, variants: Collection[str]) -> None:
    """Raises ArgumentError unless ``variant`` is among an operator's; ``"auto"`` is not among them."""
    if variant not in variants:
        raise ArgumentError(
            op=op,
            argument="variant",
            expected=f"'auto' or one of {', '.join(map(repr, variants))}",
            got=repr(variant),
        )


def refuse(op: str, variant: str, reason: Refusal, supported: Iterable[str]) -> NoReturn:
    """Raises UnsupportedError for a variant that was asked for by name; the message lists those that can."""
    raise UnsupportedError(
        f"{op}: variant {variant!r} was asked for, and it {reason}. "
        f"Variants that can do this call: {', '.join(map(repr, supported)) or 'none'}; or leave variant='auto'.",
        requirement=reason.needs,
    )
