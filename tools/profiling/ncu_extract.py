"""The diagnosis of a profile of Nsight Compute: figures, stalls, and two or three sentences.

The manifest that a profiled workload writes beside its report holds the bytes that each operation must move.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from forge_core.files import read_unpacked
from forge_core.profiling.diagnosis import Diagnosis, Needed, compare_text, diagnose
from forge_core.profiling.ncu import ProfileError, read_profile


def load_needed(path: Path) -> list[tuple[str, Needed]]:
    """The kernels of a workload's manifest and the bytes that each must move, in order.

    Of an operation of several kernels, the first is taken to move all its bytes.
    """
    try:
        return [
            (kernel, Needed(work["read"], work["written"]) if number == 0 else Needed())
            for work in json.loads(read_unpacked(path))["works"]
            for number, kernel in enumerate(work["kernels"])
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProfileError(f"{path}: expected the manifest that a profiled workload writes: {error!r}") from error


def manifest_beside(profile: Path) -> Path:
    """Where the manifest of a profile is: NAME.manifest.json of NAME.csv or NAME.ncu-rep; packed as the profile is."""
    packed = ".xz" if profile.suffix == ".xz" else ""
    return profile.with_name(f"{Path(profile.name.removesuffix(packed)).stem}.manifest.json{packed}")


def diagnoses(
    path: Path, *, manifest: Path | None = None, kernel: str | None = None, needed: Needed | None = None
) -> list[Diagnosis]:
    """The diagnosis of each launch of a profile whose kernel's name holds ``kernel``.

    Each launch must move the bytes that the manifest says (by default the file beside the profile), or ``needed``.
    """
    beside = manifest_beside(path)
    manifest = manifest or (beside if beside.exists() else None)
    waiting = load_needed(manifest) if manifest is not None and needed is None else []
    profiles, found = read_profile(path), []
    for profile in profiles:
        # The compiler appends a number to the name that a kernel is given.
        match = next((one for one in waiting if one[0] == profile.name.rpartition("_")[0]), None)
        if match is not None:
            waiting.remove(match)
        if kernel is None or kernel in profile.name:
            found.append(diagnose(profile, needed or (match and match[1])))
    if not found:
        names = ", ".join(dict.fromkeys(profile.name for profile in profiles))
        raise ProfileError(f"expected a kernel whose name holds {kernel!r}; the report has {names}.")
    return found


HELP = """Print what a .ncu-rep, or a .csv that ncu exported, says; or set two side by side.

\b
nox -s profile -- ncu --extract REPORT [--json] [--kernel NAME] [--manifest FILE | --read N --written N]
nox -s profile -- ncu --extract compare A B [--kernel NAME]
"""


@click.command(help=HELP)
@click.argument("words", nargs=-1, required=True, metavar="[compare] REPORT...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--kernel", help="Only kernels whose name holds this.")
@click.option("--manifest", type=click.Path(path_type=Path), help="What the operations must move.")
@click.option("--read", type=int, help="Bytes that the kernel must read.")
@click.option("--written", type=int, help="Bytes that the kernel must write.")
def command(words: tuple[str, ...], as_json: bool, read: int | None, written: int | None, **options: Any) -> None:
    """The command; what it says to a user stands in HELP."""
    if len(words) == 3 and words[0] == "compare":
        a, b = (diagnoses(Path(word), **options) for word in words[1:])
        click.echo(f"A: {words[1]}\nB: {words[2]}\n{compare_text(a, b)}")
        return
    if len(words) > 1:
        raise click.UsageError(f"expected one report, or compare and two, got {' '.join(words)}")
    if (read is None) != (written is None):
        raise click.UsageError("--read and --written belong together")
    needed = Needed(read, written) if read is not None and written is not None else None
    found = diagnoses(Path(words[0]), needed=needed, **options)
    reports = "\n\n".join(each.report() for each in found)
    click.echo(json.dumps([each.as_dict() for each in found], indent=2) if as_json else reports)
