"""What a profile of Nsight Compute says: figures, stalls, and a diagnosis in two or three sentences.

    ncu_extract.py REPORT [--json] [--kernel NAME] [--manifest FILE | --read N --written N]
    ncu_extract.py compare A B [--kernel NAME]

REPORT is a .ncu-rep or a .csv that ncu exported.  The manifest that a profiled workload leaves beside its report is
taken without being named: it holds the bytes that each operation must move.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from forge_core.errors import ForgeError
from forge_core.profiling.counters import COUNTERS, STALL_PREFIX
from forge_core.profiling.diagnosis import Needed
from forge_core.profiling.extraction import Extract, compare_text, extract, extract_text, load_needed, select
from forge_core.profiling.readers import KernelProfile, read_profile


def needed_of(profiles: Sequence[KernelProfile], manifest: Path | None) -> list[Needed | None]:
    """The bytes that each launch must move: by its place among the launches of its name, from the manifest."""
    waiting = load_needed(manifest) if manifest is not None else []
    found: list[Needed | None] = []
    for profile in profiles:
        # The compiler appends a number to the name that a kernel is given.
        match = next((i for i, (kernel, _) in enumerate(waiting) if profile.name.rpartition("_")[0] == kernel), None)
        found.append(None if match is None else waiting.pop(match)[1])
    return found


def extracts(
    path: Path, *, manifest: Path | None, kernel: str | None = None, needed: Needed | None = None
) -> list[Extract]:
    """The extract of each launch of a profile.

    Raises:
        ForgeError: the profile or the manifest cannot be read, or holds no such kernel.
    """
    beside = path.with_suffix(".manifest.json")
    manifest = manifest or (beside if beside.exists() else None)
    profiles = read_profile(path)
    must = [needed] * len(profiles) if needed is not None else needed_of(profiles, manifest)
    kept = select(profiles, kernel)
    return [extract(p, m) for p, m in zip(profiles, must, strict=True) if p in kept]


def extract_file(path: Path, *, manifest: Path | None, kernel: str | None = None) -> str:
    """The extracts of a profile as text."""
    return "\n\n".join(extract_text(found) for found in extracts(path, manifest=manifest, kernel=kernel))


def prune(path: Path) -> str:
    """A raw CSV without the columns that nothing here reads, so that it can be kept as a record."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    rows = list(csv.reader(lines[start:]))
    wanted = {"ID", "Kernel Name", "device__attribute_display_name"}
    wanted |= {metric for metrics in COUNTERS.values() for metric in metrics}
    kept = [i for i, name in enumerate(rows[0]) if name in wanted or name.startswith(STALL_PREFIX)]
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(
        [[row[i] for i in kept] for row in rows if row]
    )
    return out.getvalue()


def main(argv: Sequence[str] | None = None) -> int:
    """The program; exit status 0, or 2 where something cannot be read."""
    words = list(sys.argv[1:] if argv is None else argv)
    comparing = words[:1] == ["compare"]
    parser = argparse.ArgumentParser(
        prog="ncu_extract.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if comparing:
        parser.add_argument("a", type=Path)
        parser.add_argument("b", type=Path)
    else:
        parser.add_argument("report", type=Path)
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.add_argument("--manifest", type=Path, help="what the operations must move")
        parser.add_argument("--read", type=int, help="bytes that the kernel must read")
        parser.add_argument("--written", type=int, help="bytes that the kernel must write")
        parser.add_argument("--prune", type=Path, help="write the CSV without the columns that are not read here")
    parser.add_argument("--kernel", help="only kernels whose name holds this")
    options = parser.parse_args(words[1:] if comparing else words)
    try:
        if comparing:
            a, b = (extracts(path, manifest=None, kernel=options.kernel) for path in (options.a, options.b))
            sys.stdout.write(f"A: {options.a}\nB: {options.b}\n{compare_text(a, b)}\n")
            return 0
        if (options.read is None) != (options.written is None):
            parser.error("--read and --written belong together")
        needed = None if options.read is None else Needed(options.read, options.written)
        found = extracts(options.report, manifest=options.manifest, kernel=options.kernel, needed=needed)
        if options.prune is not None:
            options.prune.write_text(prune(options.report), encoding="utf-8")
        if options.json:
            sys.stdout.write(json.dumps([each.as_dict() for each in found], indent=2) + "\n")
        else:
            sys.stdout.write("\n\n".join(extract_text(each) for each in found) + "\n")
    except ForgeError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
