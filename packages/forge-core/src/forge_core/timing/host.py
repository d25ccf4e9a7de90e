"""Host time of eager calls, which bounds programs of many small operators, and of imports."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import torch

from forge_core.errors import BenchmarkError
from forge_core.timing.interleave import launch_order
from forge_core.timing.result import Timing

__all__ = ["host_time", "host_times", "import_times"]

HOST_METHOD = "perf_counter over batches of {batch} calls without synchronising; the stream is drained between batches"
IMPORT_METHOD = "perf_counter around the import in a fresh process, after {after}"


def host_times(
    calls: Mapping[str, Callable[[], object]], *, batch: int = 50, batches: int = 40, warmup: int = 3
) -> dict[str, Timing]:
    """Host time of each call, interleaved by batch: each sample is the mean of one batch, in milliseconds a call.

    The device is drained between batches, so that the driver's queue (about a thousand launches) never fills.

    Args:
        calls: by name; each makes one eager call and drops its result.
        batch: calls in a batch.
        batches: batches of each.
        warmup: batches of each that are not counted.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    synchronize: Callable[[], None] = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    collecting = gc.isenabled()
    gc.disable()
    try:
        for turn in range(warmup + batches):
            for name in launch_order(list(calls), turn):
                call = calls[name]
                synchronize()
                start = time.perf_counter()
                for _ in range(batch):
                    call()
                elapsed = time.perf_counter() - start
                if turn >= warmup:
                    samples[name].append(elapsed * 1e3 / batch)
        synchronize()
    finally:
        if collecting:
            gc.enable()
    method = HOST_METHOD.format(batch=batch)
    return {name: Timing(tuple(taken), method=method, warmup=warmup * batch) for name, taken in samples.items()}


def host_time(call: Callable[[], object], *, batch: int = 50, batches: int = 40, warmup: int = 3) -> Timing:
    """Host time of one call; ``.median_us`` is the figure.  See :func:`host_times` for the arguments."""
    return host_times({"call": call}, batch=batch, batches=batches, warmup=warmup)["call"]


def import_times(module: str, *, after: str = "torch", repeats: int = 5) -> Timing:
    """What importing a module adds to importing another, each time in a fresh process.

    Args:
        module: the module to import.
        after: the module imported before the clock starts.
        repeats: processes.

    Raises:
        BenchmarkError: the import failed; the message has the process's last line of error.
    """
    code = f"import time, {after}; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    samples = []
    for _ in range(repeats):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise BenchmarkError(f"import {module} failed in a fresh process: {lines[-1]}")
        samples.append(float(done.stdout.strip().splitlines()[-1]) * 1e3)
    return Timing(tuple(samples), method=IMPORT_METHOD.format(after=after))
