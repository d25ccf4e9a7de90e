"""Nsight Compute: what the GPU's counters say of each launch, and what follows from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from common import CannotProfile, Request, printed_by, tool_at, watch_tool, written
from ncu_extract import extract_file

from forge_core.profiling.counters import SECTIONS, asked
from forge_core.profiling.readers import EXPORT, hottest_lines, lines_text

INSTALL = "Install Nsight Compute (part of the CUDA toolkit; https://developer.nvidia.com/nsight-compute)."

#: What --set takes: Forge's own, and ncu's.
FORGE_SET = "forge"
LAUNCH_SET = "launch"


def available(executable: str) -> set[str] | None:
    """The counters that this ncu has for this GPU, without their suffixes; None where it does not say."""
    done = subprocess.run([executable, "--query-metrics"], capture_output=True, text=True, check=False)
    found = {line.split()[0] for line in done.stdout.splitlines() if "__" in line.partition(" ")[0]}
    return found if done.returncode == 0 and found else None


def metrics_of(sets: str | None, known: set[str] | None, *, lines: bool = False) -> list[str]:
    """The words that tell ncu what to count.

    Args:
        sets: what ``--set`` says.
        known: the counters that there are; a counter that ncu does not know would end the run.
        lines: count by source line too.
    """
    per_line = ["--section", "SourceCounters"] if lines else []
    if sets in (None, FORGE_SET):
        sections = [word for section in SECTIONS for word in ("--section", section)]
        names = [name for name in asked() if known is None or name.partition(".")[0] in known]
        return [*sections, "--metrics", ",".join(names)]
    if sets == LAUNCH_SET:
        return ["--section", "LaunchStats", "--section", "Occupancy", *per_line]
    return ["--set", str(sets), *per_line]


def command_for(request: Request, executable: str, stem: Path, known: set[str] | None) -> list[str]:
    """The whole command line."""
    words = [executable, "--clock-control", request.clock_control, "--target-processes", "all", "--nvtx"]
    # A command of the user's own need not mark its range; the workload does, and what is outside is not looked at.
    words += ["--profile-from-start", "on" if request.command else "off"]
    words += ["--kernel-name", f"regex:{request.kernel}"] if request.kernel else []
    words += ["--import-source", "yes"] if request.lines else []
    words += [*metrics_of(request.sets, known, lines=request.lines), "--force-overwrite", "--export", str(stem)]
    return [*words, *request.target(stem.with_suffix(".manifest.json"), calls=1)]


def run(request: Request) -> int:
    """Profiles, exports, and prints the diagnosis of each launch.

    Raises:
        CannotProfile: ncu is missing, may not read the counters, or failed.
    """
    executable = tool_at("ncu", install=INSTALL)
    stem = request.stem()
    log, report = stem.with_suffix(".log"), stem.with_suffix(".ncu-rep")
    manifest, table, text = (stem.with_suffix(end) for end in (".manifest.json", ".csv", ".txt"))
    known = available(executable) if request.sets in (None, FORGE_SET) else None
    watch_tool("ncu", command_for(request, executable, stem, known), log, request.environment())
    if not report.exists():
        raise CannotProfile(f"ncu ended well and wrote no {report} (output in {log})")
    read = [executable, "--import", str(report)]
    table.write_text(printed_by("ncu --import", [*read, *EXPORT], log), encoding="utf-8")
    said = extract_file(table, manifest=manifest if manifest.exists() else None)
    if request.lines:
        page = printed_by("ncu --page source", [*read, "--page", "source", "--print-source", "cuda,sass", "--csv"], log)
        said += "\n\n" + lines_text(hottest_lines(page.splitlines()))
    text.write_text(said + "\n", encoding="utf-8")
    sys.stdout.write(f"\n{said}\n{written([report, table, text, manifest, log])}\n")
    return 0
