"""Makes a record of a profile, and the tables of docs/profiling.md from all records.

    record.py PROFILE.csv NAME [--into FOLDER]     the record, and the tables
    record.py                                      the tables

    NAME.csv.xz             the exported CSV without the columns that nothing here reads
    NAME.manifest.json.xz   the works that ran, with their launches as worked out on the host
    NAME.kernels.json       the names of each work's kernels, compiled here, and a digest of their PTX

The tests compare static figures with ncu's for every kernel whose PTX is the recorded one, so make the record from the
sources that were profiled.  A table is between the comments `profile:NAME begin` and `profile:NAME end` of the page,
without recorded variants that no longer exist; `profile:rules` is the table of the diagnosis' rules.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

from ncu_extract import diagnoses, manifest_beside

from forge_core.bench.plan import discover
from forge_core.bench.report import Table
from forge_core.commands.find import explained
from forge_core.files import read_unpacked, write_atomically
from forge_core.profiling.compiled import Artefacts, compile_to_look_at
from forge_core.profiling.cubin import read_cubin
from forge_core.profiling.diagnosis import RULES, Diagnosis, limited_by, waits_for
from forge_core.profiling.ncu import COUNTERS, STALL_PREFIX, STALLS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "records" / "h200" / "profiling"
PAGE = ROOT / "docs" / "profiling.md"


def compile_work(case: dict[str, Any], *, arch: str) -> Artefacts:
    """Compiles what a work of a manifest ran."""
    if "fault" in case:
        from kernels.planted import PlantedConfig

        config = PlantedConfig(case["fault"], case["sound"])
        return compile_to_look_at("kernels.planted:build", config, (case["count"], case["slab"]), arch=arch)
    explanation = explained(**case, arch=arch)
    return compile_to_look_at(str(explanation.builder), explanation.config, explanation.integers, arch=arch)


def _packed(content: Any) -> str:
    return json.dumps(content, separators=(",", ":")) + "\n"


def kernels_of(manifest: dict[str, Any], *, arch: str) -> list[dict[str, Any]]:
    """For each work, its kernels' names and a digest of the PTX."""
    found = []
    for work in manifest["works"]:
        artefacts = compile_work(work["case"], arch=arch)
        found.append(
            {
                "work": work["name"],
                "kernels": [kernel.name for kernel in read_cubin(artefacts.cubin)],
                "ptx_sha256": hashlib.sha256(artefacts.ptx.encode()).hexdigest(),
            }
        )
    return found


def prune(path: Path) -> str:
    """A raw CSV without the columns that nothing here reads."""
    lines = read_unpacked(path).decode().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    rows = list(csv.reader(lines[start:]))
    wanted = {"ID", "Kernel Name", "device__attribute_display_name", *(m for each in COUNTERS.values() for m in each)}
    kept = [i for i, name in enumerate(rows[0]) if name in wanted or name.startswith(STALL_PREFIX)]
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([row[i] for i in kept] for row in rows if row)
    return out.getvalue()


def filled(text: str) -> str:
    """The page with every table made anew; ValueError if it has a beginning without its end."""
    for name in re.findall(r"<!-- profile:(\w+) begin -->", text):
        begin, end = f"<!-- profile:{name} begin -->", f"<!-- profile:{name} end -->"
        if text.count(end) != 1:
            raise ValueError(f"{PAGE.name}: expected one {end!r}")
        head, rest = text.split(begin)
        text = f"{head}{begin}\n{_rules() if name == 'rules' else _launches(name)}\n{end}{rest.split(end)[1]}"
    return text


def _rules() -> str:
    rows = [{"Rule": rule.name, "Asks": rule.asks, "Answers from": rule.answers_from} for rule in RULES]
    return Table.of("", rows).markdown()


def _launches(name: str) -> str:
    """The table of one record."""
    works = json.loads(read_unpacked(FOLDER / f"{name}.manifest.json.xz"))["works"]
    launched = [(work, number) for work in works for number, _ in enumerate(work["kernels"])]
    found = list(zip(launched, diagnoses(FOLDER / f"{name}.csv.xz"), strict=True))
    operators = {operator.name: operator for bench in discover() for operator in bench.operators}
    rows = [_row(*one, diagnosis) for one, diagnosis in found if _exists(one[0]["case"], operators)]
    return Table.of("", rows, labels=6).markdown()


def _exists(case: dict[str, Any], operators: dict[str, Any]) -> bool:
    """Whether the operator still has the variant; a planted fault is none."""
    return "fault" in case or case["variant"] in operators[case["operator"]].variants()


def _row(work: dict[str, Any], number: int, found: Diagnosis) -> dict[str, str]:
    case, profile = work["case"], found.profile
    problem = " ".join(str(case[key]) for key in ("operator", "shape", "dtype") if key in case) or "planted"
    if case.get("layout", "contiguous") != "contiguous":
        problem += f", {case['layout']}"
    read, needed = profile.get("dram_read"), found.needed.read if found.needed is not None else 0
    waits, share = waits_for(profile)
    return {
        "Variant": f"{work['variant']}{'' if number == 0 else f', pass {number + 1}'}",
        "Case": problem,
        "Bound by": found.bound,
        "Found": ", ".join(found.findings),
        "Limited by": limited_by(profile),
        "Waits for": f"{STALLS.get(waits, '-')}, {share:.0f} %",
        "Time, \N{MICRO SIGN}s": f"{found.figures['duration_us']:,.1f}",
        **{unit.upper(): _percent(profile.get(f"{unit}_pct")) for unit in ("dram", "l2", "sm")},
        "Read": f"{read / needed:.2f} x" if read is not None and needed else "",
        "Occupancy": f"{_percent(profile.get('occupancy_pct'))} of {_percent(profile.get('occupancy_max_pct'))}",
    }


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} %"


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path, nargs="?", help="the CSV that `nox -s profile -- ncu` left")
    parser.add_argument("name", nargs="?", help="the record's name, for example week0")
    parser.add_argument("--arch", default="sm_90a", help="the architecture that was profiled")
    parser.add_argument("--into", type=Path, default=FOLDER, help="the folder")
    options = parser.parse_args()
    if (options.profile is None) != (options.name is None):
        parser.error("expected a profile and the record's name, or neither")
    if options.profile is not None:
        manifest = json.loads(read_unpacked(manifest_beside(options.profile)))
        files = {
            ".csv.xz": prune(options.profile),
            ".manifest.json.xz": _packed(manifest),
            ".kernels.json": _packed(kernels_of(manifest, arch=options.arch)),
        }
        for ending, text in files.items():
            write_atomically(options.into / f"{options.name}{ending}", text)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
