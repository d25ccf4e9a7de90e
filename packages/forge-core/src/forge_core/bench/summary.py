"""From the runs of a case to its entry in the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forge_core.bench.measure import Described, Outcome
from forge_core.bench.plan import PlannedCase
from forge_core.bench.records import CaseRecord, ContenderRecord, Kind, Run, Verdict, over_runs
from forge_core.bench.schema import BANDWIDTH, BEST_PEER, CEILING, OURS, Target
from forge_core.timing import quantile

__all__ = ["summarise", "thin"]

#: Samples of a contender that a record keeps, over all runs; the summaries are of all samples.
KEPT_SAMPLES = 48


def summarise(planned: PlannedCase, outcomes: Sequence[Outcome], error: str, *, host: bool, judged: bool) -> CaseRecord:
    """The record of one case over all runs.

    Args:
        planned: the case.
        outcomes: one a run.
        error: why the case has no figures, or "".
        host: whether the times are host times: no bandwidth, and ratios are of time.
        judged: whether the targets are judged on this machine.
    """
    case, operator = planned.case, planned.operator
    traffic = operator.traffic(case)
    first = outcomes[0] if outcomes else Outcome()
    wrong = {name: text for outcome in outcomes for name, text in outcome.wrong.items()}
    # A peer that was wrong in one run has no figures of the others either.
    usable = [replace(o, timings={n: t for n, t in o.timings.items() if n not in wrong}) for o in outcomes]
    summary = _Summary(planned, [] if error else usable, None if host else traffic.total)
    contenders = [summary.contender(name) for name in summary.names]
    by_time = {contender.name: contender.median_ms for contender in contenders}
    verdicts = [summary.verdict(target) for target in planned.targets] if judged and OURS in by_time else []
    return CaseRecord(
        name=case.name,
        package=planned.bench.package,
        operator=case.operator,
        shape=list(case.shape),
        dtype=case.dtype_text,
        layout=case.layout,
        read=traffic.read,
        written=traffic.written,
        traffic=traffic.why,
        contenders=contenders,
        best_peer=min(summary.peers, key=lambda name: by_time[name], default=""),
        left_out=first.left_out,
        wrong=wrong,
        targets=[verdict for verdict in verdicts if verdict is not None],
        error=error,
        tolerance=operator.tolerance,
        floor_ms=round(first.floor_ms, 6),
        l2=first.l2,
        notes=list(dict.fromkeys(note for outcome in outcomes for note in outcome.notes)),
    )


class _Summary:
    """The runs of one case.

    Args:
        planned: the case.
        outcomes: one a run, of the same contenders; none where the case is an error.
        nbytes: bytes that must move; None for host times.
    """

    def __init__(self, planned: PlannedCase, outcomes: Sequence[Outcome], nbytes: int | None) -> None:
        self.planned, self.outcomes, self.nbytes = planned, outcomes, nbytes
        self.names = list(outcomes[0].timings) if outcomes else []
        self.peers = [name for name in self.names if _kind(name) == "peer"]

    def ratio(self, outcome: Outcome, name: str, other: str) -> float | None:
        """Bandwidth of one contender over another's in one run (of host time, time over time).

        None where the other was left out, which the record names.
        """
        if other == BEST_PEER and self.peers:
            other = min(self.peers, key=lambda peer: outcome.timings[peer].median_ms)
        if other not in outcome.timings:
            return None
        mine, theirs = outcome.timings[name].median_ms, outcome.timings[other].median_ms
        return mine / theirs if self.nbytes is None else theirs / mine

    def contender(self, name: str) -> ContenderRecord:
        """One contender over all runs."""
        timings = [outcome.timings[name] for outcome in self.outcomes]
        runs = [
            Run(
                median_ms=round(timing.median_ms, 6),
                p20_ms=round(timing.p20_ms, 6),
                p80_ms=round(timing.p80_ms, 6),
                samples=timing.iterations,
                of_ceiling=_median([self.ratio(outcome, name, CEILING)], 4),
                of_best_peer=_median([self.ratio(outcome, name, BEST_PEER)], 4),
                clocks=timing.clocks,
            )
            for outcome, timing in zip(self.outcomes, timings, strict=True)
        ]
        times, first, kind = over_runs(runs), self.outcomes[0], _kind(name)
        described = first.described.get(name, Described())
        keep = max(1, KEPT_SAMPLES // len(timings))
        correct = f"{self.planned.operator.tolerance_of(name)}, before and after the timing"
        if first.cold:
            correct = f"{self.planned.operator.tolerance_of(name)}, after the first call"
        return ContenderRecord(
            name=name,
            kind=kind,
            **times,
            spread=round(quantile([timing.spread for timing in timings], 0.5), 4),
            gbs=None if self.nbytes is None else round(self.nbytes / (times["median_ms"] * 1e6), 4),
            of_ceiling=_median([run.of_ceiling for run in runs], 4),
            of_best_peer=_median([run.of_best_peer for run in runs], 4),
            runs=runs,
            samples_ms=[sample for timing in timings for sample in thin(timing.samples_ms, keep)],
            variant=described.variant,
            config=described.config,
            why=described.why,
            correct="exact copy" if kind == "ceiling" else correct,
            first_call_s=_median([first.first_call_s.get(name)], 3),
            cold=first.cold.get(name),
        )

    def verdict(self, target: Target) -> Verdict | None:
        """The verdict on one target; None where what it compares with was left out."""
        values = []
        for outcome in self.outcomes:
            if target.of == BANDWIDTH and self.nbytes is not None:
                value: float | None = self.nbytes / (outcome.timings[OURS].median_ms * 1e6)
            else:
                value = self.ratio(outcome, OURS, target.of)
            if value is None:
                return None
            values.append(value)
        value = quantile(values, 0.5)
        return Verdict(
            of=target.of,
            value=round(value, 4),
            met=target.met(value),
            at_least=target.at_least,
            at_most=target.at_most,
            met_from=target.met_from,
        )


def _kind(name: str) -> Kind:
    if name == CEILING:
        return "ceiling"
    return "ours" if name == OURS or name.startswith(f"{OURS}:") else "peer"


def _median(values: Sequence[float | None], digits: int) -> float | None:
    known = [value for value in values if value is not None]
    return round(quantile(known, 0.5), digits) if known else None


def thin(samples: Sequence[float], keep: int) -> list[float]:
    """At most `keep` of the samples, taken evenly over their order, in nanosecond steps."""
    if len(samples) <= keep:
        return [round(sample, 6) for sample in samples]
    step = len(samples) / keep
    return [round(samples[int(number * step)], 6) for number in range(keep)]
