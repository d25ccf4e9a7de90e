"""Puts the tables of the recorded profiles into docs/profiling.md: `notes.py [--check]`.

Each table stands between two comments, `profile:NAME begin` and `profile:NAME end`, and is made of
docs/records/h200/profiling/NAME.csv and its manifest.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from forge_core.profiling.counters import STALLS
from forge_core.profiling.diagnosis import waits_for
from forge_core.profiling.extraction import Extract

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from common import ROOT
from ncu_extract import extracts
from record import FOLDER

PAGE = ROOT / "docs" / "profiling.md"

HEADING = (
    (
        "| Variant | Case | Time, \N{MICRO SIGN}s | DRAM | L2 | SM | Read | Occupancy | Limited by | Waits for "
        "| Bound by | Found |"
    ),
    "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- | --- | --- |",
)


def table(name: str) -> str:
    """The table of one record, in Markdown."""
    manifest = json.loads((FOLDER / f"{name}.manifest.json").read_text(encoding="utf-8"))
    rows = iter(extracts(FOLDER / f"{name}.csv", manifest=None))
    lines = list(HEADING)
    for work in manifest["works"]:
        for number, _ in enumerate(work["kernels"]):
            lines.append(_row(work, number, next(rows)))
    return "\n".join(lines)


def _row(work: dict[str, object], number: int, found: Extract) -> str:
    case = work["case"]
    if not isinstance(case, dict):
        raise TypeError(f"expected a case in the manifest, got {case!r}")
    problem = " ".join(str(case[key]) for key in ("operator", "shape", "dtype") if key in case) or "planted"
    if case.get("layout", "contiguous") != "contiguous":
        problem += f", {case['layout']}"
    profile = found.profile
    needed = found.needed.read if found.needed is not None else 0
    read = profile.get("dram_read")
    waits, share = waits_for(found.stalls)
    cells = [
        f"{work['variant']}{'' if number == 0 else f', pass {number + 1}'}",
        problem,
        f"{found.figures['duration_us']:,.1f}",
        *(_percent(profile.get(unit)) for unit in ("dram_pct", "l2_pct", "sm_pct")),
        f"{read / needed:.2f} x" if read is not None and needed else "-",
        f"{_percent(profile.get('occupancy_pct'))} of {_percent(profile.get('occupancy_max_pct'))}",
        found.limiter,
        f"{STALLS.get(waits, '-')}, {share:.0f} %",
        found.diagnosis.bound,
        ", ".join(finding.rule for finding in found.diagnosis.findings) or "-",
    ]
    return f"| {' | '.join(cells)} |"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} %"


def filled(text: str) -> str:
    """The page with every table made anew.

    Raises:
        ValueError: the page has a beginning without its end.
    """
    names = re.findall(r"<!-- profile:(\w+) begin -->", text)
    for name in names:
        begin, end = f"<!-- profile:{name} begin -->", f"<!-- profile:{name} end -->"
        if text.count(end) != 1:
            raise ValueError(f"{PAGE.name}: expected one {end!r}")
        head, rest = text.split(begin)
        text = f"{head}{begin}\n{table(name)}\n{end}{rest.split(end)[1]}"
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """The program; with --check, exit status 1 where the page is not what the records say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the page is what the records say")
    options = parser.parse_args(argv)
    old = PAGE.read_text(encoding="utf-8")
    new = filled(old)
    if options.check:
        return int(old != new)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
