"""Measures one case once: checks its contenders, times them against each other, and checks them again.

Before a checked call, memory of its output's size is filled with a pattern and freed, so that the allocator reuses it
for the output: an element that is not written shows the pattern, not the last call's right result.  A result that
shares memory with an input is wrong, and so is a call that changes its input.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import torch

from forge_core import settings
from forge_core.bench import Inputs, Peer
from forge_core.bench.gate import exact
from forge_core.bench.plan import PlannedCase
from forge_core.bench.records import CaseRecord, ContenderRecord, Run, figures, thin
from forge_core.bench.schema import AUTO, CEILING, our_name, variant_of
from forge_core.device import query
from forge_core.errors import ArgumentError, BenchmarkError, UnsupportedError
from forge_core.timing import Timing, check_floor, floor_ms
from forge_core.timing.clocks import disturbances
from forge_core.timing.host import host_times
from forge_core.timing.interleave import Contender, Policy, Timer, time_interleaved
from forge_core.timing.l2 import AS_FOUND, L2Policy
from forge_core.timing.streams import POISON, check_stream

# Two blocks, for a contender may allocate workspace before its output.
POISONED_BLOCKS = 2
#: Samples of a contender that a record keeps, over all runs; the summaries are of all samples.
KEPT_SAMPLES = 24

Calls = dict[str, Callable[..., torch.Tensor]]


@dataclass(frozen=True)
class Options:
    """How to run a suite; `stopwatch` is one of ``TIMERS``, `l2` one of ``timing.l2.POLICIES``."""

    device: torch.device
    backend: str
    policy: Policy
    repeats: int = 1
    seed: int = 0
    stopwatch: str = "events"
    l2: str = "cold"


@dataclass(frozen=True)
class Context:
    """What all cases of a run have in common; `run` numbers the runs of a suite from 0, each with data of its own.

    `timer` takes the samples of device time; `host` measures host time instead.
    """

    options: Options
    timer: Timer
    l2: L2Policy = AS_FOUND
    host: bool = False
    run: int = 0


def blank(planned: PlannedCase, **more: Any) -> CaseRecord:
    """The record of a case without figures; `more` are other fields."""
    case, traffic = planned.case, planned.operator.traffic(planned.case)
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
        tolerance=planned.operator.tolerance,
        **more,
    )


def contender_record(
    planned: PlannedCase, name: str, timing: Timing, options: Options, *, nbytes: int | None, when: str, **more: Any
) -> ContenderRecord:
    """A contender's record of one run, without ratios, which :func:`~forge_core.bench.records.combined` adds."""
    peer = planned.operator.peer(name)
    tolerance = peer.tolerance if peer and peer.agree else planned.operator.tolerance
    middle, low, high = (round(time_ms, 6) for time_ms in (timing.median_ms, timing.p20_ms, timing.p80_ms))
    run = Run(middle, low, high, len(timing.samples_ms), clocks=timing.clocks)
    return ContenderRecord(
        name=name,
        kind="ceiling" if name == CEILING else "ours" if variant_of(name) else "peer",
        **figures([run], nbytes),
        runs=[run],
        samples_ms=thin(timing.samples_ms, max(1, KEPT_SAMPLES // options.repeats)),
        correct="exact copy" if name == CEILING else f"{tolerance}, {when}",
        **more,
    )


def error_text(error: Exception, who: str = "") -> str:
    """An error as a record has it: with its type, unless it is a BenchmarkError."""
    kind = "" if isinstance(error, BenchmarkError) else f"{who}{type(error).__name__}: "
    return kind + (str(error).strip() or "no message")


def measure(planned: PlannedCase, context: Context) -> CaseRecord:
    """Measures a case once.

    Raises:
        BenchmarkError: a wrong result, a time below the floor, a requirement of a peer that was asked for by name.
        ForgeError: a variant that was asked for by name cannot serve the case.
    """
    if planned.operator.traffic(planned.case).total == 0:
        raise BenchmarkError("the case moves no bytes, so it has no bandwidth")
    device = context.options.device
    current = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    with _served_by(context.options.backend, device), current:
        return _Measurement(planned, context).run()


class _Measurement:
    def __init__(self, planned: PlannedCase, context: Context) -> None:
        self.planned, self.context, self.record = planned, context, blank(planned)
        self.device = context.options.device
        self.case, self.operator = planned.case, planned.operator
        self.nbytes = self.record.read + self.record.written
        self.described: dict[str, dict[str, str]] = {}  # by contender: variant, config, why

    def run(self) -> CaseRecord:
        context, wrong, floor = self.context, self.record.wrong, 0.0
        calls = self.contenders(self.fresh("explained"))
        first_call_s = self.check(calls, "before the timing")
        calls = {name: call for name, call in calls.items() if name not in wrong}
        if self.device.type == "cuda" and context.run == 0:
            self.check_streams(calls)
        if context.host:
            inputs = self.fresh("timed")
            timings = host_times({name: partial(call, *inputs) for name, call in calls.items()})
            l2 = "warm: host time, one buffer set"
        else:
            l2, floor = context.l2.describe(self.nbytes), self.floor()
            timings = self.time_device(calls, floor)
        self.check(calls, "after the timing")
        timings = {name: timing for name, timing in timings.items() if name not in wrong}
        when, nbytes = "before and after the timing", None if context.host else self.nbytes
        for name, timing in timings.items():
            told = {**self.described.get(name, {}), "first_call_s": first_call_s.get(name)}
            made = contender_record(self.planned, name, timing, context.options, nbytes=nbytes, when=when, **told)
            self.record.contenders.append(made)
        notes = [*self.record.notes, *disturbances(timings, self.device)]
        return msgspec.structs.replace(self.record, floor_ms=round(floor, 6), l2=l2, notes=notes)

    def fresh(self, what: str) -> Inputs:
        """New inputs, the same in every process."""
        text = f"{self.case.name}, run {self.context.run}, {what}"
        return self.operator.random_inputs(self.case, self.device, seed=self.context.options.seed, what=text)

    def refuse(self, when: str, name: str, problem: str | Exception) -> None:
        """Raises the error of ours, or of a peer that was asked for by name; records that of another peer."""
        if isinstance(problem, str):
            problem = BenchmarkError(f"wrong result {when}: {problem}", peer=name)
        if self.operator.peer(name) is None or self.planned.peers_asked:
            raise problem
        self.record.wrong[name] = error_text(problem, f"peer {name}: ")

    def check(self, calls: Calls, when: str) -> dict[str, float]:
        """Compares every contender with the reference; returns the seconds of each call, compiling included."""
        inputs = self.fresh(when)
        want = self.operator.reference(*inputs)
        pristine = tuple(x.clone() for x in inputs)
        seconds = {}
        for name, call in calls.items():
            poison(want.numel() * want.element_size(), want.device)
            start = time.perf_counter()
            try:
                got = call(*inputs)
                if want.is_cuda:
                    torch.cuda.synchronize(want.device)
            except Exception as error:  # noqa: BLE001 - raised, or put into the record
                self.refuse(when, name, error)
                continue
            seconds[name] = round(time.perf_counter() - start, 3)
            problem = self.operator.wrong(name, pristine, got, want)
            if got.numel() and any(got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for x in inputs):
                problem = "the result shares its memory with an input; expected memory of its own"
            for number, (x, before) in enumerate(zip(inputs, pristine, strict=True)):
                if exact(x.clone(), before):  # a clone of a slice is dense, as the one before the call
                    problem = problem or f"input {number} was changed by the call"
                    x.detach().copy_(before)
            if problem:
                self.refuse(when, name, problem)
            del got
        return seconds

    def contenders(self, inputs: Inputs) -> Calls:
        planned, context, operator, left_out = self.planned, self.context, self.operator, self.record.left_out
        calls: Calls = {}
        for variant in planned.variants:
            name = our_name(variant)
            if context.options.backend == "ref":
                if variant != AUTO:
                    left_out[name] = "the backend is 'ref', which has no variants"
                    continue
                why = "the backend is 'ref': plain PyTorch is timed"
                self.described[name] = {"variant": "reference", "why": why}
            else:
                try:
                    found = operator.explain(inputs, variant)
                except (ArgumentError, UnsupportedError) as error:
                    if variant not in planned.lenient:
                        raise
                    left_out[name] = str(error)
                    continue
                self.described[name] = {key: str(getattr(found, key)) for key in ("variant", "config", "why")}
            calls[name] = operator.call(variant)
        return calls | {peer.name: peer.make(self.case) for peer in willing_peers(planned, context, left_out)}

    def check_streams(self, calls: Calls) -> None:
        inputs = self.fresh("streams")
        want = self.operator.reference(*inputs)
        for name, call in calls.items():
            agrees = partial(self.operator.wrong, name, inputs, want=want)
            if not check_stream(call, inputs, agrees, peer=name):
                note = f"{name} waits for the GPU, so the stream that it works on was not checked."
                self.record.notes.append(note)

    def floor(self) -> float:
        """The least milliseconds of a sample; 0 for none, as on a warm L2, which may serve every byte."""
        l2, traffic = self.context.l2, self.operator.traffic(self.case)
        if self.device.type != "cuda" or l2.warm:
            return 0.0
        bandwidth = query(self.device).bandwidth_gbs
        return floor_ms(read=traffic.read, written=traffic.written, l2_bytes=l2.l2_bytes, bandwidth_gbs=bandwidth)

    def time_device(self, calls: Calls, floor: float) -> dict[str, Timing]:
        """Times the contenders, and a copy of the same bytes, launch by launch; checks the last output of each."""
        context, operator, l2 = self.context, self.operator, self.context.l2
        sets = [self.fresh(f"set {number}") for number in range(l2.sets(self.nbytes))]
        timed = {name: Contender(call, sets) for name, call in calls.items()}
        pairs = [_ceiling_pair(inputs, self.nbytes // 2) for inputs in sets]
        timed[CEILING] = Contender(lambda source, destination: destination.copy_(source), pairs)
        # The memory of all outputs alive at once is then the allocator's, so that no timed launch calls cudaMalloc.
        reserved = [operator.reference(*sets[0])]
        reserved += [torch.empty_like(reserved[0]) for _ in range(len(sets) + len(timed))]
        del reserved
        policy = context.options.policy
        run = time_interleaved(timed, timer=context.timer, policy=policy, before=l2.before, warm=l2.warm)
        for name, (index, output) in run.last.items():
            if name == CEILING:
                problem = exact(output, timed[CEILING].sets[index][0])
            else:
                problem = operator.wrong(name, sets[index], output, operator.reference(*sets[index]))
            if problem:
                self.refuse("in a timed launch", name, problem)
        for name, timing in run.timings.items():
            check_floor(timing, floor, peer=name)
        return run.timings


def poison(nbytes: int, device: torch.device) -> None:
    """Fills memory of that size with the pattern and frees it, for the allocator to hand out next."""
    blocks = [torch.full((nbytes,), POISON, dtype=torch.uint8, device=device) for _ in range(POISONED_BLOCKS)]
    del blocks


def willing_peers(planned: PlannedCase, context: Context, left_out: dict[str, str]) -> list[Peer]:
    """The peers that can run the case; the others go into `left_out`, with the reason.

    Raises:
        BenchmarkError: a peer that was asked for by name cannot run.
    """
    willing = []
    for peer in planned.peers:
        missing = peer.missing(context.options.device)
        text = f"needs {' and '.join(missing)}" if missing else peer.unable(planned.case)
        if not text:
            willing.append(peer)
        elif planned.peers_asked:
            raise BenchmarkError(f"peer {peer.name} {text}")
        else:
            left_out[peer.name] = text
    return willing


def _served_by(backend: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Sets the backend of our operators, unless it is the default."""
    usual = "kernel" if device.type == "cuda" else "ref"
    if backend == usual and settings.current().backend is None:
        return contextlib.nullcontext()  # setting one lengthens the eager path, and so every host time, by half
    return settings.use_settings(backend=backend)


def _ceiling_pair(inputs: Inputs, nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Source and destination of the copy that moves the case's bytes; the source is the input itself where it fits."""
    x = inputs[0]
    if x.is_contiguous() and x.numel() * x.element_size() == nbytes:
        source = x.reshape(-1).view(torch.uint8)
    else:
        source = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device=x.device)
    return source, torch.empty_like(source)
