"""Timing by the host's clock: calls on the CPU, the host time of eager calls on a GPU, and imports."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from forge_core.errors import BenchmarkError
from forge_core.processes import how_it_ended
from forge_core.timing import Call, Timing
from forge_core.timing.interleave import Contender, Policy, time_interleaved

#: Calls of a batch of host time.
BATCH = 50
HOST_METHOD = "perf_counter over batches of {batch} calls without synchronising; the stream is drained between batches"
#: Seconds after which a fresh process is ended.
SECONDS = 600


class WallTimer:
    """Times calls that have finished when they return, as PyTorch's CPU operators do."""

    method = "perf_counter around each call, on the CPU"
    batch_launches = 16

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock_ns = clock_ns

    def batch(self, launches: Sequence[Call], before: Call | None = None) -> list[float]:
        """Milliseconds of each launch; `before` is called before each and is not part of its sample."""
        samples = []
        for launch in launches:
            if before is not None:
                before()
            start = self._clock_ns()
            launch()
            samples.append((self._clock_ns() - start) * 1e-6)
        return samples

    def clock_mhz(self) -> int | None:
        """None: the CPU's clock is not read."""
        return None


def host_times(calls: Mapping[str, Call], *, batch: int = BATCH, batches: int = 40) -> dict[str, Timing]:
    """Host time of each call; a sample is the mean of one batch, in milliseconds a call, batches taking turns.

    The device is drained between batches, so that the driver's queue (about a thousand launches) never fills.
    """

    def repeated(call: Call) -> None:
        for _ in range(batch):
            call()

    collecting = gc.isenabled()
    gc.disable()
    try:
        run = time_interleaved(
            {name: Contender(repeated, [(call,)]) for name, call in calls.items()},
            timer=WallTimer(),
            policy=Policy(warmup=3, iterations=batches),
            before=torch.cuda.synchronize if torch.cuda.is_available() else None,
        )
    finally:
        if collecting:
            gc.enable()
    samples = {name: tuple(ms / batch for ms in timing.samples_ms) for name, timing in run.timings.items()}
    return {name: Timing(taken, HOST_METHOD.format(batch=batch)) for name, taken in samples.items()}


def import_times(module: str, *, after: str = "torch", repeats: int = 5) -> Timing:
    """Time of importing a module after another one, each time in a fresh process.

    Raises:
        BenchmarkError: the import failed.
    """
    code = f"import time, {after}; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    samples = [float(fresh_process(["-c", code], f"import {module}")) * 1e3 for _ in range(repeats)]
    return Timing(tuple(samples), f"perf_counter around the import in a fresh process, after {after}")


def fresh_process(arguments: Sequence[str], what: str, variables: Mapping[str, str] | None = None, **names: str) -> str:
    """The last line that Python prints in a process of its own, with `variables` added to the environment.

    Raises:
        BenchmarkError: `what` failed, and the message has the last line of its errors; or it took too long.
    """
    command, env = [sys.executable, *arguments], {**os.environ, **(variables or {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, env=env)
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{what} did not end within {SECONDS} s in a fresh process", **names) from error
    if done.returncode != 0:
        raise BenchmarkError(f"{what} failed in a fresh process: {how_it_ended(done.returncode, done.stderr)}", **names)
    return done.stdout.strip().rpartition("\n")[2]
