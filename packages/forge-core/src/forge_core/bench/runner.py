"""A suite from beginning to end: every case, every run, and the record."""

from __future__ import annotations

import datetime as dt
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from forge_core import settings
from forge_core.bench.cold import measure_cold
from forge_core.bench.environment import read_environment
from forge_core.bench.measure import Context, Outcome, measure
from forge_core.bench.plan import PlannedCase, Run
from forge_core.bench.records import ImportRecord, Record, Verdict, interrupted_note
from forge_core.bench.schema import Target
from forge_core.bench.summary import summarise
from forge_core.device import query
from forge_core.errors import BenchmarkError
from forge_core.timing import Policy, Timer, WallTimer, import_times
from forge_core.timing.accuracy import make_timer
from forge_core.timing.clocks import busy_cpu, other_users
from forge_core.timing.events import EventTimer
from forge_core.timing.l2 import L2Policy, l2_policy

__all__ = ["NO_GPU_NOTE", "Options", "default_policy", "run_all"]

NO_GPU_NOTE = "No GPU devices found: the reference is timed on the CPU."
CPU_NOTE = "The reference is timed on the CPU: these figures say nothing about the kernels."
REF_NOTE = "The backend is 'ref': what is timed under our operator's name is the PyTorch reference."


@dataclass(frozen=True)
class Options:
    """How to run.

    Attributes:
        device: where.
        backend: ``"kernel"`` or ``"ref"``.
        policy: how many samples; None is what suits the device.
        repeats: runs of the whole suite.
        seed: the seed of all inputs.
        stopwatch: the timer of a GPU, one of ``forge_core.timing.TIMERS``.
        l2: the state of the L2 before each launch, one of ``forge_core.timing.l2.POLICIES``.
    """

    device: torch.device
    backend: str
    policy: Policy | None = None
    repeats: int = 1
    seed: int = 0
    stopwatch: str = "events"
    l2: str = "cold"


@dataclass
class _Measured:
    planned: PlannedCase
    outcomes: list[Outcome] = field(default_factory=list)
    error: str = ""


def default_policy(device: torch.device) -> Policy:
    """How many samples where the caller does not say."""
    if device.type == "cuda":
        return Policy(warmup_ms=100.0)
    return Policy(warmup=1, min_iterations=5, max_iterations=15, budget_ms=150.0)


def run_all(
    run: Run,
    options: Options,
    *,
    on_case: Callable[[str], None] = lambda name: None,
    on_measured: Callable[[], None] = lambda: None,
) -> Record:
    """Runs everything, and returns the record.

    An error in one case is recorded with its message, and the others still run: see ``Record.errors``.  An interrupt
    (Ctrl-C) ends the run, and the record holds what was measured until then: see ``Record.interrupted``.

    Args:
        run: what to measure.
        options: how.
        on_case: called with a text when a case is done.
        on_measured: called when all is measured, or the run was interrupted; the record is made after that.

    Raises:
        BenchmarkError: FORGE_DEBUG is set, or there is nothing to run on.
    """
    if settings.debug_requested():
        raise BenchmarkError(
            "FORGE_DEBUG is set: kernels are compiled with assertions and every launch is followed by a "
            "synchronisation, so no time means anything; unset FORGE_DEBUG",
            suite=run.name,
        )
    if options.backend == "kernel" and options.device.type != "cuda":
        raise BenchmarkError(
            f"backend 'kernel' needs a CUDA GPU, the device is {options.device}; leave --backend out to time the "
            "reference",
            suite=run.name,
        )
    began = time.perf_counter()
    date = dt.datetime.now(dt.UTC).replace(microsecond=0)
    device = options.device
    notes = _shared(device)
    timer, l2, empty_pair_us = _stopwatch(options, device_time=run.timer == "device")
    context = Context(
        suite=run.name,
        device=device,
        backend=options.backend,
        policy=options.policy or default_policy(device),
        timer=timer,
        seed=options.seed,
        host=run.timer == "host",
        l2=l2,
    )
    measured = [_Measured(planned) for planned in run.cases]
    imports: list[ImportRecord] = []
    environment = read_environment(device, run.packages, _needed(run))
    judged = options.backend == "kernel" and all(gpu in environment.gpu for gpu in run.targets_for)
    interrupted = False
    try:
        for number in range(options.repeats):
            for entry in measured:
                _measure_one(entry, replace(context, run=number), cold=run.timer == "cold")
                on_case(entry.planned.case.name)
        for module, targets in run.imports:
            imports.append(_import(module, targets, judged=judged))
            on_case(f"import {module}")
    except KeyboardInterrupt:
        interrupted = True
    on_measured()
    done = [entry for entry in measured if entry.outcomes or entry.error]
    not_run = [entry.planned.case.name for entry in measured if entry not in done]
    cases = [
        summarise(entry.planned, entry.outcomes, entry.error, host=run.timer != "device", judged=judged)
        for entry in done
    ]
    if interrupted:
        notes.append(interrupted_note(len(done), len(measured)))
        whole = min((len(entry.outcomes) for entry in measured if not entry.error), default=0)
        if options.repeats > 1:
            notes.append(f"Of {options.repeats} runs {whole} came to their end; the first cases may have one more.")
    method = next((timing.method for e in measured for o in e.outcomes for timing in o.timings.values()), timer.method)
    return Record(
        suite=run.name,
        date=date.isoformat(),
        timer=run.timer,
        backend=options.backend,
        method=method,
        notes=[*_notes(run, options, environment.gpu, judged=judged), *notes],
        environment=environment,
        seed=options.seed,
        repeats=options.repeats,
        warmup=context.policy.warmup,
        empty_pair_us=empty_pair_us,
        seconds=round(time.perf_counter() - began, 1),
        cases=cases,
        imports=imports,
        stopwatch=options.stopwatch if device.type == "cuda" else "wall",
        l2_policy=options.l2 if device.type == "cuda" else "as found",
        interrupted=interrupted,
        not_run=not_run,
    )


def _needed(run: Run) -> set[str]:
    """The distributions that the peers of a run need."""
    found = [planned.operator.peer(name) for planned in run.cases for name in planned.peers]
    return {name for peer in found if peer is not None for need in peer.requires for name in need.distributions}


def _stopwatch(options: Options, *, device_time: bool) -> tuple[Timer, L2Policy | None, float | None]:
    """The timer, the L2 policy, and what a sample's two events cost on their own, in microseconds."""
    device = options.device
    if device.type != "cuda" or not device_time:
        return WallTimer(), None, None
    with torch.cuda.device(device):
        timer = make_timer(options.stopwatch, device)
        policy = l2_policy(options.l2, device, query(device).l2_bytes)
        empty_pair_us = round(timer.empty_pair_ms() * 1e3, 3) if isinstance(timer, EventTimer) else None
        return timer, policy, empty_pair_us


def _shared(device: torch.device) -> list[str]:
    """Notes on who else uses the machine when the run begins."""
    notes = [busy_cpu()]
    others = other_users(device) if device.type == "cuda" else None
    if others:
        notes.append(f"The GPU was shared: {others} other process{'es' * (others > 1)} computed on it.")
    return [note for note in notes if note]


def _measure_one(entry: _Measured, context: Context, *, cold: bool) -> None:
    if entry.error:
        return  # an earlier run of the suite has shown that the case cannot be believed
    try:
        entry.outcomes.append(measure_cold(entry.planned, context) if cold else measure(entry.planned, context))
    except Exception as error:  # noqa: BLE001 - recorded with its type, shown, and made exit status 1; the others run
        text = str(error).strip() or "no message"
        kind = "" if isinstance(error, BenchmarkError) else f"{type(error).__name__}: "
        entry.error = kind + text
    # What a failed case held on to is free only now that its traceback is gone; compiled peers hold buffers, too.
    gc.collect()
    if context.device.type == "cuda":
        torch.cuda.empty_cache()


def _notes(run: Run, options: Options, gpu: str, *, judged: bool) -> list[str]:
    notes = []
    if options.device.type == "cpu":
        notes.append(CPU_NOTE if torch.cuda.is_available() else NO_GPU_NOTE)
    elif options.backend == "ref":
        notes.append(REF_NOTE)
    elif run.targets_for and not judged:
        notes.append(f"The targets are for {' and '.join(run.targets_for)}; this is {gpu}: they are not judged.")
    return notes


def _import(module: str, targets: tuple[Target, ...], *, judged: bool) -> ImportRecord:
    try:
        timing = import_times(module)
    except BenchmarkError as error:
        return ImportRecord(module=module, median_s=0.0, samples_s=[], method="", error=str(error))
    seconds = [round(sample / 1e3, 4) for sample in timing.samples_ms]
    median = round(timing.median_ms / 1e3, 4)
    verdicts = [
        Verdict(of="import", value=median, met=target.met(median), at_most=target.at_most)
        for target in targets
        if judged
    ]
    return ImportRecord(module=module, median_s=median, samples_s=seconds, method=timing.method, targets=verdicts)
