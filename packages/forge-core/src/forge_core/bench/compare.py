"""What moved between two records, decided by their samples.

A case's figure moves for three reasons: the kernel changed, the machine did (its clock, its temperature, its
neighbours), or chance had it so.  The second is taken out: contenders that did not change between the two records (the
ceiling's copy always, the peers where their versions are the same) ran launch by launch beside ours, so what they moved
by is the machine's share.  The third is judged by the samples: a bootstrap over runs and over the samples of each run
gives the interval that the change lies in, and a rank test says whether the two sets of samples could be one.

    change = (ours, new / old) / (controls, new / old) - 1          of times: above 0 is slower

A case is a regression if the change exceeds the threshold, its whole interval is above 0, and the rank test agrees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from forge_core.bench.environment import Environment
from forge_core.bench.records import CaseRecord, ContenderRecord, Record
from forge_core.timing import quantile

__all__ = ["CONFIDENCE", "Change", "Comparison", "compare"]

DRAWS = 2000
CONFIDENCE = 0.99
#: The largest probability, of samples that came from one distribution, at which the rank test says that they did not.
RANK_LEVEL = 0.01
#: What two runs of one kernel can differ by beyond what the samples of either show, in milliseconds: where an address
#: or a clock falls differently for a whole run.  Several runs show it themselves; a single one cannot.  H200,
#: 2026-11-21: docs/records/h200/compare-planted-2026-11-21.txt, 4.7 % at 6 us, 2.8 % at 65 us at most in 20 pairs.
RUN_FLOOR_MS = 0.0004
ENOUGH_RUNS = 3
#: Changes below this are not worth a line, however sure they are.
WORTH = 0.01
SEED = 20240229


@dataclass(frozen=True)
class Change:
    """One of our contenders in one case, in both records.

    Attributes:
        case: the case's name.
        contender: ``"forge"`` or ``"forge:<variant>"``.
        old_ms: the median time in the old record, in milliseconds.
        new_ms: likewise in the new one.
        change: the new time over the old one, less what the controls moved by, minus 1.
        low: the lower end of the interval that `change` lies in.
        high: its upper end.
        control: what the controls moved by: their new time over the old one, minus 1.
        rank_p: how likely ranks so far apart are for samples of one distribution.
        became: what was chosen before and now, where that differs; "" where it does not.
    """

    case: str
    contender: str
    old_ms: float
    new_ms: float
    change: float
    low: float
    high: float
    control: float
    rank_p: float
    became: str = ""

    @property
    def sure(self) -> bool:
        """Whether chance is ruled out."""
        return (self.low > 0 or self.high < 0) and self.rank_p < RANK_LEVEL

    def slower(self, threshold: float) -> bool:
        """Whether it is slower by more than `threshold`, beyond chance."""
        return self.sure and self.change > threshold

    def faster(self, threshold: float) -> bool:
        """Whether it is faster by more than `threshold`, beyond chance; 0.05 is a time of 1/1.05 and less."""
        return self.sure and 1 / (1 + self.change) - 1 > threshold

    def suspect(self, threshold: float) -> bool:
        """Whether it could be slower by more than `threshold`: what is measured again where it can be."""
        return self.high > threshold and self.change > threshold / 2


@dataclass(frozen=True)
class Comparison:
    """All that two records of a suite have in common, and what they have not.

    Attributes:
        old, new: the records.
        threshold: the share from which a slower case is a regression.
        changes: one for each of our contenders that both measured.
        gone: cases that only the old record has.
        added: cases that only the new record has.
        broken: cases that are errors in the new record, with the error.
        notes: what a reader must know: other versions, another driver.
        rerun: how the suspects were measured again, or why they were not; "" where there were none.
    """

    old: Record
    new: Record
    threshold: float
    changes: list[Change] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    rerun: str = ""

    @property
    def regressions(self) -> list[Change]:
        """Slower by more than the threshold, the worst first."""
        return sorted((c for c in self.changes if c.slower(self.threshold)), key=lambda c: -c.change)

    @property
    def moved(self) -> list[Change]:
        """All that moved beyond chance and by more than a percent, the slowest first; regressions among them."""
        found = [c for c in self.changes if c.slower(WORTH) or c.faster(WORTH)]
        return sorted(found, key=lambda c: -c.change)

    @property
    def suspects(self) -> list[Change]:
        """What could be a regression."""
        return [c for c in self.changes if c.suspect(self.threshold)]

    @property
    def control(self) -> float:
        """What the controls moved by, the median over the cases."""
        return quantile([c.control for c in self.changes], 0.5) if self.changes else 0.0


def compare(old: Record, new: Record, threshold: float = 0.05) -> Comparison:
    """Compares two records of the same suite.

    Args:
        old: the record before.
        new: the record after.
        threshold: the share from which a slower case is a regression.
    """
    before = {case.name: case for case in old.cases}
    after = {case.name: case for case in new.cases}
    peers = _same_peers(old.environment, new.environment)
    changes = []
    for name, case in after.items():
        earlier = before.get(name)
        if earlier is None or case.error or earlier.error:
            continue
        for contender in case.contenders:
            was = earlier.contender(contender.name)
            if contender.kind == "ours" and was is not None:
                changes.append(_change(name, was, contender, _controls(earlier, case, peers=peers)))
    return Comparison(
        old=old,
        new=new,
        threshold=threshold,
        changes=changes,
        gone=[name for name in before if name not in after],
        added=[name for name in after if name not in before],
        broken={
            name: "; ".join(text for text in (case.error, *case.wrong.values()) if text)
            for name, case in after.items()
            if case.error or case.wrong
        },
        notes=_notes(old, new),
    )


def _same_peers(old: Environment, new: Environment) -> bool:
    """Whether a peer of one record is the peer of the other."""
    if (old.torch, old.triton, old.cuda, old.driver) != (new.torch, new.triton, new.cuda, new.driver):
        return False
    return not _moved_peers(old, new)


def _moved_peers(old: Environment, new: Environment) -> list[str]:
    """The packages of peers whose versions differ; a record of before these were kept says nothing of them."""
    return [name for name in old.peers if name in new.peers and old.peers[name] != new.peers[name]]


def _controls(old: CaseRecord, new: CaseRecord, *, peers: bool) -> list[tuple[ContenderRecord, ContenderRecord]]:
    kinds = ("ceiling", "peer") if peers else ("ceiling",)
    pairs = [(old.contender(entry.name), entry) for entry in new.contenders if entry.kind in kinds]
    return [(was, now) for was, now in pairs if was is not None]


def _change(
    case: str,
    old: ContenderRecord,
    new: ContenderRecord,
    controls: Sequence[tuple[ContenderRecord, ContenderRecord]],
) -> Change:
    generator = torch.Generator().manual_seed(SEED)
    levels = [float(_logs(was).quantile(0.5)) for was, _ in controls]
    old_draws, old_figure, old_values = _drawn(old, [was for was, _ in controls], levels, generator)
    new_draws, new_figure, new_values = _drawn(new, [now for _, now in controls], levels, generator)
    moved = (new_draws - old_draws).sort().values
    margin = (1 - CONFIDENCE) / 2
    few = min(len(old.runs), len(new.runs)) < ENOUGH_RUNS
    floor = RUN_FLOOR_MS / min(old.median_ms, new.median_ms) if few else 0.0
    control = quantile([math.log(now.median_ms / was.median_ms) for was, now in controls], 0.5) if controls else 0.0
    before, after = (f"{c.variant} {c.config}".strip() for c in (old, new))
    return Change(
        case=case,
        contender=new.name,
        old_ms=old.median_ms,
        new_ms=new.median_ms,
        change=math.expm1(new_figure - old_figure),
        low=math.expm1(float(moved[int(margin * DRAWS)]) - floor),
        high=math.expm1(float(moved[int((1 - margin) * DRAWS) - 1]) + floor),
        control=math.expm1(control),
        rank_p=_rank_p(old_values, new_values),
        became=f"{before or 'unknown'} -> {after or 'unknown'}" if before != after else "",
    )


def _drawn(
    contender: ContenderRecord, controls: Sequence[ContenderRecord], levels: Sequence[float], generator: torch.Generator
) -> tuple[torch.Tensor, float, torch.Tensor]:
    """The bootstrap's draws of a contender's logarithm less its controls', its figure, and the samples so reduced.

    Args:
        contender: ours.
        controls: what ran beside it.
        levels: of each control the logarithm in the old record.  Controls take different times, so the median of what
            each moved by is what the machine did; the median of their times moves with the one that has it.
        generator: of the draws.
    """
    ours = _logs(contender)
    others = [_logs(control) - level for control, level in zip(controls, levels, strict=True)]
    runs = ours.shape[0]
    # The contenders of a run shared a clock and a minute, so a drawn run is drawn for all of them.
    rows = torch.randint(runs, (DRAWS, runs), generator=generator)
    figures = ours.quantile(0.5, dim=1)
    draws = _draw(ours, rows, generator)
    if others and all(other.shape[0] == runs for other in others):
        offset = torch.stack([other.quantile(0.5, dim=1) for other in others]).quantile(0.5, dim=0)
        draws = draws - torch.stack([_draw(other, rows, generator) for other in others]).quantile(0.5, dim=0)
        figures, ours = figures - offset, ours - offset[:, None]
    return draws.quantile(0.5, dim=1), float(figures.quantile(0.5)), ours.flatten()


def _logs(contender: ContenderRecord) -> torch.Tensor:
    """The logarithms of the samples, runs x samples."""
    return torch.tensor(contender.samples_by_run() or [[contender.median_ms]], dtype=torch.float64).log()


def _draw(logs: torch.Tensor, rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """For each draw and each of its runs, the median of as many samples drawn from that run."""
    count = logs.shape[1]
    columns = torch.randint(count, (*rows.shape, count), generator=generator)
    return logs[rows[..., None], columns].quantile(0.5, dim=2)


def _rank_p(old: torch.Tensor, new: torch.Tensor) -> float:
    """Two-sided p of the rank-sum test of Mann and Whitney, by its normal approximation, ties accounted for."""
    n, m = len(old), len(new)
    wins = (new[:, None] > old).sum() + 0.5 * (new[:, None] == old).sum()
    ties = torch.unique(torch.cat([old, new]), return_counts=True)[1].double()
    total = n + m
    variance = n * m / 12 * (total + 1 - float((ties**3 - ties).sum()) / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    return math.erfc(abs(float(wins) - n * m / 2) / math.sqrt(2 * variance))


def _notes(old: Record, new: Record) -> list[str]:
    notes = []
    for name in ("gpu", "driver", "torch", "triton", "dsl", "python"):
        before, after = getattr(old.environment, name), getattr(new.environment, name)
        if before != after:
            notes.append(f"{name}: {before} -> {after}.")
    moved = _moved_peers(old.environment, new.environment)
    notes += [f"{name}: {old.environment.peers[name]} -> {new.environment.peers[name]}." for name in moved]
    for name in ("stopwatch", "l2_policy", "backend"):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            notes.append(f"{name}: {before} -> {after}: the two records measure different things.")
    return notes
