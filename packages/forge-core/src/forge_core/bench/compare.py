"""What changed between two records, decided by their samples.

A figure changes because the kernel did, because the machine did (clock, temperature, other users), or by chance.  The
machine's share is divided out: the controls, contenders that are the same in both records (the ceiling's copy always,
the peers where their versions agree), ran launch by launch beside ours.  Chance is judged by the samples: a bootstrap
over runs and over the samples of each run gives a confidence interval, and a rank test has to agree.

    change = (ours, new / old) / (controls, new / old) - 1          of times: above 0 is slower

A case is a regression if the change exceeds the threshold, its whole interval is above 0, and the rank test agrees.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec
import torch
from rich.console import Console
from rich.text import Text

from forge_core.bench.records import ContenderRecord, Record
from forge_core.bench.report import Table, coloured, scaled
from forge_core.bench.schema import AUTO, variant_of

#: The share from which a slower case is a regression.
THRESHOLD = 0.05
DRAWS = 2000
CONFIDENCE = 0.99
#: The significance level of the rank test.
RANK_LEVEL = 0.01
#: Milliseconds by which two runs of one kernel can differ beyond the spread of their samples, since addresses or clocks
#: are others for a whole run; fewer than three runs do not show it.  H200:
#: compare-planted-2026-11-21.txt of docs/records/h200/history.md, 4.7 % at 6 us, 2.8 % at 65 us at most in 20 pairs.
RUN_FLOOR_MS = 0.0004
ENOUGH_RUNS = 3
#: Changes below this are not listed.
WORTH = 0.01
SEED = 20240229
#: Characters of a line of a commit message.
WIDTH = 72
HEAD = ("case", "contender", "before", "after", "change", "interval", "verdict")

#: A contender in the old and in the new record.
Pair = tuple[ContenderRecord, ContenderRecord]


@dataclass(frozen=True)
class Change:
    """One of our contenders in one case, in both records.

    Attributes:
        change: the new time over the old one, divided by that of the controls, minus 1.
        low, high: the confidence interval of `change`.
        control: the controls' new time over the old one, minus 1.
        rank_p: the p-value of the rank test.
        became: the old and the new choice of a kernel, where they differ; else "".
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

    def beyond(self, share: float) -> bool:
        """Whether the change is significant and the slower time more than 1 + `share` times the faster one."""
        significant = (self.low > 0 or self.high < 0) and self.rank_p < RANK_LEVEL
        return significant and abs(math.log1p(self.change)) > math.log1p(share)


@dataclass(frozen=True)
class Comparison:
    """The comparison of two records of a suite.

    Attributes:
        broken: cases that are errors in the new record, with the error.
        notes: differences of versions and settings.
        rerun: how the suspects were measured again, or why they were not.
    """

    old: Record
    new: Record
    threshold: float
    changes: list[Change]
    gone: list[str]
    added: list[str]
    broken: dict[str, str]
    notes: list[str]
    rerun: str = ""

    @property
    def regressions(self) -> list[Change]:
        """The changes to slower by more than the threshold, the worst first."""
        return sorted((c for c in self.changes if c.change > 0 and c.beyond(self.threshold)), key=lambda c: -c.change)

    @property
    def moved(self) -> list[Change]:
        """The significant changes of more than a percent, the slowest first."""
        return sorted((c for c in self.changes if c.beyond(WORTH)), key=lambda c: -c.change)

    @property
    def suspects(self) -> list[Change]:
        """Possible regressions: what could be slower by more than the threshold."""
        return [c for c in self.changes if c.high > self.threshold and c.change > self.threshold / 2]

    @property
    def control(self) -> float:
        """The controls' change, the median over the cases."""
        return median(c.control for c in self.changes) if self.changes else 0.0


def compare(old: Record, new: Record, threshold: float = THRESHOLD) -> Comparison:
    """Compares two records of the same suite."""
    before, after = ({case.name: case for case in record.cases} for record in (old, new))
    peers = _changed(old.environment.peers, new.environment.peers)
    was, now = (msgspec.structs.asdict(record.environment) for record in (old, new))
    same = not peers and not _changed(was, now, ("torch", "triton", "cuda", "driver"))
    kinds = ("ceiling", "peer") if same else ("ceiling",)
    changes = []
    for name, case in after.items():
        earlier = before.get(name)
        if earlier is None or case.error or earlier.error:
            continue
        pairs = [(found, c) for c in case.contenders if (found := earlier.contender(c.name)) is not None]
        controls = [pair for pair in pairs if pair[1].kind in kinds]
        changes += [_change(name, *pair, controls) for pair in pairs if pair[1].kind == "ours"]
    settings = _changed(msgspec.structs.asdict(old), msgspec.structs.asdict(new), ("stopwatch", "l2_policy", "backend"))
    return Comparison(
        old=old,
        new=new,
        threshold=threshold,
        changes=changes,
        gone=[name for name in before if name not in after],
        added=[name for name in after if name not in before],
        broken={name: "; ".join(case.errors) for name, case in after.items() if case.errors},
        notes=[
            *(f"{text}." for text in _changed(was, now, ("gpu", "driver", "torch", "triton", "dsl", "python"))),
            *(f"{text}." for text in peers),
            *(f"{text}: the two records measure different things." for text in settings),
        ],
    )


def _changed(old: Mapping[str, object], new: Mapping[str, object], names: Iterable[str] | None = None) -> list[str]:
    """What differs of these names, or of those that both have."""
    both = [name for name in old if name in new] if names is None else names
    return [f"{name}: {old[name]} -> {new[name]}" for name in both if old[name] != new[name]]


def _change(case: str, old: ContenderRecord, new: ContenderRecord, controls: Sequence[Pair]) -> Change:
    generator = torch.Generator().manual_seed(SEED)
    # The controls' change is taken from their level in the old record.
    before, after = ([_logs(pair[n]) - _logs(pair[0]).quantile(0.5) for pair in controls] for n in (0, 1))
    old_draws, old_figure, old_values = _drawn(_logs(old), before, generator)
    new_draws, new_figure, new_values = _drawn(_logs(new), after, generator)
    moved = (new_draws - old_draws).sort().values
    margin = (1 - CONFIDENCE) / 2
    few = min(len(old.runs), len(new.runs)) < ENOUGH_RUNS
    floor = RUN_FLOOR_MS / min(old.median_ms, new.median_ms) if few else 0.0
    control = median(math.log(now.median_ms / was.median_ms) for was, now in controls) if controls else 0.0
    was, now = (f"{c.variant} {c.config}".strip() or "unknown" for c in (old, new))
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
        became=f"{was} -> {now}" if was != now else "",
    )


def _drawn(
    ours: torch.Tensor, others: Sequence[torch.Tensor], generator: torch.Generator
) -> tuple[torch.Tensor, float, torch.Tensor]:
    """Bootstrap draws of a contender's log time less the controls' change, its median, and the samples so reduced."""
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
    """For each draw and each of its runs, the median of as many samples drawn from that run with replacement."""
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


# ------------------------------------------------------------------------------------------------- a comparison as text


def time_text(milliseconds: float) -> str:
    """A time with three digits and its unit."""
    return scaled(milliseconds * 1e3, ("us", "ms", "s"), 1000)


def percent(share: float) -> str:
    """A signed percentage."""
    return f"{share * 100:+.1f} %"


def _headline(found: Comparison) -> str:
    return f"{found.new.suite} on {found.new.environment.machine}: {_which(found)}"


def _which(found: Comparison) -> str:
    return " -> ".join(r.environment.revision(r.date[:16].replace("T", " ")) for r in (found.old, found.new))


def _summary(found: Comparison) -> list[str]:
    compared, slower = len(found.changes), len(found.regressions)
    faster = sum(c.change < 0 and c.beyond(found.threshold) for c in found.changes)
    text = (
        f"{compared} compared: {slower} slower and {faster} faster by more than {found.threshold * 100:.3g} %, "
        f"{compared - slower - faster} within; the controls (the ceiling's copy, and peers of the same versions) "
        f"moved by {percent(found.control)}, which is taken out."
    )
    lines = [
        text,
        found.rerun,
        *(f"ERROR: {name}: {error}" for name, error in found.broken.items()),
        f"Only in the old record: {', '.join(found.gone)}." if found.gone else "",
        f"Only in the new record: {', '.join(found.added)}." if found.added else "",
        *found.notes,
        *(f"{c.case}, {variant_of(c.contender)}: {c.became}." for c in found.moved if c.became),
    ]
    return [line for line in lines if line]


def print_comparison(found: Comparison, console: Console) -> None:
    """Prints a comparison on a terminal."""
    console.print(Text(_headline(found), style="bold"))
    if found.moved:
        console.print(_table(found).rich())
    else:
        console.print(Text("Nothing moved beyond chance and by more than a percent.", style="green"))
    for line in _summary(found):
        console.print(coloured(line))


def comparison_markdown(found: Comparison) -> str:
    """A comparison as Markdown for a pull request."""
    verdict = f"**{len(found.regressions)} regressions**" if found.regressions else "No regression"
    parts = [f"### {_headline(found)}", f"{verdict} at {found.threshold * 100:.3g} %."]
    parts += [_table(found).markdown()] if found.moved else []
    parts += [line.replace("|", "\\|") for line in _summary(found)]
    parts.append(f"Intervals are of {CONFIDENCE:.0%}, bootstrapped over runs and samples.")
    return "\n\n".join(parts) + "\n"


def commit_message(found: Comparison) -> str:
    """A comparison for the message of a commit, in lines of at most 72 characters."""
    lines = [f"Bench: {found.new.suite}, {found.new.environment.machine}", f"  {_which(found)}"]
    for change in found.moved:
        name, (before, after, moved, interval) = variant_of(change.contender), _figures(change)
        lines.append(f"  {change.case}{'' if name == AUTO else f', {name}'}")
        lines.append(f"    {before} -> {after}: {moved} ({interval})")
    same = len(found.changes) - len(found.moved)
    lines.append(f"  {same} of {len(found.changes)} unchanged; controls {percent(found.control)}")
    lines += [f"  {len(found.broken)} cases are errors"] if found.broken else []
    return "\n".join(line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..." for line in lines) + "\n"


def _table(found: Comparison) -> Table:
    rows = []
    for change in found.moved:
        slower = "REGRESSION" if change.beyond(found.threshold) else "slower"
        verdict = slower if change.change > 0 else "faster"
        rows.append((change.case, variant_of(change.contender), *_figures(change), verdict))
    return Table("", HEAD, tuple(rows), labels=2)


def _figures(change: Change) -> tuple[str, str, str, str]:
    interval = f"{percent(change.low)} to {percent(change.high)}"
    return time_text(change.old_ms), time_text(change.new_ms), percent(change.change), interval
