"""What the plots show, taken from records: plain numbers, so that it can be tested without drawing."""

from __future__ import annotations

from dataclasses import dataclass

from forge_core.bench.records import CaseRecord, Record
from forge_core.bench.schema import CEILING, OURS

__all__ = ["Point", "Rung", "ladders", "points"]


@dataclass(frozen=True)
class Point:
    """One case, by the times of three contenders in microseconds.

    Attributes:
        case: the case.
        ours: of `auto`.
        peer: of the best peer; None without one.
        ceiling: of the copy; None in host time.
    """

    case: CaseRecord
    ours: float
    peer: float | None
    ceiling: float | None

    @property
    def nbytes(self) -> int:
        """Bytes that must move at least."""
        return self.case.read + self.case.written

    def gbs(self, microseconds: float) -> float:
        """The bandwidth of a time, in GB/s."""
        return self.nbytes / microseconds / 1e3


@dataclass(frozen=True)
class Rung:
    """One variant of a case: its name, bandwidth in GB/s, share of the ceiling, and whether `auto` chose it."""

    variant: str
    gbs: float
    of_ceiling: float
    chosen: bool


def points(record: Record, operator: str = "") -> list[Point]:
    """The cases of an operator, or of all, that have our `auto` and no error, in the record's order."""

    def microseconds(case: CaseRecord, name: str) -> float | None:
        contender = case.contender(name)
        return contender.median_ms * 1e3 if contender else None

    return [
        Point(case, ours, microseconds(case, case.best_peer), microseconds(case, CEILING))
        for case in record.cases
        if operator in ("", case.operator) and not case.error and (ours := microseconds(case, OURS)) is not None
    ]


def ladders(record: Record, operator: str) -> dict[str, list[Rung]]:
    """By name of each case that ran several variants: these, from the slowest to the fastest."""
    found = {}
    for case in record.cases:
        auto = case.contender(OURS)
        rungs = [
            Rung(variant, entry.gbs, entry.of_ceiling, auto is not None and variant == auto.variant)
            for entry in case.contenders
            if (variant := entry.name.removeprefix(f"{OURS}:")) != entry.name and entry.gbs and entry.of_ceiling
        ]
        if case.operator == operator and len(rungs) > 1:
            found[case.name] = sorted(rungs, key=lambda rung: rung.gbs)
    return found
