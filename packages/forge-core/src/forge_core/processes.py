"""External programs: finding those of a CUDA installation, and describing how a process ended."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

#: Where NVIDIA's installers put programs that are not on the PATH.
PLACES = (
    "/usr/local/cuda/bin",
    "/usr/local/cuda/compute-sanitizer",
    "/usr/local/cuda-*/bin",
    "/usr/local/cuda-*/compute-sanitizer",
    "/opt/nvidia/nsight-compute/*",
    "/opt/nvidia/nsight-systems/*/bin",
    "/opt/nvidia/nsight-systems/*",
)


def find_tool(name: str) -> str | None:
    """The path of a program: on the PATH, under CUDA_HOME or CUDA_PATH, or in :data:`PLACES`, newest version first."""
    homes = [str(Path(os.environ[v], "bin")) for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
    folders = [str(f) for place in PLACES for f in sorted(Path("/").glob(place.lstrip("/")), reverse=True)]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join([*homes, *folders]))


def how_it_ended(status: int, printed: str) -> str:
    """A process's exit status, or minus its signal, and the last line that it printed."""
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return f"{how}: {lines[-1]}" if lines else how
