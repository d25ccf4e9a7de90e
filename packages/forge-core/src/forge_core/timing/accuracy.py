"""The accuracy of the timers: kernels that measure their own duration, timed by each timer.

The kernel spins until a given number of nanoseconds has passed by the GPU's global timer, unaffected by clock changes,
and writes the number that really passed; what a timer measures beyond it is its error.  Copies of fixed sizes are timed
too, to compare the timers with each other.

    forge-cute bench accuracy --json FILE
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch

from forge_core.timing import Call, quantile
from forge_core.timing.interleave import Timer
from forge_core.timing.timers import TIMERS

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


def known_duration(device: torch.device) -> Callable[[int, torch.Tensor], None]:
    """The kernel that spins: takes nanoseconds, and an int64 tensor of one element for those that really passed."""
    with torch.cuda.device(device):
        kernel = torch.cuda._compile_kernel(SOURCE, "spin_for_ns")

    def spin(nanoseconds: int, took: torch.Tensor) -> None:
        kernel(grid=(1, 1, 1), block=(1, 1, 1), args=[nanoseconds, took])

    return spin


def measure_accuracy(device: torch.device) -> list[dict[str, Any]]:
    """Times work of known duration, and copies, by each timer.

    Returns:
        For each work and timer, in microseconds: ``median``, ``p20`` and ``p80`` of the samples; ``known``, the median
        of the known durations; ``error``, the median difference of a sample and the known duration of its launch.  The
        last two are None for copies.
    """
    spin = known_duration(device)
    took = torch.zeros(SAMPLES, dtype=torch.int64, device=device)
    rows = []
    for name, make in TIMERS.items():
        timer = make(device)
        for microseconds in DURATIONS_US:
            launches = [partial(spin, int(microseconds * 1e3), took[n : n + 1]) for n in range(SAMPLES)]
            samples = _microseconds(timer, launches)
            known = [nanoseconds * 1e-3 for nanoseconds in took.tolist()]
            rows.append(_row(f"spin {microseconds:g} us", name, samples, known))
        for nbytes in COPIES:
            source = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device=device)
            samples = _microseconds(timer, [partial(torch.empty_like(source).copy_, source)] * SAMPLES)
            rows.append(_row(f"copy {nbytes >> 20} MiB", name, samples, None))
    return rows


def _microseconds(timer: Timer, launches: Sequence[Call]) -> list[float]:
    timer.batch(launches)  # warm-up
    return [sample * 1e3 for sample in timer.batch(launches)]


def _row(work: str, timer: str, samples: list[float], known: list[float] | None) -> dict[str, Any]:
    errors = None if known is None else [sample - truth for sample, truth in zip(samples, known, strict=True)]
    return {
        "work": work,
        "timer": timer,
        "known": known and round(median(known), 3),
        "median": round(median(samples), 3),
        "p20": round(quantile(samples, 0.2), 3),
        "p80": round(quantile(samples, 0.8), 3),
        "error": errors and round(median(errors), 3),
    }
