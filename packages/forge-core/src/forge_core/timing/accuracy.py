"""The accuracy of the timers: kernels that measure their own duration, timed by each timer.

The kernel spins until a given number of nanoseconds has passed by the GPU's global timer, which no clock change moves,
and writes the number that really passed.  What a timer says beyond it is its error.  Copies of fixed sizes are timed
too, by which the timers can be compared with each other.

    forge-cute bench accuracy --json FILE
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from forge_core.errors import UnsupportedError
from forge_core.timing import TIMERS, Timer
from forge_core.timing.result import quantile

__all__ = ["DURATIONS_US", "Row", "known_duration", "make_timer", "measure_accuracy"]

#: Durations of the spins, in microseconds: from a small launch to a case of 4 GB.
DURATIONS_US = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0)
SAMPLES = 48
COPIES = (2**20, 2**24, 2**28)

SOURCE = r"""
__device__ __forceinline__ unsigned long long now() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
extern "C" __global__ void spin_for_ns(unsigned long long ns, unsigned long long* took) {
  const unsigned long long begin = now();
  unsigned long long t = begin;
  while (t - begin < ns) t = now();
  *took = t - begin;
}
"""


@dataclass(frozen=True)
class Row:
    """One line of the table; all times in microseconds.

    Attributes:
        work: what was timed.
        timer: the timer's name.
        known: the median of the known durations; None for copies.
        median, p20, p80: what the timer says.
        error: the median difference of a sample and the known duration of its launch; None for copies.
    """

    work: str
    timer: str
    known: float | None
    median: float
    p20: float
    p80: float
    error: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, rounded to nanoseconds."""
        return {k: round(v, 3) if isinstance(v, float) else v for k, v in asdict(self).items()}


def make_timer(name: str, device: torch.device) -> Timer:
    """The timer of that name; see :data:`forge_core.timing.TIMERS`.

    Raises:
        ValueError: an unknown name.
        UnsupportedError: the device is no CUDA device.
    """
    if name not in TIMERS:
        raise ValueError(f"timer: expected one of {', '.join(TIMERS)}, got {name!r}.")
    module, _, attribute = TIMERS[name].partition(":")
    timer: Timer = getattr(importlib.import_module(module), attribute)(device)
    return timer


def known_duration(device: torch.device) -> Callable[[int, torch.Tensor], None]:
    """The kernel that spins: takes nanoseconds, and an int64 tensor of one element for those that really passed.

    Raises:
        UnsupportedError: this torch has no run-time compiler of CUDA sources.
    """
    compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
    if compile_kernel is None:
        raise UnsupportedError(
            "the kernel of known duration is compiled by torch.cuda._compile_kernel, which this torch does not have; "
            "torch 2.9 and newer do",
            requirement="torch 2.9",
        )
    with torch.cuda.device(device):
        kernel = compile_kernel(SOURCE, "spin_for_ns")

    def spin(nanoseconds: int, took: torch.Tensor) -> None:
        kernel(grid=(1, 1, 1), block=(1, 1, 1), args=[nanoseconds, took])

    return spin


def measure_accuracy(device: torch.device, timers: Sequence[str] = tuple(TIMERS)) -> list[Row]:
    """Times work of known duration, and copies, by each timer."""
    spin = known_duration(device)
    took = torch.zeros(SAMPLES, dtype=torch.int64, device=device)
    rows = []
    for name in timers:
        timer = make_timer(name, device)
        for microseconds in DURATIONS_US:
            launches = [partial(spin, int(microseconds * 1e3), took[n : n + 1]) for n in range(SAMPLES)]
            said = _microseconds(timer, launches)
            known = [nanoseconds * 1e-3 for nanoseconds in took.tolist()]
            errors = [sample - truth for sample, truth in zip(said, known, strict=True)]
            rows.append(_row(f"spin {microseconds:g} us", name, said, quantile(known, 0.5), quantile(errors, 0.5)))
        for nbytes in COPIES:
            source = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device=device)
            said = _microseconds(timer, [partial(torch.empty_like(source).copy_, source)] * SAMPLES)
            rows.append(_row(f"copy {nbytes >> 20} MiB", name, said, None, None))
    return rows


def _microseconds(timer: Timer, launches: Sequence[Callable[[], object]]) -> list[float]:
    timer.batch(launches)  # warm-up
    return [sample * 1e3 for sample in timer.batch(launches)]


def _row(work: str, timer: str, said: list[float], known: float | None, error: float | None) -> Row:
    return Row(work, timer, known, quantile(said, 0.5), quantile(said, 0.2), quantile(said, 0.8), error)
