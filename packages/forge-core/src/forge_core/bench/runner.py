"""Runs a suite: every case, every run, and the record of what they measured."""

from __future__ import annotations

import datetime as dt
import gc
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from types import FrameType
from typing import Self

import torch

from forge_core import settings
from forge_core.bench import records
from forge_core.bench.cold import measure_cold
from forge_core.bench.environment import read_environment
from forge_core.bench.measure import Context, Options, Outcome, error_text, measure
from forge_core.bench.plan import PlannedCase, Run
from forge_core.bench.schema import BANDWIDTH, BEST_PEER, CEILING, OURS, Target, variant_of
from forge_core.device import query
from forge_core.errors import BenchmarkError
from forge_core.timing import Timing
from forge_core.timing.clocks import busy_cpu, other_users
from forge_core.timing.host import WallTimer, import_times
from forge_core.timing.interleave import Policy, Timer
from forge_core.timing.l2 import AS_FOUND, L2Policy, l2_policy
from forge_core.timing.timers import TIMERS

__all__ = ["Interrupts", "Options", "default_policy", "run_all"]

#: The timings of one run, by contender.
Timings = dict[str, Timing]

#: Samples of a contender that a record keeps, over all runs; the summaries are of all samples.
KEPT_SAMPLES = 48
NO_GPU_NOTE = "No GPU devices found: the reference is timed on the CPU."
CPU_NOTE = "The reference is timed on the CPU: these figures say nothing about the kernels."
REF_NOTE = "The backend is 'ref': what is timed under our operator's name is the PyTorch reference."


def default_policy(device: torch.device) -> Policy:
    """How many samples, by default."""
    if device.type == "cuda":
        return Policy(warmup_ms=100.0)
    return Policy(warmup=1, min_iterations=5, max_iterations=15, budget_ms=150.0)


class Interrupts:
    """A context in which SIGTERM, which `timeout` and schedulers send, raises KeyboardInterrupt as Ctrl-C does.

    It does so once, and neither after a Ctrl-C nor after :meth:`measured`, when the record is made and written.
    """

    def __enter__(self) -> Self:
        self._asked = self._ignoring = False
        self._before = {number: signal.signal(number, self._take) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT or not self._ignoring:
            self._asked = self._ignoring = True
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raises KeyboardInterrupt between cases: Python drops one that is raised while a finalizer runs."""
        if self._asked:
            raise KeyboardInterrupt

    def measured(self) -> None:
        """Ignores SIGTERM from now on."""
        self._ignoring = True


def run_all(
    run: Run,
    options: Options,
    *,
    on_case: Callable[[str], None] = lambda name: None,
    on_measured: Callable[[], None] = lambda: None,
) -> records.Record:
    """Runs everything, and returns the record.

    An error in one case is recorded, and the others still run.  KeyboardInterrupt ends the run; the record holds what
    was measured until then.  `on_case` is called with the name of each case that is done, `on_measured` before the
    record is made.

    Raises:
        BenchmarkError: FORGE_DEBUG is set, or there is no device to run on.
    """
    if settings.debug_requested():
        raise BenchmarkError(
            "FORGE_DEBUG is set: kernels are compiled with assertions and every launch is followed by a "
            "synchronisation, so no time means anything; unset FORGE_DEBUG",
            suite=run.name,
        )
    device = options.device
    if options.backend == "kernel" and device.type != "cuda":
        raise BenchmarkError(
            f"backend 'kernel' needs a CUDA GPU, the device is {device}; leave --backend out to time the reference",
            suite=run.name,
        )
    began, date = time.perf_counter(), dt.datetime.now(dt.UTC).replace(microsecond=0)
    needs = [need for planned in run.cases for peer in planned.peers for need in peer.requires]
    environment = read_environment(device, run.packages, {name for need in needs for name in need.distributions})
    judged = options.backend == "kernel" and all(gpu in environment.gpu for gpu in run.targets_for)
    notes = _notes(run, options, environment.gpu, judged=judged)
    timer, l2, empty_pair_us = _stopwatch(options, device_time=run.timer == "device")
    context = Context(options, timer, l2, host=run.timer == "host")
    measured = [_Case(planned, run.timer) for planned in run.cases]
    imports: list[records.ImportRecord] = []
    interrupted = False
    try:
        for number in range(options.repeats):
            for entry in measured:
                entry.measure(replace(context, run=number))
                on_case(entry.planned.case.name)
        for module, targets in run.imports:
            imports.append(_import(module, targets if judged else ()))
            on_case(f"import {module}")
    except KeyboardInterrupt:
        interrupted = True
    on_measured()
    done = [entry for entry in measured if entry.outcomes or entry.error]
    if interrupted and options.repeats > 1:
        whole = min((len(entry.outcomes) for entry in measured if not entry.error), default=0)
        notes.append(f"Of {options.repeats} runs {whole} came to their end; the first cases may have one more.")
    methods = (timing.method for entry in done for outcome in entry.outcomes for timing in outcome.timings.values())
    return records.Record(
        suite=run.name,
        date=date.isoformat(),
        timer=run.timer,
        backend=options.backend,
        method=next(methods, timer.method),
        notes=notes,
        environment=environment,
        seed=options.seed,
        repeats=options.repeats,
        warmup=options.policy.warmup,
        empty_pair_us=empty_pair_us,
        seconds=round(time.perf_counter() - began, 1),
        cases=[entry.record(judged=judged) for entry in done],
        imports=imports,
        stopwatch=options.stopwatch if device.type == "cuda" else "wall",
        l2_policy=options.l2 if device.type == "cuda" else "as found",
        interrupted=interrupted,
        not_run=[entry.planned.case.name for entry in measured if entry not in done],
    )


def _stopwatch(options: Options, *, device_time: bool) -> tuple[Timer, L2Policy, float | None]:
    """The timer, the L2 policy, and the duration of an empty pair of events in microseconds."""
    device = options.device
    if device.type != "cuda" or not device_time:
        return WallTimer(), AS_FOUND, None
    with torch.cuda.device(device):
        timer = TIMERS[options.stopwatch](device)
        policy = l2_policy(options.l2, device, query(device).l2_bytes)
        return timer, policy, round(timer.empty_pair_ms() * 1e3, 3)


def _notes(run: Run, options: Options, gpu: str, *, judged: bool) -> list[str]:
    notes = []
    if options.device.type == "cpu":
        notes.append(CPU_NOTE if torch.cuda.is_available() else NO_GPU_NOTE)
    elif options.backend == "ref":
        notes.append(REF_NOTE)
    elif run.targets_for and not judged:
        notes.append(f"The targets are for {' and '.join(run.targets_for)}; this is {gpu}: they are not judged.")
    if busy := busy_cpu():
        notes.append(busy)
    if options.device.type == "cuda" and (others := other_users(options.device)):
        notes.append(f"The GPU was shared: {others} other process{'es' * (others > 1)} computed on it.")
    return notes


def _import(module: str, targets: tuple[Target, ...]) -> records.ImportRecord:
    try:
        timing = import_times(module)
    except BenchmarkError as error:
        return records.ImportRecord(module, 0.0, [], "", error=str(error))
    seconds, samples = timing.median_ms / 1e3, [round(sample / 1e3, 4) for sample in timing.samples_ms]
    verdicts = [verdict(target, seconds) for target in targets]
    return records.ImportRecord(module, round(seconds, 4), samples, timing.method, verdicts)


class _Case:
    """One case of a suite: the outcome of each run, or the error of one, and the record of them all.

    Host times and first calls have no bandwidth, and ratios of time.
    """

    def __init__(self, planned: PlannedCase, timer: str) -> None:
        self.planned, self.cold = planned, timer == "cold"
        self.traffic = planned.operator.traffic(planned.case)
        self.nbytes = self.traffic.total if timer == "device" else None
        self.outcomes: list[Outcome] = []
        self.error = ""

    def measure(self, context: Context) -> None:
        if self.error:
            return  # in an earlier run of the suite
        try:
            self.outcomes.append((measure_cold if self.cold else measure)(self.planned, context))
        except Exception as error:  # noqa: BLE001 - recorded with its type, shown, and made exit status 1; the others run
            self.error = error_text(error)
        if context.options.device.type == "cuda":
            # What a failed case held is free only now that its traceback is gone; compiled peers hold buffers, too.
            gc.collect()
            torch.cuda.empty_cache()

    def record(self, *, judged: bool) -> records.CaseRecord:
        """The record, without figures if there is an error; targets are judged only on the machine they are for."""
        case, first = self.planned.case, self.outcomes[0] if self.outcomes else Outcome()
        wrong = {name: text for outcome in self.outcomes for name, text in outcome.wrong.items()}
        # A peer that was wrong in one run has no figures of the others either.
        usable = [{name: t for name, t in outcome.timings.items() if name not in wrong} for outcome in self.outcomes]
        runs = [] if self.error else usable
        contenders = [self._contender(name, runs) for name in (runs[0] if runs else ())]
        times = {contender.name: contender.median_ms for contender in contenders}
        values = [(target, self._reached(target, runs)) for target in self.planned.targets if judged and OURS in times]
        return records.CaseRecord(
            name=case.name,
            package=self.planned.bench.package,
            operator=case.operator,
            shape=list(case.shape),
            dtype=case.dtype_text,
            layout=case.layout,
            read=self.traffic.read,
            written=self.traffic.written,
            traffic=self.traffic.why,
            contenders=contenders,
            best_peer=min(filter(_is_peer, times), key=lambda name: times[name], default=""),
            left_out=first.left_out,
            wrong=wrong,
            targets=[verdict(target, value) for target, value in values if value is not None],
            error=self.error,
            tolerance=self.planned.operator.tolerance,
            floor_ms=round(first.floor_ms, 6),
            l2=first.l2,
            notes=list(dict.fromkeys(note for outcome in self.outcomes for note in outcome.notes)),
        )

    def _ratio(self, timings: Timings, name: str, other: str) -> float | None:
        """Bandwidth of one contender over another's in one run (of host time, time over time), if both ran."""
        if other == BEST_PEER:
            other = min(filter(_is_peer, timings), key=lambda peer: timings[peer].median_ms, default="")
        if other not in timings:
            return None
        mine, theirs = timings[name].median_ms, timings[other].median_ms
        return mine / theirs if self.nbytes is None else theirs / mine

    def _reached(self, target: Target, runs: Sequence[Timings]) -> float | None:
        """What `auto` reached of a target, the median over the runs; None where what it compares with was left out."""
        if target.of == BANDWIDTH and self.nbytes is not None:
            return median(self.nbytes / (timings[OURS].median_ms * 1e6) for timings in runs)
        return _median([self._ratio(timings, OURS, target.of) for timings in runs])

    def _contender(self, name: str, timings: Sequence[Timings]) -> records.ContenderRecord:
        runs = [
            records.Run(
                median_ms=round(own[name].median_ms, 6),
                p20_ms=round(own[name].p20_ms, 6),
                p80_ms=round(own[name].p80_ms, 6),
                samples=len(own[name].samples_ms),
                of_ceiling=_median([self._ratio(own, name, CEILING)], 4),
                of_best_peer=_median([self._ratio(own, name, BEST_PEER)], 4),
                clocks=own[name].clocks,
            )
            for own in timings
        ]
        times, first = records.over_runs(runs), self.outcomes[0]
        keep = max(1, KEPT_SAMPLES // len(runs))
        when = "after the first call" if self.cold else "before and after the timing"
        compared = "exact copy" if name == CEILING else f"{self.planned.operator.tolerance_of(name)}, {when}"
        return records.ContenderRecord(
            name=name,
            kind="ceiling" if name == CEILING else "peer" if _is_peer(name) else "ours",
            **times,
            spread=round(median(own[name].spread for own in timings), 4),
            gbs=None if self.nbytes is None else round(self.nbytes / (times["median_ms"] * 1e6), 4),
            of_ceiling=_median([run.of_ceiling for run in runs], 4),
            of_best_peer=_median([run.of_best_peer for run in runs], 4),
            runs=runs,
            samples_ms=[sample for own in timings for sample in records.thin(own[name].samples_ms, keep)],
            **first.described.get(name, {}),
            correct=compared,
            first_call_s=_median([first.first_call_s.get(name)], 3),
            cold=first.cold.get(name),
        )


def verdict(target: Target, value: float) -> records.Verdict:
    """Whether a measured figure reaches a target."""
    limits = target.at_least, target.at_most, target.met_from
    return records.Verdict(target.of, round(value, 4), target.met(value), *limits)


def _is_peer(name: str) -> bool:
    return name != CEILING and not variant_of(name)


def _median(values: Sequence[float | None], digits: int = 15) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), digits) if known else None
