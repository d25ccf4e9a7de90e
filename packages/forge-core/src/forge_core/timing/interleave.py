"""Interleaved timing: contenders take turns launch by launch, over rotating buffers.

Every round launches each contender once.  The order rotates from round to round and is reversed in every second one, so
that what a launch leaves behind (clocks, temperature, dirty lines) does not always meet the same successor.

Launch k reads buffer set k mod n, and its output is kept alive for n launches, so that the allocator cannot reuse its
memory sooner.  A launch still pays for the dirty lines of its predecessor (docs/measurement.md has the figures), so
`before`, the same work for all, precedes every launch and is not part of its sample.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from forge_core.timing import Call, Timing


class Timer(Protocol):
    """Times a batch of launches; `method` says how in words, `batch_launches` how many at once."""

    method: str
    batch_launches: int

    def batch(self, launches: Sequence[Call], before: Call | None = None) -> list[float]:
        """Milliseconds of each launch; `before` is called before each and is not part of its sample."""

    def clock_mhz(self) -> int | None:
        """The processor's clock under load, in MHz; None where it cannot be read."""


@dataclass(frozen=True)
class Policy:
    """How often to measure."""

    warmup: int = 5  # rounds before the first sample, at least one
    warmup_ms: float = 0.0  # at least: an idle GPU needs tens of milliseconds to come to its full speed
    iterations: int | None = None  # samples of each contender; None for as many as fit in the budget, within the limits
    min_iterations: int = 25
    max_iterations: int = 200
    budget_ms: float = 300.0  # for all samples of all contenders of a case

    def rounds(self, round_ms: float) -> int:
        """Samples to take where a round of all contenders takes `round_ms`."""
        if self.iterations is not None:
            return self.iterations
        fitting = self.max_iterations if round_ms <= 0 else int(self.budget_ms / round_ms)
        return max(self.min_iterations, min(self.max_iterations, fitting))


@dataclass(frozen=True)
class Contender:
    """A call, and the buffer sets that it takes as its arguments; set k of each contender holds the same data."""

    call: Callable[..., Any]
    sets: Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Interleaved:
    """The samples of each contender, and its last output, if it is still alive, with its buffer set's index."""

    timings: dict[str, Timing]
    last: dict[str, tuple[int, Any]] = field(repr=False)


def launch_order(names: Sequence[str], turn: int) -> list[str]:
    """The order of the contenders in round `turn`."""
    shift = (turn // 2) % max(1, len(names))
    rotated = [*names[shift:], *names[:shift]]
    return rotated[::-1] if turn % 2 else rotated


def time_interleaved(
    contenders: Mapping[str, Contender],
    *,
    timer: Timer,
    policy: Policy | None = None,
    before: Call | None = None,
    warm: bool = False,
) -> Interleaved:
    """Times contenders, by name, against each other.

    `before` is called before every launch, to put the device into the same state, and is not part of any sample.  With
    `warm`, an untimed launch of the same contender on the same buffers comes in its place.

    Raises:
        BenchmarkError: the timer could not take a sample.
        ValueError: the contenders have different numbers of buffer sets, or none.
    """
    counts = {len(contender.sets) for contender in contenders.values()}
    if len(counts) != 1 or 0 in counts:
        raise ValueError("time_interleaved: expected contenders with one common, positive number of buffer sets.")
    (count,) = counts
    policy, names = policy or Policy(), list(contenders)
    batch = max(1, timer.batch_launches // len(names))
    kept: deque[tuple[str, int, Any]] = deque(maxlen=count)
    launched, turns = itertools.count(), itertools.count()

    def prepared(name: str) -> tuple[Call, Call]:
        """The next launch of a contender, and the same without keeping its output."""
        call, index = contenders[name].call, next(launched) % count
        arguments = contenders[name].sets[index]
        return lambda: kept.append((name, index, call(*arguments))), lambda: call(*arguments)

    def rounds(number: int) -> dict[str, list[float]]:
        """Milliseconds of each contender in that many rounds."""
        samples: dict[str, list[float]] = {name: [] for name in names}
        for start in range(0, number, batch):
            own = itertools.islice(turns, min(batch, number - start))
            order = [name for turn in own for name in launch_order(names, turn)]
            launches, untimed = zip(*map(prepared, order), strict=True)
            again = (call() for call in itertools.cycle(untimed)).__next__  # a timer may repeat its batch
            taken = timer.batch(launches, again if warm else before)
            for name, sample in zip(order, taken, strict=True):
                samples[name].append(sample)
        return samples

    began = time.perf_counter()
    first = rounds(max(1, policy.warmup))
    while (time.perf_counter() - began) * 1e3 < policy.warmup_ms:
        rounds(batch)
    clock = timer.clock_mhz()
    taken = rounds(policy.rounds(sum(min(samples) for samples in first.values())))
    clocks = (clock, timer.clock_mhz())
    timings = {name: Timing(tuple(samples), timer.method, clocks) for name, samples in taken.items()}
    return Interleaved(timings, last={name: (index, output) for name, index, output in kept})
