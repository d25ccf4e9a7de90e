"""Interleaved timing: contenders take turns launch by launch, over rotating buffers.

Every round launches each contender once.  The order turns from round to round and is reversed in every second one, so
that what a launch leaves behind (clocks, temperature, dirty lines) does not always meet the same successor.

Launch k reads buffer set k mod n, and its output is kept alive for n launches, so that the allocator cannot hand the
same memory out sooner.  n is chosen so that more than three times the L2 moves between two uses of a buffer: the L2 is
cold.  A launch still pays for the dirty lines of its predecessor (docs/measurement.md has the figures), so `before`,
the same work for all, comes before every launch and is not part of its sample.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from forge_core.timing.result import Timing

__all__ = ["Contender", "Interleaved", "Policy", "Timer", "launch_order", "sets_for", "time_interleaved"]

#: Most buffer sets: a smaller case's data is displaced by what comes before each launch.
MAX_SETS = 256


class Timer(Protocol):
    """What times a batch of launches: :class:`~forge_core.timing.events.EventTimer` or ``WallTimer``."""

    @property
    def method(self) -> str:
        """How it times, in words."""

    @property
    def batch_launches(self) -> int:
        """Launches that it takes at once."""

    def batch(
        self, launches: Sequence[Callable[[], object]], before: Callable[[], object] | None = None
    ) -> list[float]:
        """Milliseconds of each launch; `before` is called before each and is not part of its sample."""

    def clock_mhz(self) -> int | None:
        """The processor's clock under load, or None where it is not read."""


@dataclass(frozen=True)
class Policy:
    """How often to measure.

    Attributes:
        warmup: rounds before the first sample; at least one is run to learn how long a round takes.
        warmup_ms: the least time of the warm-up: an idle GPU needs tens of milliseconds to come to its full speed.
        iterations: samples of each contender; None for as many as fit in `budget_ms`, within the two limits.
        min_iterations, max_iterations: limits of the number of samples where `iterations` is None.
        budget_ms: time for all samples of all contenders of a case where `iterations` is None.
    """

    warmup: int = 5
    warmup_ms: float = 0.0
    iterations: int | None = None
    min_iterations: int = 25
    max_iterations: int = 200
    budget_ms: float = 300.0

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise ValueError(f"Policy: warmup: expected 0 or more rounds, got {self.warmup}.")
        if self.iterations is not None and self.iterations < 1:
            raise ValueError(f"Policy: iterations: expected 1 or more samples, got {self.iterations}.")

    def rounds(self, round_ms: float) -> int:
        """Samples to take where a round of all contenders takes `round_ms`."""
        if self.iterations is not None:
            return self.iterations
        fitting = self.max_iterations if round_ms <= 0 else int(self.budget_ms / round_ms)
        return max(self.min_iterations, min(self.max_iterations, fitting))


@dataclass(frozen=True)
class Contender:
    """One way to do the work.

    Attributes:
        call: takes a buffer set as its arguments and returns its output, which it allocates itself.
        sets: its buffer sets; all contenders of a run have the same number, and set k of each holds the same data.
    """

    call: Callable[..., Any]
    sets: Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Interleaved:
    """The outcome of one interleaved run.

    Attributes:
        timings: the samples of each contender.
        last: for each contender whose last output is still alive, the index of its buffer set and the output, from the
            timed launches themselves.
    """

    timings: dict[str, Timing]
    last: dict[str, tuple[int, Any]] = field(repr=False)


def sets_for(nbytes: int, l2_bytes: int, *, multiple: float = 3.0) -> int:
    """How many buffer sets make the L2 cold: 2 to 256.

    Args:
        nbytes: bytes that one launch reads and writes.
        l2_bytes: the L2's size.
        multiple: how many times the L2's size moves between two uses of a buffer.
    """
    needed = 1 + math.ceil(multiple * l2_bytes / max(1, nbytes))
    return max(2, min(needed, MAX_SETS))


def launch_order(names: Sequence[str], turn: int) -> list[str]:
    """The order of the contenders in round `turn`: it turns, and every second round is reversed."""
    if not names:
        return []
    shift = (turn // 2) % len(names)
    turned = [*names[shift:], *names[:shift]]
    return turned[::-1] if turn % 2 else turned


def _in_turn(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """Makes one call after the other, then the first again, as a timer does that takes a batch again."""
    turns = itertools.cycle(calls)

    def call() -> object:
        return next(turns)()

    return call


class _Run:
    """The launch counter, and the outputs that are kept alive."""

    def __init__(self, contenders: Mapping[str, Contender], timer: Timer) -> None:
        counts = {len(contender.sets) for contender in contenders.values()}
        if len(counts) != 1 or 0 in counts:
            raise ValueError("time_interleaved: expected contenders with one common, positive number of buffer sets.")
        (self.count,) = counts
        self.contenders = contenders
        self.timer = timer
        self.kept: deque[tuple[str, int, Any]] = deque(maxlen=self.count)
        self.launched = 0
        self.turn = 0

    def _launch(self, name: str) -> tuple[Callable[[], object], Callable[[], object]]:
        """The next launch of a contender, and the same call with its output dropped."""
        call, index = self.contenders[name].call, self.launched % self.count
        arguments = self.contenders[name].sets[index]
        self.launched += 1
        return lambda: self.kept.append((name, index, call(*arguments))), lambda: call(*arguments)

    def rounds(self, count: int, before: Callable[[], object] | None, *, warm: bool) -> dict[str, list[float]]:
        """Runs `count` rounds and returns the samples of each contender, in milliseconds."""
        names = list(self.contenders)
        samples: dict[str, list[float]] = {name: [] for name in names}
        a_batch = max(1, self.timer.batch_launches // len(names))
        end = self.turn + count
        while self.turn < end:
            turns = range(self.turn, min(self.turn + a_batch, end))
            order = [name for turn in turns for name in launch_order(names, turn)]
            self.turn = turns.stop
            launches, untimed = zip(*map(self._launch, order), strict=True)
            taken = self.timer.batch(launches, _in_turn(untimed) if warm else before)
            for name, sample in zip(order, taken, strict=True):
                samples[name].append(sample)
        return samples


def time_interleaved(
    contenders: Mapping[str, Contender],
    *,
    timer: Timer,
    policy: Policy | None = None,
    l2: str = "not controlled",
    before: Callable[[], object] | None = None,
    warm: bool = False,
) -> Interleaved:
    """Times contenders against each other.

    Args:
        contenders: by name; the order is that of the first round.
        timer: what takes the samples.
        policy: how many; None is the default policy.
        l2: the state of the cache before each launch, in words, as the caller arranged it with the buffer sets and
            with `before`.
        before: work that puts the device into the same state before every launch; not part of any sample.
        warm: every launch follows an untimed one of the same contender on the same buffers, in place of `before`.

    Raises:
        ValueError: no contenders, or unequal numbers of buffer sets.
        BenchmarkError: the timer could not take a sample.
    """
    policy = policy or Policy()
    run = _Run(contenders, timer)
    began = time.perf_counter()
    first = run.rounds(max(1, policy.warmup), before, warm=warm)
    while (time.perf_counter() - began) * 1e3 < policy.warmup_ms:
        run.rounds(max(1, timer.batch_launches // len(contenders)), before, warm=warm)
    warmup = run.turn
    clock_before = timer.clock_mhz()
    round_ms = sum(min(samples) for samples in first.values())
    taken = run.rounds(policy.rounds(round_ms), before, warm=warm)
    clocks = (clock_before, timer.clock_mhz())
    timings = {
        name: Timing(tuple(samples), method=timer.method, l2=l2, warmup=warmup, clocks_mhz=clocks)
        for name, samples in taken.items()
    }
    return Interleaved(timings, last={name: (index, output) for name, index, output in run.kept})
