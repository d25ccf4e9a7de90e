"""What the packages' choices of a kernel have in common.

A package tries its kernels on a problem; each gives a configuration, or why it cannot do the problem, as the end of a
sentence that begins with "it".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from forge_core.device import Device
from forge_core.errors import ArgumentError, UnsupportedError

__all__ = ["max_cluster", "power_of_two", "refuse", "require_known"]


def power_of_two(n: int) -> int:
    """The smallest power of two not below ``n``; 1 for 0 and less."""
    return 1 << max(n - 1, 0).bit_length()


def max_cluster(device: Device) -> int:
    """Blocks of the largest cluster: 16 where a GPU takes more than the 8 that every one from sm_90 on does, else 1."""
    if device.capability < (9, 0):
        return 1
    return 16 if device.capability[0] in (9, 10) else 8


def require_known(op: str, variant: str, variants: Iterable[str]) -> None:
    """Raises unless ``variant`` is among an operator's.

    Args:
        op: the operator's name.
        variant: what was asked for.
        variants: the operator's; ``"auto"`` is not among them.

    Raises:
        ArgumentError: it is not.
    """
    known = tuple(variants)
    if variant not in known:
        raise ArgumentError(
            op=op,
            argument="variant",
            expected=f"'auto' or one of {', '.join(map(repr, known))}",
            got=repr(variant),
        )


def refuse(op: str, variant: str, reason: str, able: Iterable[str]) -> NoReturn:
    """Says that a variant which was asked for cannot do a problem.

    Args:
        op: the operator's name.
        variant: the one that was asked for.
        reason: why it cannot, as the end of "it ...".
        able: those that can.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        f"{op}: variant {variant!r} was asked for, and it {reason}. "
        f"Variants that can do this call: {', '.join(map(repr, able)) or 'none'}; or leave variant='auto'.",
        requirement=reason,
    )
