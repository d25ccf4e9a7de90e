"""What the runners share: finding a tool, starting it, and saying what is wrong where it does not work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

from forge_core.profiling.cuda_tools import PLACES, find_tool

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = Path(__file__).resolve().with_name("workload.py")

#: Exit status where a tool is missing, may not do its work, or was asked for what does not exist.
CANNOT = 2


class CannotProfile(Exception):  # noqa: N818 - reads as the sentence that it is
    """Profiling cannot be done here; the message says why and what to do."""


@dataclass(frozen=True)
class Trouble:
    """What a tool prints when it cannot work, and what to do about it."""

    pattern: str
    advice: str


#: Looked for in what a tool prints, whatever its exit status.
TROUBLES = (
    Trouble(
        r"ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance Counters",
        "this user may not read the GPU's performance counters. Run as root, or have the administrator load the driver "
        "with NVreg_RestrictProfilingToAdminUsers=0 (in a container: --cap-add=SYS_ADMIN).",
    ),
    Trouble(
        r"Failed to initialize the profiler|LibraryNotLoaded|Failed to prepare kernel for profiling",
        "the profiler could not be initialised: this driver or this sandbox (gVisor, for one) gives no access to the "
        "counters. Run on a machine with the plain driver.",
    ),
    Trouble(
        r"Device not supported",
        "the tool does not support this device or this sandbox. Run on a machine with the plain driver, with a tool as "
        "new as the driver.",
    ),
    Trouble(
        r"target application returned an error code",
        "the profiled program ended with an error; it says which, in the lines above.",
    ),
    Trouble(
        r"No kernels were profiled",
        "no kernel ran inside the profiled range. With a command of your own, is --kernel right, and does it launch "
        "anything?",
    ),
    Trouble(
        r"another instance of Nsight|driver resource was unavailable|ERR_NVGPUCTR\b",
        "the counters are in use by another profiler (DCGM, another ncu). Stop it, or pause it: dcgmi profiling "
        "--pause.",
    ),
)


@dataclass(frozen=True)
class Request:
    """What the command line asked for.

    Attributes:
        tool: the tool's name.
        package: the package, or None for all.
        case: the words of a case, or None for the smoke suite.
        variant: the variant.
        sets: the metric set of ncu, or the tools of the sanitizer; None for the default.
        command: a command of the user's own instead of a workload.
        kernel: profile only kernels whose name holds this.
        calls: profiled calls of each work; None for the tool's default.
        clock_control: what ncu does with the clocks.
        lines: compile with line information.
        out: the folder of the results.
    """

    tool: str
    package: str | None = None
    case: str | None = None
    variant: str = "auto"
    sets: str | None = None
    command: tuple[str, ...] = ()
    kernel: str | None = None
    calls: int | None = None
    clock_control: str = "none"
    lines: bool = False
    out: Path = field(default_factory=lambda: ROOT / "profiles")

    def target(self, manifest: Path, *, calls: int, more: Sequence[str] = ()) -> list[str]:
        """The command that is profiled: the user's own, or the workload."""
        if self.command:
            return list(self.command)
        words = [sys.executable, str(WORKLOAD), *([self.package] if self.package else [])]
        words += ["--case", self.case] if self.case else []
        words += ["--variant", self.variant, "--calls", str(self.calls or calls), "--manifest", str(manifest)]
        return [*words, *more]

    def environment(self) -> dict[str, str]:
        """The environment of the profiled process."""
        # A kernel that is compiled in the profiled process carries what it is compiled with, so the line information
        # is asked for here; the variable is part of the compile cache's key.
        return {**os.environ, **({"CUTE_DSL_LINEINFO": "1"} if self.lines else {})}

    def stem(self, now: float | None = None) -> Path:
        """Where the results go: a name that says what and when, without an ending."""
        what = self.case or self.package or "smoke"
        if self.command:
            what = Path(self.command[0]).name
        parts = [self.tool, *([self.package] if self.package and self.case else []), what]
        parts += [self.variant] if self.variant != "auto" and not self.command else []
        words = re.sub(r"[^A-Za-z0-9_]+", "-", "-".join(parts)).strip("-")
        when = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
        self.out.mkdir(parents=True, exist_ok=True)
        return self.out / f"{when}-{words}"


def tool_at(name: str, *, install: str) -> str:
    """The path of a tool.

    Raises:
        CannotProfile: it was not found; ``install`` says where to get it.
    """
    found = find_tool(name)
    if found is None:
        raise CannotProfile(f"{name} was not found on the PATH, under CUDA_HOME, or in {', '.join(PLACES)}. {install}")
    return found


def watch_tool(
    tool: str, command: Sequence[str], log: Path, environment: Mapping[str, str], *, trusted: Sequence[int] = ()
) -> tuple[int, str]:
    """Runs a tool, shows what it prints, keeps it in ``log``, and returns its exit status and its output.

    Args:
        tool: its name, for messages.
        command: the command line.
        log: where its output goes.
        environment: of the process.
        trusted: exit statuses that say all; at any other, 0 too, the output is searched for known troubles.

    Raises:
        CannotProfile: it printed a known trouble, or failed.
    """
    lines: list[str] = []
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            list(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(environment),
            cwd=ROOT,
        ) as process,
    ):
        for line in cast("IO[str]", process.stdout):  # a pipe, as it was asked for
            lines.append(line)
            file.write(line)
            sys.stdout.write(line)
        status = process.wait()
    output = "".join(lines)
    if status not in trusted:
        refuse_trouble(tool, status, output, log)
    return status, output


def printed_by(tool: str, command: Sequence[str], log: Path) -> str:
    """What a tool prints that reads its own report.

    Raises:
        CannotProfile: it failed.
    """
    done = subprocess.run(list(command), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        refuse_trouble(tool, done.returncode, done.stdout + done.stderr, log)
    return done.stdout


def refuse_trouble(tool: str, status: int, output: str, log: Path) -> None:
    """Raises CannotProfile where the output names a known trouble, or the exit status says that the tool failed."""
    for trouble in TROUBLES:
        if re.search(trouble.pattern, output):
            raise CannotProfile(f"{tool}: {trouble.advice} (output in {log})")
    if status != 0:
        last = next((line for line in reversed(output.splitlines()) if line.strip()), "nothing was printed")
        raise CannotProfile(f"{tool} ended with exit status {status}: {last.strip()} (output in {log})")


def written(paths: Iterable[Path]) -> str:
    """The files that are there, for the last line of a run."""
    return "\n".join(f"written: {path}" for path in paths if path.exists())
