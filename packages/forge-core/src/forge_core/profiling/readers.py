"""Reading what Nsight Compute counted: an exported CSV, or a report.

A CSV has one of two forms.  ``--page raw`` has a row for each kernel and a column for each counter, with a row of units
below the names.  The default page has a row for each kernel and counter.  Both are read, behind whatever ncu printed
before them, and every value is brought to base units (bytes, seconds), so that a report exported without
``--print-units base`` gives the same figures.

A ``.ncu-rep`` is read by NVIDIA's module ``ncu_report`` where it can be found, else exported by ``ncu --import``.
"""

from __future__ import annotations

import csv
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_core.errors import ForgeError, UnsupportedError
from forge_core.profiling.counters import COUNTERS, STALL_PREFIX, STALLS

__all__ = ["KernelProfile", "ProfileError", "find_ncu_report", "read_csv", "read_profile", "read_report"]


class ProfileError(ForgeError, ValueError):
    """A profile cannot be read, or does not hold what is needed; the message says what was expected."""


# How many base units one of these is; ncu writes "Mbyte", "us", "Gbyte/second", "Kbyte/block".
_SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {
    "second": 1.0,
    "s": 1.0,
    "ms": 1e-3,
    "msecond": 1e-3,
    "us": 1e-6,
    "usecond": 1e-6,
    "ns": 1e-9,
    "nsecond": 1e-9,
}
_UNIT = re.compile(r"^(?P<scale>[KMGT]?)(?P<unit>byte|sector|cycle|inst|register|thread|block|warp|request)?(?:/.*)?$")


@dataclass(frozen=True)
class KernelProfile:
    """What was counted of one launch of a kernel.

    Attributes:
        index: its place in the report.
        name: the kernel's name.
        metrics: every number of the report by ncu's own name, in base units.
        device: the GPU's name where the report says it, else "".
    """

    index: int
    name: str
    metrics: dict[str, float] = field(repr=False)
    device: str = ""

    def get(self, name: str) -> float | None:
        """A figure by its short name (see ``counters.COUNTERS``), or None where the report does not hold it."""
        counter = _BY_NAME[name]
        return next((self.metrics[m] for m in counter.metrics if m in self.metrics), None)

    def stalls(self) -> list[tuple[str, float]]:
        """What warps waited for: the word and its share of a warp's time in percent, longest first."""
        found = {}
        for metric, value in self.metrics.items():
            match = _STALL.fullmatch(metric)
            if match and match.group(1) in STALLS:
                found[match.group(1)] = value
        total = sum(found.values())
        if not total:
            return []
        return sorted(((reason, 100 * value / total) for reason, value in found.items()), key=lambda item: -item[1])


_BY_NAME = {counter.name: counter for counter in COUNTERS}
_STALL = re.compile(re.escape(STALL_PREFIX) + r"(\w+)_per_issue_active\.ratio")


def read_profile(path: Path, *, ncu: str | None = None) -> list[KernelProfile]:
    """The launches of a profile, in order.

    Args:
        path: a ``.csv`` that ncu wrote, or a ``.ncu-rep``.
        ncu: the executable that exports a report where ``ncu_report`` is not there; by default the one on the PATH.

    Raises:
        ProfileError: the file is not there, is neither, or holds no kernel.
        UnsupportedError: a report, and neither ``ncu_report`` nor ncu is there.
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
    executable = ncu or shutil.which("ncu")
    if executable is None:
        raise UnsupportedError(
            f"{path}: a report is read by NVIDIA's ncu_report or exported by ncu, and neither was found. "
            "Put Nsight Compute on the PATH, or export it where it is: "
            f"ncu --import {path.name} --page raw --csv --print-units base > {path.stem}.csv",
            requirement="ncu or ncu_report",
        )
    command = [executable, "--import", str(path), "--page", "raw", "--csv", "--print-units", "base"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing was printed").splitlines()[-1]
        raise ProfileError(f"{path}: ncu --import ended with exit status {done.returncode}: {said}")
    return read_csv(done.stdout.splitlines(), str(path))


def read_csv(lines: Iterable[str], source: str = "the CSV") -> list[KernelProfile]:
    """The launches of a CSV in either of ncu's two forms; see the module's docstring.

    Raises:
        ProfileError: there is no table of ncu's, or no kernel in it.
    """
    rows = list(csv.reader(_table(lines)))
    if not rows:
        raise ProfileError(
            f'{source}: expected a CSV of ncu\'s, which begins with a column "ID"; found none. '
            "Export one with: ncu --import REPORT --page raw --csv"
        )
    header, *body = rows
    profiles = _long(header, body) if "Metric Name" in header else _wide(header, body)
    if not profiles:
        raise ProfileError(f"{source}: the table holds no kernel; was the kernel inside the profiled range?")
    return profiles


def _table(lines: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for line in lines:
        if kept or line.lstrip("\ufeff").startswith('"ID"'):
            if line.startswith("==") or not line.strip():
                continue
            kept.append(line)
    return kept


def _long(header: list[str], body: list[list[str]]) -> list[KernelProfile]:
    launches: dict[str, KernelProfile] = {}
    for row in body:
        cells = dict(zip(header, row, strict=False))
        profile = launches.setdefault(
            cells["ID"], KernelProfile(len(launches), _short(cells.get("Kernel Name", "")), {}, cells.get("Device", ""))
        )
        value = _number(cells.get("Metric Value", ""), cells.get("Metric Unit", ""))
        if value is not None:
            profile.metrics[cells["Metric Name"]] = value
    return list(launches.values())


def _wide(header: list[str], body: list[list[str]]) -> list[KernelProfile]:
    # The row of units has no ID.
    units = dict(zip(header, body[0], strict=False)) if body and not body[0][0].strip() else {}
    profiles: list[KernelProfile] = []
    for row in body[1:] if units else body:
        cells = dict(zip(header, row, strict=False))
        metrics = {}
        for name, text in cells.items():
            value = _number(text, units.get(name, ""))
            if value is not None:
                metrics[name] = value
        device = cells.get("device__attribute_display_name", "")
        profiles.append(KernelProfile(len(profiles), _short(cells.get("Kernel Name", "")), metrics, device))
    return profiles


def _short(name: str) -> str:
    """A kernel's name without its arguments and its return type."""
    return name.partition("(")[0].removeprefix("void ").strip()


def _number(text: str, unit: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value * _factor(unit)


def _factor(unit: str) -> float:
    if unit in _SECONDS:
        return _SECONDS[unit]
    match = _UNIT.match(unit)
    return _SCALES[match.group("scale")] if match else 1.0


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
    roots = []
    found = shutil.which("ncu")
    if found:
        # ncu on the PATH is a script or a link beside, or two levels below, the installation's root.
        real = Path(os.path.realpath(found))
        roots += [real.parent, *real.parents[1:3]]
    for place in ("/opt/nvidia", "/usr/local"):
        for pattern in ("nsight-compute*/*", "nsight-compute*", "cuda*/nsight-compute*", "cuda*/nsight-compute*/*"):
            roots += sorted(Path(place).glob(pattern), reverse=True)
    folders = [root / "extras" / "python" for root in roots]
    return [str(folder) for folder in dict.fromkeys(folders) if (folder / "ncu_report.py").is_file()]


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
    for range_index in range(context.num_ranges()):
        actions = context.range_by_idx(range_index)
        for action_index in range(actions.num_actions()):
            action = actions.action_by_idx(action_index)
            metrics, device = {}, ""
            for name in action.metric_names():
                metric = action.metric_by_name(name)
                if name == "device__attribute_display_name":
                    device = str(metric.value())
                    continue
                value = metric.value()
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    metrics[name] = float(value) * _factor(str(metric.unit()))
            profiles.append(KernelProfile(len(profiles), _short(str(action.name())), metrics, device))
    if not profiles:
        raise ProfileError(f"{path}: the report holds no kernel; was the kernel inside the profiled range?")
    return profiles
