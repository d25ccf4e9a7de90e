"""The command ``forge-cute bench``: run, list, show, report.

Exit status: 0 all right, 1 a wrong result or an error, 2 bad usage.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
import msgspec
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from forge_core.bench import plan as planning
from forge_core.bench import records, report, runner
from forge_core.bench.environment import stamp
from forge_core.bench.records import Record
from forge_core.bench.schema import load_suites
from forge_core.cache import suites
from forge_core.device import query
from forge_core.errors import BenchmarkError, ForgeError
from forge_core.timing import Policy

__all__ = ["bench"]


# A line with \\b alone is click's mark for a paragraph whose lines stay as they are.
HELP = """Measure operators, show and report what was measured.

\b
forge-cute bench smoke                     a suite; short for `bench run smoke`
forge-cute bench transpose --shape 8192x8192 --dtype bfloat16
forge-cute bench report RECORD --into README.md
"""


class RunByDefault(click.Group):
    """A group whose first word may also be what its ``run`` command takes: ``bench smoke`` is ``bench run smoke``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            args = ["run", *args]
        return super().resolve_command(ctx, args)


@contextmanager
def _errors() -> Iterator[None]:
    """Turns Forge's errors into a message and the exit status."""
    try:
        yield
    except planning.UsageError as error:
        raise click.UsageError(str(error)) from error
    except ForgeError as error:
        raise click.ClickException(str(error)) from error


@click.group(cls=RunByDefault, help=HELP)
def bench() -> None:
    """The group; what it says to a user stands in HELP."""


@bench.command("run")
@click.argument("name", metavar="SUITE_OR_OPERATOR")
@click.option("--backend", type=click.Choice(["kernel", "ref"]), help="Default: kernel on a GPU, ref on the CPU.")
@click.option("--variant", "variants", multiple=True, metavar="NAME", help="A variant, or 'all'; repeatable.")
@click.option("--shape", "shapes", multiple=True, metavar="4096x4096", help="Repeatable; selects in a suite.")
@click.option("--dtype", "dtypes", multiple=True, metavar="bfloat16", help="Repeatable; selects in a suite.")
@click.option("--peer", "peers", multiple=True, metavar="NAME", help="Only these peers; repeatable.")
@click.option("--device", "device_text", metavar="cuda:0|cpu", help="Default: the first GPU, if there is one.")
@click.option(
    "--warmup",
    type=click.IntRange(min=0),
    help="Exactly so many rounds first, at least one.",
)
@click.option("--iterations", type=click.IntRange(min=1), help="Samples of each contender.")
@click.option("--repeats", type=click.IntRange(min=1), default=1, show_default=True, help="Runs of the whole suite.")
@click.option("--seed", type=click.IntRange(min=0, max=2**31 - 1), default=0, show_default=True)
@click.option("--json", "json_path", metavar="FILE|-", help="Write the record there; '-' is standard output.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write record and Markdown to a folder.")
@click.pass_context
def run_command(
    ctx: click.Context,
    name: str,
    backend: str | None,
    variants: tuple[str, ...],
    shapes: tuple[str, ...],
    dtypes: tuple[str, ...],
    peers: tuple[str, ...],
    device_text: str | None,
    warmup: int | None,
    iterations: int | None,
    repeats: int,
    seed: int,
    json_path: str | None,
    out: Path | None,
) -> None:
    """Run a suite, or measure an operator."""
    selection = planning.Selection(variants, shapes, dtypes, peers)
    # With the record on standard output, everything for people goes to standard error.
    console = _console(error=json_path == "-")
    with _errors():
        run = planning.plan(planning.discover(), name, selection)
        device = _device(device_text, run)
        chosen = backend or ("kernel" if device.type == "cuda" else "ref")
        if chosen == "ref" and set(variants) - {"auto"}:
            raise planning.UsageError("--variant names a kernel, and the backend is 'ref', which has none")
        options = runner.Options(device, chosen, _policy(device, warmup, iterations), repeats, seed)
        if chosen == "kernel" and device.type == "cuda":
            suites.ahead(suites.kernels_of(run, query(device).arch))
        with _progress(repeats * len(run.cases) + len(run.imports)) as on_case:
            record = runner.run_all(run, options, on_case=on_case)
        report.print_record(record, console)
        _write(record, json_path, out, console)
    ctx.exit(1 if record.errors else 0)


@bench.command("list")
def list_command() -> None:
    """List the suites, the operators, their variants and peers."""
    with _errors():
        for found in planning.discover():
            for suite_name, suite in load_suites(found).items():
                click.echo(f"suite     {suite_name:12} {suite.about} ({found.package})")
            for operator in found.operators:
                known = ", ".join(operator.variants())
                versus = ", ".join(peer.name for peer in operator.peers)
                click.echo(f"operator  {operator.name:12} variants: {known}; peers: {versus}")


@bench.command("show")
@click.argument("record", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def show_command(record: Path) -> None:
    """Print the tables of a record."""
    with _errors():
        report.print_record(records.load(record), _console())


@bench.command("report")
@click.argument("record", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--into",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Replace what stands between the markers <!-- bench:SUITE begin --> and end of this page.",
)
def report_command(record: Path, into: Path | None) -> None:
    """Make Markdown tables from a record."""
    with _errors():
        loaded = records.load(record)
        if into is None:
            click.echo(report.markdown(loaded), nl=False)
        else:
            report.replace_between_markers(into, loaded)
            click.echo(f"{into}: the block bench:{loaded.suite} is now that of {record.name}")


@bench.command("stamp")
@click.argument("record", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def stamp_command(record: Path) -> None:
    """Write this checkout's commit into a record that was made from the same sources on a machine without git."""
    with _errors():
        loaded = records.load(record)
        stamped = msgspec.structs.replace(loaded, environment=stamp(loaded.environment))
        record.write_text(stamped.dumps(), encoding="utf-8")
        click.echo(f"{record}: made from commit {stamped.environment.commit}")


def _device(text: str | None, run: planning.Run) -> torch.device:
    available = torch.cuda.is_available()
    if text is None:
        if available:
            return torch.device("cuda", 0)
        if not run.cpu:
            raise BenchmarkError(
                f"{run.name} needs a CUDA GPU: No GPU devices found. With --device cpu the reference is timed on the "
                "CPU instead"
            )
        return torch.device("cpu")
    try:
        device = torch.device(text)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cuda", "cpu"):
        raise planning.UsageError(f"--device: expected cpu, cuda or cuda:N, got {text!r}")
    if device.type == "cpu":
        return device
    index = device.index or 0
    count = torch.cuda.device_count() if available else 0
    if index >= count:
        raise BenchmarkError(f"--device {text}: {count or 'No'} GPU devices found")
    return torch.device("cuda", index)


def _policy(device: torch.device, warmup: int | None, iterations: int | None) -> Policy:
    policy = replace(runner.default_policy(device), iterations=iterations)
    return policy if warmup is None else replace(policy, warmup=warmup, warmup_ms=0.0)


def _console(*, error: bool = False) -> Console:
    console = Console(stderr=error)
    # Rich wraps to 80 columns where there is no terminal; a table in a log or a file must keep its rows whole.
    return console if console.is_terminal else Console(stderr=error, width=240)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal; in a log, a line for each case, so that a long run shows where it is."""
    if not sys.stderr.isatty():
        numbers = itertools.count(1)
        yield lambda name: click.echo(f"[{next(numbers)}/{total}] {name}", err=True)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=total)
        yield lambda name: bar.update(task, advance=1, description=f"done: {name}")


def _write(record: Record, json_path: str | None, out: Path | None, console: Console) -> None:
    text = record.dumps()
    if json_path == "-":
        click.echo(text, nl=False)
    elif json_path is not None:
        Path(json_path).write_text(text, encoding="utf-8")
        console.print(f"record: {json_path}", highlight=False)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        machine = record.environment.gpu if record.environment.device == "cuda" else "cpu"
        stamp = re.sub(r"\D", "", record.date[:19])
        stem = re.sub(r"[^a-z0-9]+", "-", f"{record.suite} {machine} {stamp}".lower())
        (out / f"{stem}.json").write_text(text, encoding="utf-8")
        (out / f"{stem}.md").write_text(report.markdown(record), encoding="utf-8")
        console.print(f"record: {out / stem}.json and .md", highlight=False)
