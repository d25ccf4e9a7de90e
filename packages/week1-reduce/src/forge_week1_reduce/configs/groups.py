"""How many integers of a launch say where something is; ``config.launch_arguments`` lays them out."""

from __future__ import annotations

__all__ = ["kept_integers", "reduced_integers"]


def kept_integers(rank: int) -> int:
    """Integers that say where some dimensions' results are: how many, and of each its size and its two steps."""
    return 1 + 3 * rank


def reduced_integers(rank: int) -> int:
    """Integers that say where some dimensions' elements are: how many, and of each its size and its step."""
    return 1 + 2 * rank
