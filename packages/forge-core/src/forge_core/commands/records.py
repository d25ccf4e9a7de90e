"""The commands of ``forge-cute bench`` that work on records: show, compare, report, stamp, accuracy, tune."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click
import msgspec
import torch
from rich.console import Console

from forge_core.bench import pages, processes, records, report
from forge_core.bench import plan as planning
from forge_core.bench.compare import THRESHOLD, commit_message, compare, comparison_markdown, print_comparison
from forge_core.bench.environment import stamp
from forge_core.cli import EXISTING_FILE, EXISTING_FOLDER, FILE, FOLDER, REGRESSION
from forge_core.errors import UnsupportedError
from forge_core.files import write_atomically
from forge_core.progress import progress

RECORDS = Path("docs/records")
RESULTS = Path("results/report")
#: The report that README shows pictures of.
DOCS = Path("docs/report")


def console(*, error: bool = False) -> Console:
    """A console that wraps on a terminal only."""
    plain = Console(stderr=error)
    return plain if plain.is_terminal else Console(stderr=error, width=240)


def percentage(text: str) -> float:
    """A share, written ``5%`` or ``0.05``."""
    match = re.fullmatch(r"(\d*\.?\d+)\s*(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < share < 1:
        raise click.BadParameter(f"expected a share between 0 and 1, such as 5% or 0.05, got {text!r}")
    return share


record_argument = click.argument("record", type=EXISTING_FILE)
device_option = click.option("--device", "device_text", default="cuda", show_default=True, metavar="cuda:0")


@click.command("show")
@record_argument
def show_command(record: Path) -> None:
    """Print the tables of a record."""
    report.print_record(records.load(record), console())


@click.command("compare")
@click.argument("old", type=EXISTING_FILE)
@click.argument("new", type=EXISTING_FILE)
@click.option("--fail-on-regression", "threshold", type=percentage, metavar="5%", help="Exit status 2 from here on.")
@click.option("--markdown", "as_markdown", is_flag=True, help="For a pull request.")
@click.option("--commit-message", "as_commit", is_flag=True, help="For the commit of a kernel's change.")
@click.option("--rerun/--no-rerun", "again", default=True, show_default=True, help="Measure the suspects again.")
@click.option(
    "--old-source",
    type=EXISTING_FOLDER,
    help="A checkout of the old sources; without it, one is made of the old record's commit.",
)
@click.pass_context
def compare_command(
    ctx: click.Context,
    old: Path,
    new: Path,
    threshold: float | None,
    as_markdown: bool,
    as_commit: bool,
    again: bool,
    old_source: Path | None,
) -> None:
    """Compare two records by their samples; measure possible regressions again where there is a GPU."""
    before, after = records.load(old), records.load(new)
    for what, first, second in (
        ("suites", before.suite, after.suite),
        ("timers", before.timer, after.timer),
        ("machines", before.environment.gpu, after.environment.gpu),
    ):
        if first != second:
            raise click.UsageError(f"the records are of different {what}, {first} and {second}: expected the same")
    found = compare(before, after, threshold or THRESHOLD)
    if again:
        found = processes.confirm(found, old_source=old_source)
    if as_markdown:
        click.echo(comparison_markdown(found), nl=False)
    elif as_commit:
        click.echo(commit_message(found), nl=False)
    else:
        print_comparison(found, console())
    ctx.exit(1 if found.broken else REGRESSION if threshold is not None and found.regressions else 0)


def with_notes(found: Mapping[str, pages.Source], root: Path, *, enter: bool = False) -> list[pages.Source]:
    """Notes on the records of device time which kernels they were measured on, and whether these have changed.

    With `enter`, the kernels of a new record are first entered in the list of the checkout at `root`.
    """
    from forge_core.proofs import results
    from forge_core.proofs.evidence import Evidence

    evidence, noted = Evidence(root), []
    for entry in found.values():
        on_gpu = entry.record.timer == "device" and entry.record.environment.gpu != "none"
        record = (root / RECORDS, entry.path.name, entry.record, evidence)
        if on_gpu and enter:
            results.entered(*record)
        noted.append(replace(entry, note=results.note(*record)) if on_gpu else entry)
    return noted


@click.command("report")
@click.argument("sources", nargs=-1, type=click.Path(exists=True, path_type=Path), metavar="[RECORD|FOLDER]...")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the tables as Markdown instead.")
@click.option(
    "--into",
    multiple=True,
    type=EXISTING_FILE,
    help="Replace what stands between the markers <!-- bench:SUITE begin --> and end of this page; repeatable.",
)
@click.option(
    "--pages",
    "checkout",
    is_flag=True,
    help="The report in docs/report and the pictures that this checkout's pages show; kernels.json is completed.",
)
@click.option("--out", type=FOLDER, help="Where the HTML file and the pictures go; default: results/report.")
def report_command(
    sources: tuple[Path, ...], as_markdown: bool, into: tuple[Path, ...], checkout: bool, out: Path | None
) -> None:
    """Make a page with plots from records (one self-contained HTML file, and pictures), or tables.

    Without RECORD, the records are those in docs/records.  Of several records of a suite on one GPU the newest counts.
    """
    found = pages.newest(pages.gather(sources or (RECORDS,)))
    entries = list(found.values())
    if as_markdown:
        click.echo("\n".join(report.markdown(entry.record) for entry in entries), nl=False)
    for page in into:
        for name in pages.fill(page, found):
            click.echo(f"{page}: the block bench:{name} is now that of {found[name].path.name}")
    if checkout or not (as_markdown or into):
        if lacking := [name for name in ("matplotlib", "jinja2") if importlib.util.find_spec(name) is None]:
            raise UnsupportedError(
                f"the report needs {' and '.join(lacking)}, not installed here. Install with: "
                "pip install 'forge-cute-core[report]'; the tables need nothing: --markdown",
                requirement=lacking[0],
            )
        from forge_core.bench.html import write_report  # the plotting library takes a second to import

        if checkout:
            entries = with_notes(found, Path(), enter=True)
        folder = out or (DOCS if checkout else RESULTS)
        written = write_report(entries, folder)
        if folder == DOCS:
            # The page has every picture in it; as files, a checkout keeps those that its pages show.
            for path in set(folder.glob("*.svg")) - pages.pictures(Path()):
                path.unlink()
        for path in written:
            if path.exists():
                click.echo(str(path))


@click.command("stamp")
@record_argument
def stamp_command(record: Path) -> None:
    """Write this checkout's commit into a record that was made from the same sources on a machine without git."""
    loaded = records.load(record)
    stamped = msgspec.structs.replace(loaded, environment=stamp(loaded.environment))
    write_atomically(record, stamped.dumps())
    click.echo(f"{record}: made from commit {stamped.environment.commit}")


@click.command("accuracy")
@device_option
@click.option("--json", "json_path", type=FILE, help="Write the rows there.")
def accuracy_command(device_text: str, json_path: Path | None) -> None:
    """Measure the accuracy of every timer, by kernels that measure their own duration."""
    from forge_core.timing.accuracy import measure_accuracy

    rows = measure_accuracy(planning.gpu_named(device_text, "the timers are those of a GPU"))
    for row in rows:
        error = "" if row["error"] is None else f"  error {row['error']:+.3f} us"
        click.echo(f"{row['work']:14} {row['timer']:7} {row['median']:10.3f} us{error}")
    if json_path is not None:
        write_atomically(json_path, json.dumps(rows, indent=1) + "\n")


@click.command("tune")
@click.argument("week", metavar="PACKAGE")
@device_option
@click.option("--record", "record_folder", type=FOLDER, default="results", show_default=True, help="Gets the record.")
@click.option("--dry-run", is_flag=True, help="Measure, print the table, and leave the package's as it is.")
def tune_command(week: str, device_text: str, record_folder: Path, dry_run: bool) -> None:
    """Measure the thresholds of a package's select_config on this GPU, and write its table for it."""
    from forge_core.bench.tune import cases_of, tune

    package = planning.packages_named(planning.discover(), (week,))[0]
    total = cases_of(package)
    device = planning.gpu_named(device_text, "thresholds are measured on a GPU")
    with torch.cuda.device(device), progress(total) as on_case:
        record, path, text = tune(package, device, on_case)
    saved = record_folder / f"tune-{week}-{path.stem}-{record.date}.json"
    write_atomically(saved, msgspec.json.format(msgspec.json.encode(record), indent=1).decode() + "\n")
    click.echo(text, nl=False)
    click.echo(f"record: {saved}", err=True)
    if not dry_run:
        write_atomically(path, text)
        click.echo(f"table: {path.parent.parent.name}/{path.parent.name}/{path.name}", err=True)
