"""Compiles one kernel, runs it where there is a GPU, and prints the result as one line of JSON.

    python -m forge_core.env_check.probe ARCH [GPU]

A program of its own, because a broken installation can crash the process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from forge_core.processes import how_it_ended

# Prime and more than one block, so that the last block is partial.
ELEMENTS = 1009
TIMEOUT_S = 300


@dataclass(frozen=True)
class KernelRun:
    """The result of compiling a kernel, and of running it where there is a GPU."""

    arch: str
    gpu: int | None = None  # the index of the GPU that it ran on; None where it was only compiled
    seconds: float | None = None  # of compiling
    error: str | None = None


def compile_and_run(arch: str, gpu: int | None) -> KernelRun:
    """Compiles the kernel for ``arch``; with ``gpu``, runs it there and compares every element."""
    from forge_core.env_check.kernel import AddOneConfig, build

    # Without the cache, because the compiler is checked.
    compiled = build.compile(AddOneConfig(), arch=arch)
    error = None if gpu is None else _run(compiled.launch, gpu)
    return KernelRun(arch, gpu, compiled.seconds, error)


def _run(launch: Callable[..., Any], gpu: int) -> str | None:
    import torch

    with torch.cuda.device(gpu):
        src = torch.arange(ELEMENTS, dtype=torch.int32, device="cuda")
        # Not a correct result, so that a kernel that writes nothing is detected.
        dst = torch.full_like(src, -1)
        launch(src.data_ptr(), dst.data_ptr(), ELEMENTS, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        wrong = int((dst != src + 1).sum())
    return f"{wrong} of {ELEMENTS} elements are wrong" if wrong else None


def run_in_child(arch: str, gpu: int | None) -> KernelRun:
    """Runs this module in a child process, whose crash or timeout becomes the error of the :class:`KernelRun`."""
    command = [sys.executable, "-m", "forge_core.env_check.probe", arch, *([] if gpu is None else [str(gpu)])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return KernelRun(arch, gpu, error=f"no answer after {TIMEOUT_S} s")
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return msgspec.json.decode(lines[-1], type=KernelRun)
    return KernelRun(arch, gpu, error=how_it_ended(done.returncode, done.stdout + done.stderr))


if __name__ == "__main__":
    ARCH, *INDEX = sys.argv[1:]  # an exception is left to the parent to report
    RUN = compile_and_run(ARCH, int(INDEX[0]) if INDEX else None)
    sys.stdout.write(msgspec.json.encode(RUN).decode() + "\n")
