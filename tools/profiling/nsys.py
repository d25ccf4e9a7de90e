"""Nsight Systems: when each launch runs, and what the host does meanwhile."""

from __future__ import annotations

import sys
from pathlib import Path

from common import CannotProfile, Request, printed_by, tool_at, watch_tool, written

INSTALL = "Install Nsight Systems (https://developer.nvidia.com/nsight-systems)."

#: Enough calls to see a rhythm.
CALLS = 20


def command_for(request: Request, executable: str, stem: Path) -> list[str]:
    """The whole command line."""
    words = [executable, "profile", "--trace", request.sets or "cuda,nvtx", "--sample", "none", "--cpuctxsw", "none"]
    if not request.command:
        words += ["--capture-range", "cudaProfilerApi", "--capture-range-end", "stop"]
    words += ["--force-overwrite", "true", "--output", str(stem)]
    return [*words, *request.target(stem.with_suffix(".manifest.json"), calls=CALLS)]


def run(request: Request) -> int:
    """Records a timeline and prints its kernels.

    Raises:
        CannotProfile: nsys is missing or failed.
    """
    executable = tool_at("nsys", install=INSTALL)
    stem = request.stem()
    log, report, text = (stem.with_suffix(end) for end in (".log", ".nsys-rep", ".txt"))
    watch_tool("nsys", command_for(request, executable, stem), log, request.environment())
    if not report.exists():
        raise CannotProfile(f"nsys ended well and wrote no {report} (output in {log})")
    words = ["stats", "--report", "cuda_gpu_kern_sum,nvtx_sum", "--force-export", "true", str(report)]
    said = printed_by("nsys stats", [executable, *words], log)
    text.write_text(said, encoding="utf-8")
    sys.stdout.write(f"\n{said}\n{written([report, text, log])}\n")
    return 0
