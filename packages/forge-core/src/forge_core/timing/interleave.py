"""Contenders timed launch by launch, in turn, over rotating buffers.

What one contender leaves behind (clocks, temperature, dirty cache lines) would favour or harm the next if each ran its
samples in one piece.  Here every round launches each contender once; the order turns from round to round and is
reversed in every second one, so that no contender always follows the same other.

Buffers rotate so that the L2 is cold.  Launch k of the whole run reads buffer set k mod n, and its output is kept alive
for n launches, so that the allocator cannot hand the same memory out sooner.  Between two uses of a buffer the GPU
therefore moves the bytes of n - 1 launches, and n is chosen so that these exceed three times the L2.

That alone is not fair: a launch pays for the dirty lines that its predecessor left in the L2, and how many those are
depends on who it was (docs/measurement.md has the figures).  So `before`, the same piece of work for all, comes before
every launch and is not part of its sample.
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

#: Beyond this many buffer sets, what comes before each launch is enough to displace so small a case's data.
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
        warmup_ms: warm-up goes on for at least this long: a GPU that was idle while the case was made ready has been
            seen to need tens of milliseconds of work to come to its full speed.
        iterations: samples of each contender; None is as many as fit in `budget_ms`, within the two limits.
        min_iterations: the least number of samples where `iterations` is None.
        max_iterations: the largest number of samples where `iterations` is None.
        budget_ms: time for all samples of all contenders of a case, where `iterations` is None.
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
        last: for each contender whose last output is still held: the index of the buffer set it was computed from,
            and the output.  They come from the timed launches themselves.
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


class _Run:
    """The running launch counter and the outputs that are kept alive."""

    def __init__(
        self, contenders: Mapping[str, Contender], timer: Timer, before: Callable[[], object] | None, *, warm: bool
    ) -> None:
        self.contenders = contenders
        self.before = before
        self.warm = warm
        self.timer = timer
        self.names = list(contenders)
        self.sets = {len(contender.sets) for contender in contenders.values()}
        if not contenders or len(self.sets) != 1 or 0 in self.sets:
            raise ValueError("time_interleaved: expected contenders with one common, positive number of buffer sets.")
        (self.count,) = self.sets
        self.kept: deque[tuple[str, int, Any]] = deque(maxlen=self.count)
        self.launched = 0
        self.turn = 0

    def _launch(self, name: str) -> Callable[[], None]:
        contender = self.contenders[name]
        index = self.launched % self.count
        self.launched += 1
        arguments = contender.sets[index]

        def launch() -> None:
            self.kept.append((name, index, contender.call(*arguments)))

        return launch

    def _warmer(self, order: Sequence[str], first: int) -> Callable[[], object]:
        """What comes before each launch of a batch, in turn: the same contender on the same buffers, untimed."""
        calls = [
            (self.contenders[name].call, self.contenders[name].sets[(first + n) % self.count])
            for n, name in enumerate(order)
        ]
        # A timer that takes a batch again begins with its first launch again, so the turns come round with it.
        turns = itertools.cycle(calls)

        def warm() -> None:
            call, arguments = next(turns)
            call(*arguments)

        return warm

    def rounds(self, count: int) -> dict[str, list[float]]:
        """Runs `count` rounds and returns the samples of each contender, in milliseconds."""
        samples: dict[str, list[float]] = {name: [] for name in self.names}
        a_batch = max(1, self.timer.batch_launches // len(self.names))
        left = count
        while left > 0:
            order: list[str] = []
            for _ in range(min(left, a_batch)):
                order += launch_order(self.names, self.turn)
                self.turn += 1
            left -= a_batch
            first = self.launched
            launches = [self._launch(name) for name in order]
            before = self._warmer(order, first) if self.warm else self.before
            taken = self.timer.batch(launches, before)
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
    run = _Run(contenders, timer, before, warm=warm)
    began = time.perf_counter()
    first = run.rounds(max(1, policy.warmup))
    while (time.perf_counter() - began) * 1e3 < policy.warmup_ms:
        run.rounds(max(1, timer.batch_launches // len(contenders)))
    warmup = run.turn
    clock_before = timer.clock_mhz()
    round_ms = sum(min(samples) for samples in first.values())
    taken = run.rounds(policy.rounds(round_ms))
    clock_after = timer.clock_mhz()
    timings = {
        name: Timing(
            samples_ms=tuple(samples),
            method=timer.method,
            l2=l2,
            warmup=warmup,
            clocks_mhz=(clock_before, clock_after),
        )
        for name, samples in taken.items()
    }
    return Interleaved(timings, last={name: (index, output) for name, index, output in run.kept})
