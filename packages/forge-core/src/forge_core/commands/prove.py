"""The commands ``forge-cute prove``: run, check, refresh, table, stamp."""

from __future__ import annotations

import datetime as dt
import functools
import math
import os
import time
from pathlib import Path

import click
import torch

from forge_core import device as devices
from forge_core.bench.environment import read_environment
from forge_core.bench.report import Table
from forge_core.cli import EXISTING_FILE, EXISTING_FOLDER, with_options
from forge_core.proofs import check as checking
from forge_core.proofs import runner
from forge_core.proofs.chunks import execute, find_sanitizer
from forge_core.proofs.declare import ProofError, discover
from forge_core.proofs.evidence import Evidence
from forge_core.proofs.record import FILE, ProofRun, path_of, stamped

RECORDS = Path("docs/records")
STATE = Path("results/proofs")
WORKERS = 14

_places = with_options(
    click.option("--root", type=EXISTING_FOLDER, default=Path(), is_eager=True, help="The repository."),
    click.option(
        "--records",
        type=click.Path(path_type=Path),
        callback=lambda ctx, _, records: records or ctx.params["root"] / RECORDS,
        help="The folder of records; docs/records.",
    ),
)


@click.group()
def prove() -> None:
    """Validate kernels on a GPU, and check anywhere that every kernel has a valid proof."""


@prove.command("run")
@click.argument("weeks", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Repeat what has a valid proof, too.")
@click.option(
    "-n", "workers", type=click.IntRange(min=1), help=f"Most processes of the tests; {WORKERS}, or the cores."
)
@click.option(
    "--limit",
    type=click.FloatRange(min=0, min_open=True),
    default=math.inf,
    help="Minutes after which it ends with status 1; the same command continues from there.",
)
@_places
def run_command(
    weeks: tuple[str, ...], everything: bool, workers: int | None, limit: float, root: Path, records: Path
) -> None:
    """Validate the kernels of WEEKS (all) without a valid proof, on this machine's GPU."""
    found, root = discover(weeks), root.resolve()
    if not torch.cuda.is_available():
        raise ProofError("a proof is made on a GPU, and there is none here")
    find_sanitizer()
    deadline, processes = time.monotonic() + 60 * limit, workers or min(WORKERS, os.cpu_count() or 1)
    environment = read_environment(torch.device("cuda"), [week.package for week in found])
    outcome = runner.prove(
        found,
        functools.partial(execute, root=root, workers=processes, deadline=deadline),
        ProofRun(dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), environment),
        devices.query(torch.device("cuda")),
        Evidence(root),
        records=records,
        state=root / STATE,
        everything=everything,
        gpus=torch.cuda.device_count(),
    )
    for note in outcome.notes:
        click.echo(note)
    for failure in outcome.failures:
        click.echo(failure, err=True)
    path = path_of(records, environment.gpu)
    click.echo(f"{path}: {len(outcome.proven)} kernels proven now, {len(outcome.kept)} before")
    if outcome.failures:
        raise ProofError(f"{len(outcome.failures)} findings; what was proven is in the record")


@prove.command("check")
@click.argument("weeks", nargs=-1)
@click.option("--recompute", is_flag=True, help="Plan and compile everything, also where no source changed.")
@_places
def check_command(weeks: tuple[str, ...], recompute: bool, root: Path, records: Path) -> None:
    """Exit with 1 unless every kernel has a valid proof; needs no GPU.

    Where sources changed, the recorded calls are planned and compiled again and compared.
    """
    evidence = Evidence(root, recompute="always" if recompute else "changed")
    found = checking.check(discover(weeks), records, evidence)
    if found:
        click.echo(checking.in_words(found), err=True)
        raise ProofError(f"{len(found)} findings")
    click.echo("every kernel has a proof")


@prove.command("table")
@_places
def table_command(root: Path, records: Path) -> None:
    """Print operator, variant, GPUs and date of every kernel's proof as a Markdown table."""
    evidence, weeks = Evidence(root), discover()
    checked = [(each, checking.wrong_proofs(weeks, each, evidence)) for each in checking.records_in(records).values()]
    rows = []
    for kernel in (kernel for week in weeks for kernel in week.kernels):
        found = (record.proof(kernel.name) for record, wrong in checked if not wrong[kernel.name])
        proofs = [proof for proof in found if proof is not None]
        gpus = ", ".join(proof.run.environment.gpu for proof in proofs) or "not proven"
        date = max((proof.run.date[:10] for proof in proofs), default="")
        rows.append((f"`{kernel.operator}`", kernel.variant, gpus, date))
    click.echo(Table("", ("operator", "variant", "proven on", "date"), tuple(rows), labels=4).markdown())


@prove.command("stamp")
@click.argument("record", type=EXISTING_FILE)
def stamp_command(record: Path) -> None:
    """Write this checkout's commit into a record that was made from the same sources without git."""
    stamped(checking.load_intact(record)).save(record)
    click.echo(f"{record}: stamped")


@prove.command("refresh")
@_places
def refresh_command(root: Path, records: Path) -> None:
    """Write the present fingerprints into proofs of which nothing differs, so that the next check compiles nothing.

    For refactored sources; needs no GPU.
    """
    evidence, weeks = Evidence(root), discover()
    for path in sorted(records.glob(f"*/{FILE}")):
        record = checking.load_intact(path)
        fresh = checking.refreshed(weeks, record, evidence)
        count = sum(old.fingerprint != new.fingerprint for old, new in zip(record.proofs, fresh.proofs, strict=True))
        fresh.save(path)
        click.echo(f"{path}: {count} fingerprints are new")
