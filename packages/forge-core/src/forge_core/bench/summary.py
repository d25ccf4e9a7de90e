"""Records from measurements: a case over its runs, a suite over its devices, several records of the same cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import msgspec

from forge_core.bench.measure import Outcome
from forge_core.bench.plan import PlannedCase
from forge_core.bench.records import CaseRecord, ContenderRecord, Kind, Record, Run, Verdict
from forge_core.bench.schema import BANDWIDTH, BEST_PEER, CEILING, OURS, Target, variant_of

#: Samples of a contender that a record keeps, over all runs; the summaries are of all samples.
KEPT_SAMPLES = 48
INTERRUPTED = "Interrupted: "


def interrupted_note(done: int, wanted: int) -> str:
    """The note of a run that was stopped."""
    return f"{INTERRUPTED}{done} of {wanted} cases were measured."


def summarise(planned: PlannedCase, outcomes: Sequence[Outcome], error: str, *, host: bool, judged: bool) -> CaseRecord:
    """The record of one case over all runs; without figures if there is an error.

    Host times have no bandwidth, and ratios of time.  Targets are judged only on the machine that they are for.
    """
    case, operator = planned.case, planned.operator
    traffic = operator.traffic(case)
    first = outcomes[0] if outcomes else Outcome()
    wrong = {name: text for outcome in outcomes for name, text in outcome.wrong.items()}
    # A peer that was wrong in one run has no figures of the others either.
    usable = [replace(o, timings={n: t for n, t in o.timings.items() if n not in wrong}) for o in outcomes]
    summary = _Summary(planned, [] if error else usable, None if host else traffic.total)
    contenders = [summary.contender(name) for name in summary.names]
    times = {contender.name: contender.median_ms for contender in contenders}
    verdicts = [summary.verdict(target) for target in planned.targets] if judged and OURS in times else []
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
        best_peer=min(summary.peers, key=lambda name: times[name], default=""),
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
    """The runs of one case; none where it is an error, and `nbytes` None for host times."""

    def __init__(self, planned: PlannedCase, outcomes: Sequence[Outcome], nbytes: int | None) -> None:
        self.planned, self.outcomes, self.nbytes = planned, outcomes, nbytes
        self.names = list(outcomes[0].timings) if outcomes else []
        self.peers = [name for name in self.names if _kind(name) == "peer"]

    def ratio(self, outcome: Outcome, name: str, other: str) -> float | None:
        """Bandwidth of one contender over another's in one run (of host time, time over time), if both ran."""
        if other == BEST_PEER and self.peers:
            other = min(self.peers, key=lambda peer: outcome.timings[peer].median_ms)
        if other not in outcome.timings:
            return None
        mine, theirs = outcome.timings[name].median_ms, outcome.timings[other].median_ms
        return mine / theirs if self.nbytes is None else theirs / mine

    def contender(self, name: str) -> ContenderRecord:
        timings = [outcome.timings[name] for outcome in self.outcomes]
        runs = [
            Run(
                median_ms=round(timing.median_ms, 6),
                p20_ms=round(timing.p20_ms, 6),
                p80_ms=round(timing.p80_ms, 6),
                samples=len(timing.samples_ms),
                of_ceiling=_median([self.ratio(outcome, name, CEILING)], 4),
                of_best_peer=_median([self.ratio(outcome, name, BEST_PEER)], 4),
                clocks=timing.clocks,
            )
            for outcome, timing in zip(self.outcomes, timings, strict=True)
        ]
        times, first, kind = _over_runs(runs), self.outcomes[0], _kind(name)
        described = first.described.get(name, {})
        keep = max(1, KEPT_SAMPLES // len(timings))
        when = "after the first call" if first.cold else "before and after the timing"
        return ContenderRecord(
            name=name,
            kind=kind,
            **times,
            spread=round(median(timing.spread for timing in timings), 4),
            gbs=None if self.nbytes is None else round(self.nbytes / (times["median_ms"] * 1e6), 4),
            of_ceiling=_median([run.of_ceiling for run in runs], 4),
            of_best_peer=_median([run.of_best_peer for run in runs], 4),
            runs=runs,
            samples_ms=[sample for timing in timings for sample in thin(timing.samples_ms, keep)],
            variant=described.get("variant", ""),
            config=described.get("config", ""),
            why=described.get("why", ""),
            correct="exact copy" if kind == "ceiling" else f"{self.planned.operator.tolerance_of(name)}, {when}",
            first_call_s=_median([first.first_call_s.get(name)], 3),
            cold=first.cold.get(name),
        )

    def verdict(self, target: Target) -> Verdict | None:
        """The verdict on a target; None where what it compares with was left out."""
        if target.of == BANDWIDTH and self.nbytes is not None:
            values = [self.nbytes / (outcome.timings[OURS].median_ms * 1e6) for outcome in self.outcomes]
        else:
            ratios = [self.ratio(outcome, OURS, target.of) for outcome in self.outcomes]
            values = [ratio for ratio in ratios if ratio is not None]
        return verdict(target, median(values)) if values else None


def verdict(target: Target, value: float) -> Verdict:
    """Whether a measured figure reaches a target."""
    limits = target.at_least, target.at_most, target.met_from
    return Verdict(target.of, round(value, 4), target.met(value), *limits)


def _kind(name: str) -> Kind:
    if name == CEILING:
        return "ceiling"
    return "ours" if variant_of(name) else "peer"


def _median(values: Sequence[float | None], digits: int) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), digits) if known else None


def _over_runs(runs: Sequence[Run]) -> dict[str, float]:
    names = ("median_ms", "p20_ms", "p80_ms")
    return {name: round(median(getattr(run, name) for run in runs), 6) for name in names}


def thin(samples: Sequence[float], keep: int) -> list[float]:
    """At most `keep` of the samples, evenly over their order, rounded to nanoseconds."""
    step = max(1.0, len(samples) / keep)
    return [round(samples[int(number * step)], 6) for number in range(min(keep, len(samples)))]


def union(records: Sequence[Record], devices: Sequence[str]) -> Record:
    """One record of the shares that several devices measured, the cases in the suite's order."""
    cases = [
        msgspec.structs.replace(record.cases[row], device=device)
        for row in range(max(len(record.cases) for record in records))
        for record, device in zip(records, devices, strict=True)
        if row < len(record.cases)
    ]
    gpus = list(dict.fromkeys(record.environment.gpu for record in records))
    notes = list(dict.fromkeys(note for record in records for note in record.notes))
    not_run = [name for record in records for name in record.not_run]
    interrupted = any(record.interrupted for record in records)
    if interrupted:
        notes = [note for note in notes if not note.startswith(INTERRUPTED)]
        notes.append(interrupted_note(len(cases), len(cases) + len(not_run)))
    if len(gpus) > 1:
        notes.append(f"The devices differ: {', '.join(gpus)}.")
    return msgspec.structs.replace(
        records[0],
        notes=notes,
        cases=cases,
        imports=[entry for record in records for entry in record.imports],
        seconds=max(record.seconds for record in records),
        interrupted=interrupted,
        not_run=not_run,
        devices=list(devices),
    )


def pool(records: Sequence[Record]) -> Record:
    """One record of several of the same cases, with the runs of all."""
    cases = []
    for case in records[0].cases:
        same = [found for record in records for found in record.cases if found.name == case.name]
        error = next((found.error for found in same if found.error), "")
        contenders = [
            _pooled([part for found in same if (part := found.contender(contender.name)) is not None])
            for contender in ([] if error else case.contenders)
        ]
        cases.append(msgspec.structs.replace(case, contenders=contenders, error=error))
    return msgspec.structs.replace(records[0], cases=cases, repeats=sum(record.repeats for record in records))


def _pooled(parts: Sequence[ContenderRecord]) -> ContenderRecord:
    runs = [run for part in parts for run in part.runs]
    taken = [samples for part in parts for samples in part.samples_by_run()]
    fewest = min((len(samples) for samples in taken), default=0)
    return msgspec.structs.replace(
        parts[0],
        runs=runs,
        **_over_runs(runs),
        samples_ms=[sample for samples in taken for sample in thin(samples, fewest)],
    )
