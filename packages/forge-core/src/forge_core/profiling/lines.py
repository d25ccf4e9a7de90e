"""From Nsight Compute's source page to the Python lines at which warps wait.

The page is a CSV of one table a kernel and file: a row of a line's own figures, then a row for each instruction that
the line became.  Samples say how often a warp was seen at a line, whether it issued or waited.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

__all__ = ["Line", "hottest_lines", "lines_text"]

_SAMPLES = "# Samples"


@dataclass(frozen=True)
class Line:
    """One source line of one kernel.

    Attributes:
        kernel: the kernel's name.
        file: the source file's name, without its folder.
        number: the line's number.
        source: its text.
        samples: how often a warp was seen there.
        share: the same, in percent of the kernel's samples.
    """

    kernel: str
    file: str
    number: int
    source: str
    samples: int
    share: float


def hottest_lines(lines: Iterable[str], *, most: int = 5) -> list[Line]:
    """The lines with the most samples of each kernel, in the order of the kernels.

    Args:
        lines: what ``ncu --import REPORT --page source --print-source cuda,sass --csv`` prints.
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
        for path, number, source, seen in sorted(entries, key=lambda entry: -entry[3])[:most]:
            result.append(Line(name, path, number, source, seen, 100 * seen / total))
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
