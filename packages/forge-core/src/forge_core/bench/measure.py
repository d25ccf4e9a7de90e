"""Measures one case once: checks its contenders, times them against each other, and checks them again.

Before a checked call, memory of its output's size is filled with a pattern and freed, so that the allocator reuses it
for the output: an element that is not written shows the pattern, not the last call's right result.  A result that
shares memory with an input is wrong, and so is a call that changes its input.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from forge_core import settings
from forge_core.bench import Inputs, Peer
from forge_core.bench.gate import exact
from forge_core.bench.inputs import generator_for
from forge_core.bench.plan import PlannedCase
from forge_core.bench.records import Cold
from forge_core.bench.schema import AUTO, CEILING, our_name
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


@dataclass
class Outcome:
    """What a :class:`CaseRecord` has, of one run; by contender: ours first, then the peers, then the ceiling."""

    timings: dict[str, Timing] = field(default_factory=dict)
    described: dict[str, dict[str, Any]] = field(default_factory=dict)  # variant, config, why
    first_call_s: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    floor_ms: float = 0.0
    l2: str = ""
    notes: list[str] = field(default_factory=list)
    cold: dict[str, Cold] = field(default_factory=dict)


def error_text(error: Exception, who: str = "") -> str:
    """An error as a record has it: with its type, unless it is a BenchmarkError."""
    kind = "" if isinstance(error, BenchmarkError) else f"{who}{type(error).__name__}: "
    return kind + (str(error).strip() or "no message")


def measure(planned: PlannedCase, context: Context) -> Outcome:
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
        self.planned, self.context, self.outcome = planned, context, Outcome()
        self.device = context.options.device
        self.case, self.operator = planned.case, planned.operator

    def run(self) -> Outcome:
        outcome, context = self.outcome, self.context
        calls = self.contenders(self.fresh("explained"))
        outcome.first_call_s = self.check(calls, "before the timing")
        calls = {name: call for name, call in calls.items() if name not in outcome.wrong}
        if self.device.type == "cuda" and context.run == 0:
            self.check_streams(calls)
        if context.host:
            inputs = self.fresh("timed")
            outcome.timings = host_times({name: partial(call, *inputs) for name, call in calls.items()})
            outcome.l2 = "warm: host time, one buffer set"
        else:
            self.time_device(calls)
        self.check(calls, "after the timing")
        outcome.timings = {name: timing for name, timing in outcome.timings.items() if name not in outcome.wrong}
        outcome.notes += disturbances(outcome.timings, self.device)
        return outcome

    def fresh(self, what: str) -> Inputs:
        """New inputs, the same in every process."""
        text = f"{self.case.name}, run {self.context.run}, {what}"
        generator = generator_for(self.device, seed=self.context.options.seed, what=text)
        return self.operator.inputs(self.case, self.device, generator)

    def refuse(self, when: str, name: str, problem: str | Exception) -> None:
        """Raises the error of ours, or of a peer that was asked for by name; records that of another peer."""
        if isinstance(problem, str):
            problem = BenchmarkError(f"wrong result {when}: {problem}", peer=name)
        if self.operator.peer(name) is None or self.planned.peers_asked:
            raise problem
        self.outcome.wrong[name] = error_text(problem, f"peer {name}: ")

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
            seconds[name] = time.perf_counter() - start
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
        planned, context, operator, outcome = self.planned, self.context, self.operator, self.outcome
        calls: Calls = {}
        for variant in planned.variants:
            name = our_name(variant)
            if context.options.backend == "ref":
                if variant != AUTO:
                    outcome.left_out[name] = "the backend is 'ref', which has no variants"
                    continue
                why = "the backend is 'ref': plain PyTorch is timed"
                outcome.described[name] = {"variant": "reference", "why": why}
            else:
                try:
                    found = operator.explain(inputs, variant)
                except (ArgumentError, UnsupportedError) as error:
                    if variant not in planned.lenient:
                        raise
                    outcome.left_out[name] = str(error)
                    continue
                outcome.described[name] = {key: str(getattr(found, key)) for key in ("variant", "config", "why")}
            calls[name] = operator.call(variant)
        return calls | {peer.name: peer.make(self.case) for peer in willing_peers(planned, context, outcome)}

    def check_streams(self, calls: Calls) -> None:
        inputs = self.fresh("streams")
        want = self.operator.reference(*inputs)
        for name, call in calls.items():
            agrees = partial(self.operator.wrong, name, inputs, want=want)
            if not check_stream(call, inputs, agrees, peer=name):
                note = f"{name} waits for the GPU, so the stream that it works on was not checked."
                self.outcome.notes.append(note)

    def time_device(self, calls: Calls) -> None:
        """Times the contenders, and a copy of the same bytes, launch by launch; checks the last output of each."""
        context, outcome, operator, l2 = self.context, self.outcome, self.operator, self.context.l2
        traffic = operator.traffic(self.case)
        outcome.l2 = l2.describe(traffic.total)
        # A warm L2 may serve every byte, so DRAM bandwidth does not bound the time.
        if self.device.type == "cuda" and not l2.warm:
            bandwidth = query(self.device).bandwidth_gbs
            outcome.floor_ms = floor_ms(
                read=traffic.read, written=traffic.written, l2_bytes=l2.l2_bytes, bandwidth_gbs=bandwidth
            )
        sets = [self.fresh(f"set {number}") for number in range(l2.sets(traffic.total))]
        timed = {name: Contender(call, sets) for name, call in calls.items()}
        pairs = [_ceiling_pair(inputs, traffic.total // 2) for inputs in sets]
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
            check_floor(timing, outcome.floor_ms, peer=name)
        outcome.timings = run.timings


def poison(nbytes: int, device: torch.device) -> None:
    """Fills memory of that size with the pattern and frees it, for the allocator to hand out next."""
    blocks = [torch.full((nbytes,), POISON, dtype=torch.uint8, device=device) for _ in range(POISONED_BLOCKS)]
    del blocks


def willing_peers(planned: PlannedCase, context: Context, outcome: Outcome) -> list[Peer]:
    """The peers that can run the case; the others go into ``outcome.left_out``.

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
            outcome.left_out[peer.name] = text
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
