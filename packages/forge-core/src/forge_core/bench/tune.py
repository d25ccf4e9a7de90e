"""The tuner: measures each threshold of ``select_config`` on this GPU.

For each threshold of a package, every candidate runs on the cases around it, interleaved launch by launch as any
contenders are; candidates that choose the same launch are measured once.  The least geometric mean of time over the
cases wins, but the value in force stays unless it is beaten by more than a percent.  The measurements go into a record,
and the values into the package's table for this GPU::

    nox -s tune -- week0 --device cuda:0
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import msgspec
import torch

from forge_core.bench import Bench, Case, OperatorBench
from forge_core.bench.environment import Environment, read_environment
from forge_core.bench.schema import AUTO, CaseGroup, expand
from forge_core.device import Device, query
from forge_core.errors import BenchmarkError
from forge_core.op import Operator
from forge_core.op.table import LaunchTable
from forge_core.thresholds import Threshold, Thresholds
from forge_core.timing.interleave import Contender, Policy, time_interleaved
from forge_core.timing.l2 import l2_policy
from forge_core.timing.timers import EventTimer

#: Gain over the value in force from which a candidate replaces it.
WORTH = 0.01


class Outcome(msgspec.Struct, frozen=True):
    """One threshold: the value in force, `was`, and the one that was chosen.

    Attributes:
        gain: time with `was` over time with `value`, the geometric mean over the cases.
        times_ms: for each case, the median time with each candidate.
        shares: for each candidate, its time over the chosen one's, the geometric mean over the cases.
    """

    name: str
    about: str
    was: int
    value: int
    gain: float
    times_ms: dict[str, dict[str, float]]
    shares: dict[str, float]


class TuneRecord(msgspec.Struct, frozen=True):
    """The tuner's record in ``docs/records``."""

    tune: str
    date: str
    method: str
    environment: Environment
    thresholds: list[Outcome]


def _measure(bench: Bench, device: torch.device, case: Case, name: str, values: Sequence[int]) -> dict[int, float]:
    """Milliseconds with each value of a threshold on the current CUDA device; the same launches share a figure."""
    operator, thresholds = bench.by_name[case.operator], _declared(bench)
    policy = l2_policy("cold", device, query(device).l2_bytes)
    numbers = range(policy.sets(operator.traffic(case).total))
    sets = [operator.random_inputs(case, device, seed=0, what=f"{case.name}, set {number}") for number in numbers]
    want = operator.reference(*sets[0])
    calls: dict[Any, tuple[int, Callable[..., Any]]] = {}
    same: dict[int, int] = {}

    def launch(table: LaunchTable, keywords: dict[str, Any], value: int, *arguments: torch.Tensor) -> torch.Tensor:
        with thresholds.override(name, value):
            return table.launch(None, arguments, keywords)

    for value in values:
        table, keywords = launches_anew(operator)
        call = partial(launch, table, keywords, value)
        if problem := operator.agree(sets[0], call(*sets[0]), want):
            raise BenchmarkError(f"wrong result with {name} = {value}: {problem}", case=case.name)
        same[value] = calls.setdefault(tuple(table.launches()), (value, call))[0]
    run = time_interleaved(
        {str(value): Contender(call, sets) for value, call in calls.values()},
        timer=EventTimer(device),
        policy=Policy(warmup_ms=100.0),
        before=policy.before,
    )
    return {value: run.timings[str(twin)].median_ms for value, twin in same.items()}


def launches_anew(operator: OperatorBench) -> tuple[LaunchTable, dict[str, Any]]:
    """An empty launch table of the operator that a declaration calls, and the options of that call."""
    call: Any = operator.call(AUTO)
    keywords: dict[str, Any] = {}
    if isinstance(call, partial):
        call, keywords = call.func, dict(call.keywords)
    if not isinstance(call, Operator):
        raise BenchmarkError(f"{operator.name}: expected a declaration that calls an Operator, got {call!r}")
    return call.table.anew(), keywords


def cases_of(bench: Bench) -> int:
    """How many cases the tuner measures for a package."""
    return sum(len(_cases(bench, threshold)) for threshold in _declared(bench).declared)


def tune(bench: Bench, device: torch.device, on_case: Callable[[str], None]) -> tuple[TuneRecord, Path, str]:
    """Measures every threshold of a package; `on_case` is called with the name of each case that is done.

    Returns:
        The record, and the table's path and text; nothing is written.

    Raises:
        BenchmarkError: the package declares no thresholds, or a candidate gives a wrong result.
    """
    thresholds = _declared(bench)
    figures = query(device)
    outcomes = []
    for threshold in thresholds.declared:
        was = thresholds.value(threshold.name, figures)
        values = tuple(dict.fromkeys((was, *threshold.candidates)))
        times: dict[str, dict[int, float]] = {}
        for case in _cases(bench, threshold):
            times[case.name] = _measure(bench, device, case, threshold.name, values)
            on_case(f"{threshold.name}, {case.name}")
        value, means = choose(was, list(times.values()))
        times_ms = {case: {str(v): round(ms, 6) for v, ms in row.items()} for case, row in times.items()}
        shares = {str(v): round(mean / means[value], 4) for v, mean in means.items()}
        gain = round(means[was] / means[value], 4)
        outcomes.append(Outcome(threshold.name, threshold.about, was, value, gain, times_ms, shares))
    date = dt.datetime.now(dt.UTC).date().isoformat()
    environment = read_environment(device, [bench.package])
    record = TuneRecord(bench.name, date, EventTimer.method, environment, outcomes)
    stem = re.sub(r"[^a-z0-9]+", "-", figures.name.lower()).strip("-")
    return record, thresholds.folder / f"{stem}.toml", table_text(figures, date, bench.name, outcomes)


def _declared(bench: Bench) -> Thresholds:
    if bench.thresholds is None:
        raise BenchmarkError(f"{bench.package} declares no thresholds: there is nothing to tune")
    return bench.thresholds


def _cases(bench: Bench, threshold: Threshold) -> list[Case]:
    groups = [CaseGroup(probe.operator, list(probe.shapes), list(probe.dtypes)) for probe in threshold.probes]
    return [case for group in groups for case in expand(group, bench, f"threshold {threshold.name}")]


def choose(was: int, times: Sequence[dict[int, float]]) -> tuple[int, dict[int, float]]:
    """The candidate to take, and the geometric mean of each one's time over that of `was`, the value in force."""
    means = {value: geometric_mean([row[value] / row[was] for row in times]) for value in times[0]}
    best = min(means, key=lambda value: means[value])
    return (best if means[best] < 1 - WORTH else was), means


def table_text(device: Device, date: str, week: str, outcomes: Sequence[Outcome]) -> str:
    """The table as TOML."""
    lines = [
        f"# Written by `nox -s tune -- {week}`: what select_config decides by on this GPU, and on others like it that",
        "# were never measured.  gain: time with the value in force before, over time with this one; shares: the time",
        "# with each value that was tried, over that with this one; geometric means over the cases.",
        f'device = "{device.name}"',
        f"capability = [{device.capability[0]}, {device.capability[1]}]",
        f"sm_count = {device.sm_count}",
        f'date = "{date}"',
    ]
    for outcome in outcomes:
        shares = ", ".join(f'"{value}" = {share:.3f}' for value, share in outcome.shares.items())
        lines += [
            "",
            f"# {outcome.about}",
            f"[{outcome.name}]",
            f"value = {outcome.value}",
            f"was = {outcome.was}",
            f"gain = {outcome.gain:.3f}",
            f"shares = {{ {shares} }}",
        ]
    return "\n".join(lines) + "\n"
