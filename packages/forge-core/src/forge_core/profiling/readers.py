"""Reading what Nsight Compute counted: an exported CSV, or a report.

A CSV has one of two forms: ``--page raw`` has a row for each kernel, a column for each metric, and a row of units below
the names; the default page has a row for each kernel and metric.  Values are converted to base units (bytes, seconds).

A ``.ncu-rep`` is read by NVIDIA's module ``ncu_report`` where it can be found, else exported by ``ncu --import``.
"""

from __future__ import annotations

import csv
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from forge_core.errors import ForgeError, UnsupportedError
from forge_core.profiling.counters import COUNTERS, STALL_PREFIX, STALL_SUFFIX, STALLS
from forge_core.profiling.cuda_tools import find_tool

__all__ = [
    "EXPORT",
    "KernelProfile",
    "Line",
    "MissingFigure",
    "ProfileError",
    "find_ncu_report",
    "hottest_lines",
    "lines_text",
    "read_csv",
    "read_profile",
    "read_report",
]

#: The words by which ncu prints a report as the CSV that is read here.
EXPORT = ("--page", "raw", "--csv", "--print-units", "base")


class ProfileError(ForgeError, ValueError):
    """A profile cannot be read, or does not hold what is needed; the message says what was expected."""


class MissingFigure(LookupError):  # noqa: N818 - no error: a report need not hold every figure
    """A report does not hold a figure."""


@dataclass(frozen=True)
class KernelProfile:
    """What was counted of one launch of a kernel: every number of the report by ncu's own name, in base units."""

    name: str
    metrics: dict[str, float] = field(repr=False)

    def get(self, name: str) -> float | None:
        """A figure by its short name in ``counters.COUNTERS``, or None where the report does not hold it."""
        return next((self.metrics[metric] for metric in COUNTERS[name] if metric in self.metrics), None)

    def __getitem__(self, name: str) -> float:
        """A figure by its short name.

        Raises:
            MissingFigure: the report does not hold it.
        """
        value = self.get(name)
        if value is None:
            raise MissingFigure(name)
        return value

    def stalls(self) -> list[tuple[str, float]]:
        """What warps waited for: the word of ``counters.STALLS`` and its share in percent, longest first."""
        reasons = {f"{STALL_PREFIX}{reason}{STALL_SUFFIX}": reason for reason in STALLS}
        found = {reasons[name]: value for name, value in self.metrics.items() if name in reasons}
        total = sum(found.values()) or 1.0
        return sorted(((reason, 100 * value / total) for reason, value in found.items()), key=lambda item: -item[1])


def read_profile(path: Path, *, ncu: str | None = None) -> list[KernelProfile]:
    """The launches of a profile, in order.

    Args:
        path: a ``.csv`` that ncu wrote, or a ``.ncu-rep``.
        ncu: the executable that exports a report where there is no ``ncu_report``; by default the installed one.

    Raises:
        ProfileError: the file does not exist, is neither, or holds no kernel.
        UnsupportedError: a report, and there is neither ``ncu_report`` nor ncu.
    """
    if not path.is_file():
        raise ProfileError(f"{path}: expected a profile (.ncu-rep or .csv), found no such file.")
    if path.suffix == ".csv":
        return read_csv(path.read_text(encoding="utf-8", errors="replace").splitlines(), str(path))
    if path.suffix != ".ncu-rep":
        raise ProfileError(f"{path}: expected a profile named *.ncu-rep or *.csv.")
    module = find_ncu_report()
    if module is not None:
        return read_report(path, module)
    executable = ncu or find_tool("ncu")
    if executable is None:
        raise UnsupportedError(
            f"{path}: a report is read by NVIDIA's ncu_report or exported by ncu, and neither was found. "
            "Put Nsight Compute on the PATH, or export it where it is: "
            f"ncu --import {path.name} {' '.join(EXPORT)} > {path.stem}.csv",
            requirement="ncu or ncu_report",
        )
    done = subprocess.run([executable, "--import", str(path), *EXPORT], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing was printed").splitlines()[-1]
        raise ProfileError(f"{path}: ncu --import ended with exit status {done.returncode}: {said}")
    return read_csv(done.stdout.splitlines(), str(path))


def read_csv(lines: Iterable[str], source: str = "the CSV") -> list[KernelProfile]:
    """The launches of a CSV in either of ncu's two forms; what ncu printed around the table is passed over.

    Raises:
        ProfileError: there is no table of ncu's, or no kernel in it.
    """
    table: list[str] = []
    for line in lines:
        if (table or line.lstrip("\ufeff").startswith('"ID"')) and line.strip() and not line.startswith("=="):
            table.append(line)
    if not table:
        raise ProfileError(
            f'{source}: expected a CSV of ncu\'s, which begins with a column "ID"; found none. '
            "Export one with: ncu --import REPORT --page raw --csv"
        )
    header, *rows = csv.reader(table)
    launches: dict[str, KernelProfile] = {}
    units: dict[str, str] = {}
    for row in rows:
        cells = dict(zip(header, row, strict=False))
        if not row[0].strip():  # the row of units has no ID
            units = cells
            continue
        metrics = launches.setdefault(row[0], KernelProfile(_short(cells.get("Kernel Name", "")), {})).metrics
        if "Metric Name" in cells:  # the default page
            units = {cells["Metric Name"]: cells["Metric Unit"]}
            cells = {cells["Metric Name"]: cells["Metric Value"]}
        for name, text in cells.items():
            try:
                metrics[name] = float(text.replace(",", "")) * _factor(units.get(name, ""))
            except ValueError:  # text, or "n/a"
                continue
    if not launches:
        raise ProfileError(f"{source}: the table holds no kernel; was the kernel inside the profiled range?")
    return list(launches.values())


def _short(name: str) -> str:
    """A kernel's name without its arguments and its return type."""
    return name.partition("(")[0].removeprefix("void ").strip()


# Scaled units as ncu writes them: "Mbyte", "us", "nsecond", "Gbyte/second", "Kbyte/block".
_SCALES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_SCALED = re.compile(
    r"(?:(?P<count>[KMGT])(?:byte|sector|cycle|inst|register|thread|block|warp|request)?|(?P<time>[mun])s(?:econd)?)"
    r"(?:/.*)?"
)


def _factor(unit: str) -> float:
    """How many base units one of ``unit`` is."""
    match = _SCALED.fullmatch(unit)
    return _SCALES[match["count"] or match["time"]] if match else 1.0


def find_ncu_report() -> Any | None:
    """NVIDIA's module that reads reports, from ``extras/python`` of an Nsight Compute installation; None if absent."""
    for folder in ("", *_report_folders()):
        if folder and folder not in sys.path:
            sys.path.append(folder)
        try:
            return importlib.import_module("ncu_report")
        except ImportError:  # not there, or built for another Python
            if folder:
                sys.path.remove(folder)
    return None


def _report_folders() -> list[str]:
    ncu = find_tool("ncu")
    # ncu is a script or a link beside, or up to two levels below, the installation's root.
    roots = [str(root) for root in Path(os.path.realpath(ncu)).parents[:3]] if ncu else []
    roots += ["/opt/nvidia/nsight-compute*/*", "/usr/local/nsight-compute*", "/usr/local/cuda*/nsight-compute*"]
    patterns = (f"{root.lstrip('/')}/extras/python/ncu_report.py" for root in roots)
    return [str(file.parent) for pattern in patterns for file in sorted(Path("/").glob(pattern), reverse=True)]


def read_report(path: Path, module: Any) -> list[KernelProfile]:
    """The launches of a ``.ncu-rep``, by the module that :func:`find_ncu_report` found.

    Raises:
        ProfileError: the report cannot be loaded, or holds no kernel.
    """
    try:
        context = module.load_report(str(path))
    except Exception as error:  # what the module raises is its own business
        raise ProfileError(f"{path}: ncu_report cannot load it: {error}") from error
    profiles: list[KernelProfile] = []
    for actions in map(context.range_by_idx, range(context.num_ranges())):
        for action in map(actions.action_by_idx, range(actions.num_actions())):
            read = {name: action.metric_by_name(name) for name in action.metric_names()}
            metrics = {
                name: float(value) * _factor(str(metric.unit()))
                for name, metric in read.items()
                if isinstance(value := metric.value(), (int, float)) and not isinstance(value, bool)
            }
            profiles.append(KernelProfile(_short(str(action.name())), metrics))
    if not profiles:
        raise ProfileError(f"{path}: the report holds no kernel; was the kernel inside the profiled range?")
    return profiles


# ------------------------------------------------------------------------------------------------------ source page

_SAMPLES = "# Samples"


@dataclass(frozen=True)
class Line:
    """A source line and the samples that found a warp there; ``share`` is in percent of the kernel's samples."""

    kernel: str
    file: str
    number: int
    source: str
    samples: int
    share: float


def hottest_lines(lines: Iterable[str], *, most: int = 5) -> list[Line]:
    """The ``most`` sampled lines of each kernel, in the order of the kernels.

    Args:
        lines: what ``ncu --import REPORT --page source --print-source cuda,sass --csv`` prints: a table for each kernel
            and file, with a row for each line, followed by a row for each of its instructions.
        most: lines of each kernel.
    """
    kernel, file, header = "", "", list[str]()
    found: dict[str, list[tuple[str, int, str, int]]] = {}
    for row in csv.reader(lines):
        if not row:
            continue
        if row[0] == "File Path":
            file = PurePath(row[1]).name
        elif row[0] == "Function Name":
            kernel = row[1]
        elif row[0] == "Line No":
            header = row
        elif row[0].isdigit() and _SAMPLES in header:
            samples = row[header.index(_SAMPLES)]
            if samples.isdigit() and int(samples):
                found.setdefault(kernel, []).append((file, int(row[0]), row[1].strip(), int(samples)))
    result = []
    for name, entries in found.items():
        total = sum(entry[3] for entry in entries)
        hottest = sorted(entries, key=lambda entry: -entry[3])[:most]
        result += [Line(name, *entry, 100 * entry[3] / total) for entry in hottest]
    return result


def lines_text(lines: Iterable[Line]) -> str:
    """The lines as text, a heading for each kernel."""
    shown: list[str] = []
    kernel = ""
    for line in lines:
        if line.kernel != kernel:
            kernel = line.kernel
            shown.append(f"{kernel}: where its warps were seen")
        shown.append(f"  {line.share:5.1f} %  {line.file}:{line.number}  {line.source}")
    return "\n".join(shown) if shown else "no source lines: was the kernel compiled with line information?"
