"""The accuracy of the timers: kernels that measure their own duration, timed by each timer.

The kernel spins until a given number of nanoseconds has passed by the GPU's global timer, unaffected by clock changes,
and writes the number that really passed; what a timer measures beyond it is its error.  Copies of fixed sizes are timed
too, to compare the timers with each other.

    forge-cute bench accuracy --json FILE
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from forge_core.timing import Call, quantile
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
    works: dict[str, list[Call]] = {}
    for microseconds in DURATIONS_US:
        nanoseconds = int(microseconds * 1e3)
        works[f"spin {microseconds:g} us"] = [partial(spin, nanoseconds, took[n : n + 1]) for n in range(SAMPLES)]
    for nbytes in COPIES:
        source = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device=device)
        works[f"copy {nbytes >> 20} MiB"] = [partial(torch.empty_like(source).copy_, source)] * SAMPLES
    rows = []
    for name, make in TIMERS.items():
        timer = make(device)
        for work, launches in works.items():
            timer.batch(launches)  # warm-up
            samples = [sample * 1e3 for sample in timer.batch(launches)]
            known = [nanoseconds * 1e-3 for nanoseconds in took.tolist()] if work.startswith("spin") else []
            errors = [sample - truth for sample, truth in zip(samples, known, strict=False)]
            rows.append(
                {
                    "work": work,
                    "timer": name,
                    "known": round(median(known), 3) if known else None,
                    "median": round(median(samples), 3),
                    "p20": round(quantile(samples, 0.2), 3),
                    "p80": round(quantile(samples, 0.8), 3),
                    "error": round(median(errors), 3) if errors else None,
                }
            )
    return rows
