"""Runs a suite: every case, every run, and the record of what they measured."""

from __future__ import annotations

import datetime as dt
import gc
import math
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Self

import torch

from forge_core import settings
from forge_core.bench import cold, records
from forge_core.bench.environment import read_environment
from forge_core.bench.measure import Context, Options, blank, error_text, measure
from forge_core.bench.plan import PlannedCase, Run
from forge_core.bench.schema import Target
from forge_core.device import query
from forge_core.errors import BenchmarkError
from forge_core.timing.clocks import busy_cpu, other_users
from forge_core.timing.host import BATCH, HOST_METHOD, WallTimer, import_times
from forge_core.timing.interleave import Policy, Timer
from forge_core.timing.l2 import AS_FOUND, l2_policy
from forge_core.timing.timers import TIMERS

__all__ = ["Interrupts", "Options", "default_policy", "run_all"]

#: Seconds within which several signals are one.
AT_ONCE = 0.5


def default_policy(device: torch.device) -> Policy:
    """How many samples, by default."""
    if device.type == "cuda":
        return Policy(warmup_ms=100.0)
    return Policy(warmup=1, min_iterations=5, max_iterations=15, budget_ms=150.0)


class Interrupts:
    """A context in which SIGTERM, which `timeout` and schedulers send, raises KeyboardInterrupt as Ctrl-C does.

    It does so once, and neither after a Ctrl-C nor after :meth:`measured`, when the record is made and written.  Of
    signals within ``AT_ONCE`` seconds the first counts: `timeout -s INT` sends one to the process, one to its group.
    `limit` is the number of seconds after which :meth:`check` raises it, too.
    """

    def __init__(self, limit: float = math.inf) -> None:
        self._ends = time.monotonic() + limit
        self._asked, self._ignoring = -math.inf, False

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._take) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._asked >= AT_ONCE and (number == signal.SIGINT or not self._ignoring):
            self._asked, self._ignoring = now, True
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raises KeyboardInterrupt between cases: Python drops one that is raised while a finalizer runs."""
        if self._asked > -math.inf or time.monotonic() >= self._ends:
            raise KeyboardInterrupt

    def measured(self) -> None:
        """Ignores SIGTERM from now on."""
        self._ignoring = True


def run_all(
    run: Run,
    options: Options,
    *,
    on_case: Callable[[str], None] = lambda name: None,
    save: Callable[[records.Record], None] | None = None,
    stop: Interrupts | None = None,
) -> records.Record:
    """Runs everything, and returns the record.

    An error in one case is recorded, and the others still run.  KeyboardInterrupt ends the run; the record holds what
    was measured until then.  `on_case` is called with the name of each case that is done, and `save` with the record so
    far, interrupted while cases are left.

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
    timer: Timer = WallTimer()
    l2, empty_pair_us, cuda = AS_FOUND, None, device.type == "cuda"
    if cuda and run.timer == "device":
        with torch.cuda.device(device):
            timer = on_gpu = TIMERS[options.stopwatch](device)
            l2 = l2_policy(options.l2, device, query(device).l2_bytes)
            empty_pair_us = round(on_gpu.empty_pair_ms() * 1e3, 3)
    context = Context(options, timer, l2, host=run.timer == "host")
    # Of each case the records of its runs, of which the last may be an error.
    measured: list[tuple[PlannedCase, list[records.CaseRecord]]] = [(planned, []) for planned in run.cases]
    imports: list[records.ImportRecord] = []
    interrupted, stop = False, stop or Interrupts()

    def so_far(interrupted: bool) -> records.Record:
        return records.Record(
            suite=run.name,
            date=date.isoformat(),
            timer=run.timer,
            backend=options.backend,
            method={"host": HOST_METHOD.format(batch=BATCH), "cold": cold.METHOD}.get(run.timer, timer.method),
            notes=notes,
            environment=environment,
            seed=options.seed,
            repeats=options.repeats,
            warmup=options.policy.warmup,
            empty_pair_us=empty_pair_us,
            seconds=round(time.perf_counter() - began, 1),
            cases=[records.combined(parts, planned.targets if judged else ()) for planned, parts in measured if parts],
            imports=imports,
            stopwatch=options.stopwatch if cuda else "wall",
            l2_policy=options.l2 if cuda else AS_FOUND.name,
            interrupted=interrupted,
            not_run=[planned.case.name for planned, parts in measured if not parts],
        )

    try:
        for number in range(options.repeats):
            for planned, parts in measured:
                if not (parts and parts[-1].error):
                    parts.append(_measured(planned, replace(context, run=number), first=run.timer == "cold"))
                on_case(planned.case.name)
                if save is not None:
                    save(so_far(interrupted=not all(parts for _, parts in measured)))
                stop.check()
        for module, targets in run.imports:
            imports.append(_import(module, targets if judged else ()))
            on_case(f"import {module}")
            stop.check()
    except KeyboardInterrupt:
        interrupted = True
    stop.measured()
    if interrupted and options.repeats > 1:
        whole = min((len(parts) for _, parts in measured if not (parts and parts[-1].error)), default=0)
        notes.append(f"Of {options.repeats} runs {whole} came to their end; the first cases may have one more.")
    return so_far(interrupted)


def _notes(run: Run, options: Options, gpu: str, *, judged: bool) -> list[str]:
    notes = []
    if options.device.type == "cpu" and not torch.cuda.is_available():
        notes.append("No GPU devices found: the reference is timed on the CPU.")
    elif options.device.type == "cpu":
        notes.append("The reference is timed on the CPU: these figures say nothing about the kernels.")
    elif options.backend == "ref":
        notes.append("The backend is 'ref': what is timed under our operator's name is the PyTorch reference.")
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
    verdicts = [records.Verdict.on(target, seconds) for target in targets]
    return records.ImportRecord(module, round(seconds, 4), samples, timing.method, verdicts)


def _measured(planned: PlannedCase, context: Context, *, first: bool) -> records.CaseRecord:
    """One run of a case, or its error; with `first`, of first calls."""
    try:
        return (cold.measure_cold if first else measure)(planned, context)
    except Exception as error:  # noqa: BLE001 - recorded with its type, shown, and made exit status 1; the others run
        return blank(planned, error=error_text(error))
    finally:
        if context.options.device.type == "cuda":
            # What a failed case held is free only now that its traceback is gone; compiled peers hold buffers, too.
            gc.collect()
            torch.cuda.empty_cache()
