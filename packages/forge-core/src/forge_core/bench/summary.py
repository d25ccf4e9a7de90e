"""From the runs of a case to its entry in the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forge_core.bench.measure import Described, Outcome
from forge_core.bench.plan import PlannedCase
from forge_core.bench.records import CaseRecord, ContenderRecord, Kind, Run, Verdict, over_runs
from forge_core.bench.schema import BANDWIDTH, BEST_PEER, CEILING, OURS, Target
from forge_core.timing import quantile

__all__ = ["ratio", "summarise", "thin"]

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
    usable = list(outcomes) if not error else []
    first = outcomes[0] if outcomes else Outcome()
    wrong = {name: text for outcome in outcomes for name, text in outcome.wrong.items()}
    # A peer that was wrong in one run has no figures of the others either.
    usable = [replace(o, timings={n: t for n, t in o.timings.items() if n not in wrong}) for o in usable]
    names = list(usable[0].timings) if usable else []
    peers = [name for name in names if _kind(name) == "peer"]
    contenders = [
        _contender(name, usable, peers, None if host else traffic.total, operator.tolerance_of(name), host=host)
        for name in names
    ]
    by_time = {contender.name: contender.median_ms for contender in contenders}
    verdicts = []
    if judged and OURS in by_time:
        found = [_verdict(target, usable, peers, traffic.total, host=host) for target in planned.targets]
        verdicts = [verdict for verdict in found if verdict is not None]
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
        best_peer=min(peers, key=lambda name: by_time[name]) if peers else "",
        left_out=first.left_out,
        wrong=wrong,
        targets=verdicts,
        error=error,
        tolerance=operator.tolerance,
        floor_ms=round(first.floor_ms, 6),
        l2=first.l2,
        notes=list(dict.fromkeys(note for outcome in outcomes for note in outcome.notes)),
    )


def ratio(outcome: Outcome, name: str, other: str, *, host: bool) -> float:
    """Bandwidth of one contender over that of another in one run; of host time, time over time."""
    mine, theirs = outcome.timings[name].median_ms, outcome.timings[other].median_ms
    return mine / theirs if host else theirs / mine


def _kind(name: str) -> Kind:
    if name == CEILING:
        return "ceiling"
    return "ours" if name == OURS or name.startswith(f"{OURS}:") else "peer"


def _fastest(outcome: Outcome, names: Sequence[str]) -> str:
    return min(names, key=lambda name: outcome.timings[name].median_ms)


def _median(values: Sequence[float | None], digits: int) -> float | None:
    known = [value for value in values if value is not None]
    return round(quantile(known, 0.5), digits) if known else None


def _contender(
    name: str, outcomes: list[Outcome], peers: list[str], nbytes: int | None, tolerance: str, *, host: bool
) -> ContenderRecord:
    runs = []
    for outcome in outcomes:
        timing = outcome.timings[name]
        against_ceiling = ratio(outcome, name, CEILING, host=host) if CEILING in outcome.timings else None
        against_peer = ratio(outcome, name, _fastest(outcome, peers), host=host) if peers else None
        runs.append(
            Run(
                median_ms=round(timing.median_ms, 6),
                p20_ms=round(timing.p20_ms, 6),
                p80_ms=round(timing.p80_ms, 6),
                samples=timing.iterations,
                of_ceiling=_median([against_ceiling], 4),
                of_best_peer=_median([against_peer], 4),
                clocks=timing.clocks,
            )
        )
    keep = max(1, KEPT_SAMPLES // len(outcomes))
    times = over_runs(runs)
    kind = _kind(name)
    described = outcomes[0].described.get(name, Described())
    return ContenderRecord(
        name=name,
        kind=kind,
        **times,
        spread=round(quantile([outcome.timings[name].spread for outcome in outcomes], 0.5), 4),
        gbs=None if nbytes is None else round(nbytes / (times["median_ms"] * 1e6), 4),
        of_ceiling=_median([run.of_ceiling for run in runs], 4),
        of_best_peer=_median([run.of_best_peer for run in runs], 4),
        runs=runs,
        samples_ms=[sample for outcome in outcomes for sample in thin(outcome.timings[name].samples_ms, keep)],
        variant=described.variant,
        config=described.config,
        why=described.why,
        correct=_correct(kind, tolerance, cold=bool(outcomes[0].cold)),
        first_call_s=_median([outcomes[0].first_call_s.get(name)], 3),
        cold=outcomes[0].cold.get(name),
    )


def _correct(kind: Kind, tolerance: str, *, cold: bool) -> str:
    if cold:
        return f"{tolerance}, after the first call"
    return "exact copy" if kind == "ceiling" else f"{tolerance}, before and after the timing"


def _verdict(target: Target, outcomes: list[Outcome], peers: list[str], nbytes: int, *, host: bool) -> Verdict | None:
    """The verdict on one target; None where what it compares with was left out, which the record names."""
    values = []
    for outcome in outcomes:
        if target.of == BANDWIDTH:
            values.append(nbytes / (outcome.timings[OURS].median_ms * 1e6))
            continue
        other = _fastest(outcome, peers) if target.of == BEST_PEER and peers else target.of
        if other not in outcome.timings:
            return None
        values.append(ratio(outcome, OURS, other, host=host))
    value = quantile(values, 0.5)
    return Verdict(
        of=target.of,
        value=round(value, 4),
        met=target.met(value),
        at_least=target.at_least,
        at_most=target.at_most,
        met_from=target.met_from,
    )


def thin(samples: Sequence[float], keep: int) -> list[float]:
    """At most `keep` of the samples, taken evenly over their order, in nanosecond steps."""
    if len(samples) <= keep:
        return [round(sample, 6) for sample in samples]
    step = len(samples) / keep
    return [round(samples[int(number * step)], 6) for number in range(keep)]
