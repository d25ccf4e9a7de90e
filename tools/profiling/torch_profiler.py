"""PyTorch's profiler: what a call costs the host, and its kernels beside torch's own."""

from __future__ import annotations

import sys

from common import CannotProfile, Request, refuse_trouble, run_tool, written

CALLS = 20


def run(request: Request) -> int:
    """Runs the workload under torch.profiler, in a process of its own.

    Raises:
        CannotProfile: a command of the user's own was given, or the workload failed.
    """
    if request.command:
        raise CannotProfile("torch's profiler works inside a process: name a package or a case instead of a command")
    stem = request.stem()
    log, trace, manifest = (stem.with_suffix(end) for end in (".txt", ".trace.json", ".manifest.json"))
    command = request.target(manifest, calls=CALLS, more=["--torch-profiler", str(trace)])
    status, output = run_tool(command, log, request.environment())
    refuse_trouble("torch profiler", status, output, log)
    sys.stdout.write(f"{written([log, trace])}\n")
    return 0
