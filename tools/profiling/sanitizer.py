"""compute-sanitizer: accesses out of bounds, races, reads of what was never written, wrong barriers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from common import CannotProfile, Request, refuse_trouble, tool_at, watch_tool, written

INSTALL = "It is part of the CUDA toolkit (https://developer.nvidia.com/cuda-downloads)."

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")

#: What a tool ends with when it found something; the workload itself never ends so.
FOUND = 86

_SUMMARY = re.compile(r"(ERROR|RACECHECK) SUMMARY: (.*)")


def tools_of(sets: str | None) -> list[str]:
    """The tools that were asked for; all by default.

    Raises:
        CannotProfile: one of them does not exist.
    """
    asked = sets.split(",") if sets else list(TOOLS)
    for name in asked:
        if name not in TOOLS:
            raise CannotProfile(f"--set {name}: expected one or several of {', '.join(TOOLS)}, joined by commas")
    return asked


def command_for(request: Request, executable: str, tool: str, stem: Path) -> list[str]:
    """The whole command line of one tool."""
    words = [executable, "--tool", tool, "--error-exitcode", str(FOUND), "--target-processes", "all"]
    # torch probes what a driver can do by calls that may fail; an error of a kernel is reported all the same.
    words += ["--report-api-errors", "no"] if tool == "memcheck" else []
    words += ["--kernel-name", f"kernel_substring={request.kernel}"] if request.kernel else []
    return [*words, *request.target(stem.with_suffix(".manifest.json"), calls=1)]


def run(request: Request) -> int:
    """Runs each tool and prints its summary; exit status 1 where one of them found something.

    Raises:
        CannotProfile: the sanitizer is missing, does not work here, or failed.
    """
    executable = tool_at("compute-sanitizer", install=INSTALL)
    stem = request.stem()
    # PyTorch hands out parts of large blocks, in which an access out of bounds is inside a block: switch that off.
    environment = {**request.environment(), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    lines, found, logs = [], 0, []
    for tool in tools_of(request.sets):
        log = stem.with_name(f"{stem.name}-{tool}.log")
        logs.append(log)
        command = command_for(request, executable, tool, stem)
        name = f"compute-sanitizer {tool}"
        status, output = watch_tool(name, command, log, environment, trusted=(0, FOUND))
        summary = _SUMMARY.findall(output)
        if not summary:
            refuse_trouble(name, status, output, log)
            raise CannotProfile(f"{name} printed no summary (output in {log})")
        clean = status == 0 and all(re.match(r"0 (errors|hazards)", said) for _, said in summary)
        found += not clean
        lines.append(f"{tool}: {'clean' if clean else 'FOUND'}: {summary[-1][1]}")
    sys.stdout.write("\n" + "\n".join(lines) + f"\n{written(logs)}\n")
    return 1 if found else 0
