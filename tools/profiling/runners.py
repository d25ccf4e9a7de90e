"""Runners of ncu, nsys, compute-sanitizer and torch's profiler: their command lines and their output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from ncu_extract import diagnoses

from forge_core.errors import ForgeError
from forge_core.processes import PLACES, find_tool, how_it_ended
from forge_core.profiling.ncu import EXPORT, SECTIONS, hottest_lines, metrics_to_collect

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = Path(__file__).resolve().with_name("workload.py")

#: Where each program comes from.
INSTALL = {
    "ncu": "Install Nsight Compute (part of the CUDA toolkit; https://developer.nvidia.com/nsight-compute).",
    "nsys": "Install Nsight Systems (https://developer.nvidia.com/nsight-systems).",
    "compute-sanitizer": "It is part of the CUDA toolkit (https://developer.nvidia.com/cuda-downloads).",
}

#: Messages of a tool that cannot work, whatever its exit status, and what to do about it.
TROUBLES = {
    r"ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance Counters": (
        "this user may not read the GPU's performance counters. Run as root, or have the administrator load the driver "
        "with NVreg_RestrictProfilingToAdminUsers=0 (in a container: --cap-add=SYS_ADMIN)."
    ),
    r"Failed to initialize the profiler|LibraryNotLoaded|Failed to prepare kernel for profiling": (
        "the profiler could not be initialized: this driver or this sandbox (gVisor, for one) gives no access to the "
        "counters. Run on a machine with the plain driver."
    ),
    r"Device not supported": (
        "the tool does not support this device or this sandbox. Run on a machine with the plain driver, with a tool as "
        "new as the driver."
    ),
    r"target application returned an error code": (
        "the profiled program ended with an error; it says which, in the lines above."
    ),
    r"No kernels were profiled": (
        "no kernel ran inside the profiled range. With a command of your own, is --kernel right, and does it launch "
        "anything?"
    ),
    r"another instance of Nsight|driver resource was unavailable|ERR_NVGPUCTR\b": (
        "the counters are in use by another profiler (DCGM, another ncu). Stop it, or pause it: dcgmi profiling "
        "--pause."
    ),
}


class ToolError(ForgeError):
    """Profiling cannot be done here; the message says why and what to do."""


@dataclass(frozen=True)
class Request:
    """The options of ``run.py``; ``command`` is the user's own, which is profiled instead of cases."""

    tool: str
    package: str | None
    case: str | None
    variant: str
    sets: str | None
    command: tuple[str, ...]
    kernel: str | None
    calls: int | None
    clock_control: str
    lines: bool
    out: Path

    def target(self, stem: Path, *, calls: int, **more: str) -> list[str]:
        """The profiled command: the user's own, or the workload."""
        if self.command:
            return list(self.command)
        asked = {"package": self.package, "case": self.case, "variant": self.variant, "calls": self.calls or calls}
        manifest = str(stem.with_suffix(".manifest.json"))
        return [sys.executable, str(WORKLOAD), json.dumps({**asked, "manifest": manifest, **more})]

    def stem(self) -> Path:
        """The path of the results without an ending: folder, time, tool and case."""
        what = Path(self.command[0]).name if self.command else self.case or self.package or "smoke"
        parts = [self.tool, *([self.package] if self.package and self.case else []), what]
        parts += [self.variant] if self.variant != "auto" and not self.command else []
        words = re.sub(r"[^A-Za-z0-9_]+", "-", "-".join(parts)).strip("-")
        self.out.mkdir(parents=True, exist_ok=True)
        return self.out / f"{time.strftime('%Y%m%d-%H%M%S')}-{words}"


def program(name: str) -> str:
    """The path of a program; ToolError if it is not found."""
    found = find_tool(name)
    if found is None:
        places = ", ".join(PLACES)
        raise ToolError(f"{name} was not found on the PATH, under CUDA_HOME, or in {places}. {INSTALL[name]}")
    return found


def watch(
    command: Sequence[str], log: Path, request: Request, *, trusted: Sequence[int] = (), **variables: str
) -> tuple[int, str]:
    """Runs a tool, copies its output to stdout and to ``log``, and returns its exit status and its output.

    Unless the status is one of ``trusted``, a known trouble or a failure raises ToolError.
    """
    # Kernels are compiled in the profiled process; the variable is part of the compile cache's key.
    variables |= {"CUTE_DSL_LINEINFO": "1"} if request.lines else {}
    printed: list[str] = []
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            command,
            env={**os.environ, **variables},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        for line in cast("IO[str]", process.stdout):  # a pipe, as it was asked for
            printed.append(line)
            file.write(line)
            sys.stdout.write(line)
        status = process.wait()
    output = "".join(printed)
    if status not in trusted:
        refuse_trouble(status, output, log, request.tool)
    return status, output


def printed_by(command: Sequence[str], log: Path) -> str:
    """The output of a tool that reads its own report; raises ToolError if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        refuse_trouble(done.returncode, done.stdout + done.stderr, log, " ".join(command[:2]))
    return done.stdout


def refuse_trouble(status: int, output: str, log: Path, tool: str) -> None:
    """Raises ToolError if the output has a known trouble, or the exit status is not 0."""
    for pattern, advice in TROUBLES.items():
        if re.search(pattern, output):
            raise ToolError(f"{tool}: {advice} (output in {log})")
    if status != 0:
        raise ToolError(f"{tool} ended with {how_it_ended(status, output)} (output in {log})")


def finish(said: str, *paths: Path) -> None:
    """Prints what was found, and the files that are there."""
    sys.stdout.write("\n".join(["", said, *(f"written: {path}" for path in paths if path.exists()), ""]))


def metrics_of(sets: str | None, executable: str, *, lines: bool = False) -> list[str]:
    """The arguments of ncu that select sections and metrics."""
    if sets in (None, "forge"):
        # A metric that ncu does not know would end the run; where it does not say, all are asked for.
        done = subprocess.run([executable, "--query-metrics"], capture_output=True, text=True, check=False)
        known = {line.split()[0] for line in done.stdout.splitlines() if "__" in line.partition(" ")[0]}
        trusted = done.returncode == 0 and known
        names = [name for name in metrics_to_collect() if not trusted or name.partition(".")[0] in known]
        return [*_sections(*SECTIONS), "--metrics", ",".join(names)]
    chosen = _sections("LaunchStats", "Occupancy") if sets == "launch" else ["--set", str(sets)]
    return [*chosen, *(_sections("SourceCounters") if lines else [])]


def _sections(*names: str) -> list[str]:
    return [word for name in names for word in ("--section", name)]


def ncu(request: Request) -> int:
    """Nsight Compute: the GPU's counters of each launch, and the diagnosis."""
    executable, stem = program("ncu"), request.stem()
    log, report, table, text = (stem.with_suffix(end) for end in (".log", ".ncu-rep", ".csv", ".txt"))
    words = [executable, "--clock-control", request.clock_control, "--target-processes", "all", "--nvtx"]
    # The workload marks its range; a command of the user's own need not.
    words += ["--profile-from-start", "on" if request.command else "off"]
    words += ["--kernel-name", f"regex:{request.kernel}"] if request.kernel else []
    words += ["--import-source", "yes"] if request.lines else []
    words += [*metrics_of(request.sets, executable, lines=request.lines), "--force-overwrite", "--export", str(stem)]
    watch([*words, *request.target(stem, calls=1)], log, request)
    read = [executable, "--import", str(report)]
    table.write_text(printed_by([*read, *EXPORT], log), encoding="utf-8")
    said = "\n\n".join(found.report() for found in diagnoses(table))
    if request.lines:
        page = printed_by([*read, "--page", "source", "--print-source", "cuda,sass", "--csv"], log)
        said += "\n\n" + hottest_lines(page.splitlines())
    text.write_text(said + "\n", encoding="utf-8")
    finish(said, report, table, text, stem.with_suffix(".manifest.json"), log)
    return 0


def nsys(request: Request) -> int:
    """Nsight Systems: when each launch runs, and what the host does meanwhile."""
    executable, stem = program("nsys"), request.stem()
    log, report, text = (stem.with_suffix(end) for end in (".log", ".nsys-rep", ".txt"))
    words = [executable, "profile", "--trace", request.sets or "cuda,nvtx", "--sample", "none", "--cpuctxsw", "none"]
    if not request.command:
        words += ["--capture-range", "cudaProfilerApi", "--capture-range-end", "stop"]
    words += ["--force-overwrite", "true", "--output", str(stem)]
    watch([*words, *request.target(stem, calls=20)], log, request)  # enough calls to see a rhythm
    stats = ["stats", "--report", "cuda_gpu_kern_sum,nvtx_sum", "--force-export", "true", str(report)]
    said = printed_by([executable, *stats], log)
    text.write_text(said, encoding="utf-8")
    finish(said, report, text, log)
    return 0


SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")


def sanitizer(request: Request) -> int:
    """compute-sanitizer: accesses out of bounds, races, reads of what was never written, wrong barriers."""
    from forge_core.proofs import chunks  # imports torch

    asked = request.sets.split(",") if request.sets else SANITIZERS
    if not set(asked) <= set(SANITIZERS):
        raise ToolError(f"--set {request.sets}: expected one or several of {', '.join(SANITIZERS)}, with commas")
    executable, stem = program("compute-sanitizer"), request.stem()
    lines, logs = [], []
    for tool in asked:
        log = stem.with_name(f"{stem.name}-{tool}.log")
        words = chunks.sanitizer_words(executable, tool)
        words += ["--kernel-name", f"kernel_substring={request.kernel}"] if request.kernel else []
        command = [*words, *request.target(stem, calls=1)]
        status, output = watch(command, log, request, trusted=(0, chunks.FOUND), **chunks.UNCACHED)
        verdict = chunks.verdict_of(output)
        if not verdict:
            refuse_trouble(status, output, log, tool)
            raise ToolError(f"{tool} printed no summary (output in {log})")
        lines.append(f"{tool}: {'clean' if status == 0 and chunks.clean(verdict) else 'FOUND'}: {verdict}")
        logs.append(log)
    finish("\n".join(lines), *logs)
    return int(any(": FOUND: " in line for line in lines))


def torch(request: Request) -> int:
    """PyTorch's profiler, which works inside the process."""
    if request.command:
        raise ToolError("torch's profiler works inside a process: name a package or a case instead of a command")
    stem = request.stem()
    log, trace = stem.with_suffix(".txt"), stem.with_suffix(".trace.json")
    watch(request.target(stem, calls=20, trace=str(trace)), log, request)
    finish("", log, trace)
    return 0


#: The runners; each raises ToolError where its tool is missing, does not work here, or failed.
RUNNERS: dict[str, Callable[[Request], int]] = {"ncu": ncu, "nsys": nsys, "sanitizer": sanitizer, "torch": torch}
