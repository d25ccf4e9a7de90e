"""What the plots show, taken from records: plain numbers, so that it can be tested without drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, median_high

from forge_core.bench.records import Record
from forge_core.bench.schema import OURS

__all__ = [
    "Dot",
    "Figures",
    "Rung",
    "dtypes_of",
    "figures_of",
    "ladders",
    "operators_of",
    "small_dots",
    "timed",
]

DTYPES = ("float32", "bfloat16", "float16", "int8")
#: Cases that move at most so much are latency's, not bandwidth's.
SMALL_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Dot:
    """One case: where it stands, and what a reader is told of it.

    Attributes:
        label: the shape, with its layout.
        dtype: the dtype.
        operator: the operator.
        nbytes: bytes that must move.
        ours: our figure: GB/s, or microseconds.
        peer: the best peer's figure; None without one.
        ceiling: the ceiling's figure; None in host time.
        speedup: of time, over the best peer; None without one.
        best_peer: its name.
        variant: the variant that auto chose.
    """

    label: str
    dtype: str
    operator: str
    nbytes: int
    ours: float
    peer: float | None
    ceiling: float | None
    speedup: float | None
    best_peer: str
    variant: str

    @property
    def case(self) -> str:
        """The case in words."""
        return f"{self.operator} {self.label} {self.dtype}"


@dataclass(frozen=True)
class Rung:
    """One variant of a case: its name, GB/s, and share of the ceiling."""

    variant: str
    gbs: float
    of_ceiling: float
    chosen: bool


@dataclass(frozen=True)
class Figures:
    """The few numbers that a suite comes down to.

    Attributes:
        cases: how many.
        errors: how many of them are errors.
        speedup: the geometric mean over the cases with a peer, of time; None without.
        of_ceiling: the median share of the ceiling; None in host time.
        reached, targets: targets reached, and all.
    """

    cases: int
    errors: int
    speedup: float | None
    of_ceiling: float | None
    reached: int
    targets: int


def timed(record: Record) -> list[Dot]:
    """A dot for each case that has our `auto` and no error, in the record's order."""
    device = record.timer == "device"
    found = []
    for case in record.cases:
        ours = case.contender(OURS)
        if case.error or ours is None:
            continue
        peer, ceiling = case.contender(case.best_peer), case.contender("ceiling")

        def figure(milliseconds: float, nbytes: int = case.read + case.written) -> float:
            return nbytes / (milliseconds * 1e6) if device else milliseconds * 1e3

        found.append(
            Dot(
                label=case.label,
                dtype=case.dtype,
                operator=case.operator,
                nbytes=case.read + case.written,
                ours=figure(ours.median_ms),
                peer=figure(peer.median_ms) if peer else None,
                ceiling=figure(ceiling.median_ms) if ceiling else None,
                speedup=peer.median_ms / ours.median_ms if peer else None,
                best_peer=case.best_peer,
                variant=ours.variant,
            )
        )
    return found


def operators_of(dots: Sequence[Dot]) -> list[str]:
    """The operators, in the order in which they come."""
    return list(dict.fromkeys(dot.operator for dot in dots))


def dtypes_of(dots: Sequence[Dot]) -> list[str]:
    """The dtypes, the common ones first."""
    there = dict.fromkeys(dot.dtype for dot in dots)
    return sorted(there, key=lambda dtype: DTYPES.index(dtype) if dtype in DTYPES else len(DTYPES))


def ladders(record: Record) -> dict[str, list[Rung]]:
    """For each case that ran several variants, the variants from the slowest to the fastest."""
    found = {}
    for case in record.cases:
        chosen = case.contender(OURS)
        rungs = [
            Rung(
                variant=entry.name.removeprefix(f"{OURS}:"),
                gbs=entry.gbs,
                of_ceiling=entry.of_ceiling,
                chosen=chosen is not None and entry.name == f"{OURS}:{chosen.variant}",
            )
            for entry in case.contenders
            if entry.kind == "ours" and entry.name != OURS and entry.gbs and entry.of_ceiling
        ]
        if len(rungs) > 1:
            found[f"{case.operator} {case.label} {case.dtype}"] = sorted(rungs, key=lambda rung: rung.gbs)
    return found


def small_dots(record: Record) -> list[Dot]:
    """Device time of small cases, in microseconds."""
    if record.timer != "device":
        return []
    small = [dot for dot in timed(record) if dot.nbytes <= SMALL_BYTES]

    def microseconds(dot: Dot, gbs: float) -> float:
        return dot.nbytes / 1e3 / gbs

    return [
        replace(
            dot,
            ours=microseconds(dot, dot.ours),
            peer=microseconds(dot, dot.peer) if dot.peer else None,
            ceiling=microseconds(dot, dot.ceiling) if dot.ceiling else None,
        )
        for dot in small
    ]


def figures_of(record: Record) -> Figures:
    """The few numbers."""
    dots = timed(record)
    speedups = [dot.speedup for dot in dots if dot.speedup]
    shares = [dot.ours / dot.ceiling for dot in dots if dot.ceiling]
    return Figures(
        cases=len(record.cases),
        errors=len(record.errors),
        speedup=geometric_mean(speedups) if speedups else None,
        of_ceiling=median_high(shares) if shares else None,
        reached=sum(verdict.met for verdict in record.verdicts),
        targets=len(record.verdicts),
    )
