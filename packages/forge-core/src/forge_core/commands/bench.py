"""The command ``forge-cute bench``: run, sweep and list; those of ``records`` work on records."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from forge_core.bench import kernels, processes, report, runner, sweep
from forge_core.bench import plan as planning
from forge_core.bench.records import Record, load, union
from forge_core.bench.schema import check_known, suites_of
from forge_core.cli import FILE, FOLDER, REGRESSION
from forge_core.commands import records
from forge_core.device import query
from forge_core.files import write_atomically
from forge_core.progress import progress
from forge_core.timing.l2 import POLICIES
from forge_core.timing.timers import TIMERS

# A line with \\b alone is click's mark for a paragraph whose lines stay as they are.
HELP = """Measure operators, show and report what was measured.

\b
forge-cute bench smoke                     a suite; short for `bench run smoke`
forge-cute bench transpose --shape 8192x8192 --dtype bfloat16
forge-cute bench week1 --devices all --out results
forge-cute bench sweep softmax --seed 7    random problems beside all peers
forge-cute bench compare OLD NEW --fail-on-regression 5%
forge-cute bench report docs/records/h200  one HTML file and pictures

\b
Exit status: 0 all right, 1 a wrong result or an error, 2 a regression or a gate that is not reached, 3 bad usage.
"""


class RunByDefault(click.Group):
    """A group whose first word may also be what its ``run`` command takes: ``bench smoke`` is ``bench run smoke``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Puts ``run`` before a first word that is no command; ``ctx.obj`` has the command's own words."""
        if args and self.get_command(ctx, args[0]) is None:
            args = ["run", *args]
        ctx.obj = args[1:]
        return super().resolve_command(ctx, args)


@click.group(cls=RunByDefault, help=HELP)
def bench() -> None:
    """The group; its help is HELP."""


for found in vars(records).values():
    if isinstance(found, click.Command):
        bench.add_command(found)


@bench.command("run")
@click.argument("name", metavar="SUITE_OR_OPERATOR")
@click.option("--backend", type=click.Choice(["kernel", "ref"]), help="Default: kernel on a GPU, ref on the CPU.")
@click.option("--package", "packages", multiple=True, metavar="week0", help="Only this package's cases; repeatable.")
@click.option("--operator", "operators", multiple=True, metavar="NAME", help="Only this operator's; repeatable.")
@click.option("--variant", "variants", multiple=True, metavar="NAME", help="A variant, or 'all'; repeatable.")
@click.option("--shape", "shapes", multiple=True, metavar="4096x4096", help="Repeatable; selects in a suite.")
@click.option("--dtype", "dtypes", multiple=True, metavar="bfloat16", help="Repeatable; selects in a suite.")
@click.option("--peer", "peers", multiple=True, metavar="NAME", help="Only these peers; repeatable.")
@click.option("--device", "device_text", metavar="cuda:0|cpu", help="Default: the first GPU, if there is one.")
@click.option("--devices", "devices_text", metavar="all|cuda:0,cuda:1", help="Spread the cases over several GPUs.")
@click.option("--timer", "stopwatch", type=click.Choice(list(TIMERS)), default="events", show_default=True)
@click.option("--l2", type=click.Choice(POLICIES), default="cold", show_default=True, help="Before each launch.")
@click.option("--warmup", type=click.IntRange(min=0), help="Exactly so many rounds first, at least one.")
@click.option("--iterations", type=click.IntRange(min=1), help="Samples of each contender.")
@click.option("--repeats", type=click.IntRange(min=1), default=1, show_default=True, help="Runs of the whole suite.")
@click.option("--seed", type=click.IntRange(min=0, max=2**31 - 1), default=0, show_default=True)
@click.option("--json", "json_path", metavar="FILE|-", help="Write the record there; '-' is standard output.")
@click.option("--out", type=FOLDER, help="Write record and Markdown to a folder.")
@click.option("--share", type=(int, int), hidden=True, help="This process's number, and how many share the cases.")
@click.pass_context
def run_command(
    ctx: click.Context,
    /,
    name: str,
    backend: str | None,
    device_text: str | None,
    devices_text: str | None,
    stopwatch: str,
    l2: str,
    warmup: int | None,
    iterations: int | None,
    repeats: int,
    seed: int,
    json_path: str | None,
    out: Path | None,
    share: tuple[int, int] | None,
    **selected: tuple[str, ...],
) -> None:
    """Run a suite, or measure an operator.  Ctrl-C, or SIGTERM, ends the run and keeps what was measured."""
    selection = planning.Selection(**selected)
    # With the record on standard output, everything for people goes to standard error.
    console = records.console(error=json_path == "-")
    with runner.Interrupts() as interrupts:
        run = planning.plan(planning.discover(), name, selection, commands=bench.commands)
        if share is not None:
            (number, shares), devices_text, out = share, None, None
            run = replace(run, cases=run.cases[number::shares], imports=() if number else run.imports)
        found = planning.devices_of(device_text, devices_text, run)
        device, shown = found[0], progress(repeats * len(run.cases) + len(run.imports))
        if len(found) > 1:
            names = list(map(str, found))
            with shown as on_case:
                record = union(processes.spread(ctx.obj, names, on_case), names)
            interrupts.measured()
        else:
            backend = backend or ("kernel" if device.type == "cuda" else "ref")
            if backend == "ref" and set(selection.variants) - {"auto"}:
                raise click.UsageError("--variant names a kernel, and the backend is 'ref', which has none")
            if backend == "kernel" and device.type == "cuda":
                kernels.ahead(kernels.kernels_of([run], [query(device).arch]))
            policy = replace(runner.default_policy(device), iterations=iterations)
            if warmup is not None:
                policy = replace(policy, warmup=warmup, warmup_ms=0.0)
            options = runner.Options(device, backend, policy, repeats, seed, stopwatch, l2)
            with shown as on_case:
                record = runner.run_all(run, options, on_case=on_case, stop=interrupts)
        report.print_record(record, console)
        _write(record, json_path, out, console)
    ctx.exit(1 if record.errors or record.interrupted else 0)


@bench.command("sweep")
@click.argument("name", metavar="OPERATOR")
@click.option("--cases", "count", type=click.IntRange(min=1), default=200, show_default=True)
@click.option("--seed", type=click.IntRange(min=0, max=2**31 - 1), default=0, show_default=True, help="Of the cases.")
@click.option("--dtype", "kinds", multiple=True, default=("float32", "bfloat16"), show_default=True)
@click.option("--most-bytes", type=click.IntRange(min=2**11), default=2**30, show_default=True, help="Of the input.")
@click.option("--device", "device_text", metavar="cuda:0|cpu", help="Default: the first GPU, if there is one.")
@click.option("--limit", type=click.FloatRange(0), default="inf", metavar="MINUTES", help="End after these minutes.")
@click.option("--json", "path", type=FILE, help="The record; continued if there.")
@click.option("--gate", type=float, metavar="0.97", help="Exit with status 2 if the 5th percentile is below.")
@click.pass_context
def sweep_command(
    ctx: click.Context,
    /,
    name: str,
    count: int,
    seed: int,
    kinds: tuple[str, ...],
    most_bytes: int,
    device_text: str | None,
    limit: float,
    path: Path | None,
    gate: float | None,
) -> None:
    """Measure an operator on random problems beside all peers; the same command continues a sweep that ended."""
    benches = {operator: bench for bench in planning.discover() for operator in bench.by_name}
    check_known("benchmarks", "operator", [name], benches, click.UsageError)
    operator = benches[name].by_name[name]
    try:
        cases = sweep.draw(operator, seed, count, kinds, most_bytes)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    run, ends = sweep.plan(benches[name], operator, cases), time.monotonic() + 60 * limit
    (device, *_) = planning.devices_of(device_text, None, run)
    options = runner.Options(
        device, "kernel" if device.type == "cuda" else "ref", runner.default_policy(device), seed=seed
    )

    def extended(record: Record | None, left: planning.Run, options: runner.Options) -> Record:
        def whole(found: Record) -> Record:
            return found if record is None else sweep.continued(record, found)

        def save(found: Record) -> None:
            if path is not None:  # after each case: what ends a process may leave it no time to write
                write_atomically(path, whole(found).dumps())

        with runner.Interrupts(ends - time.monotonic()) as interrupts, progress(len(left.cases)) as on_case:
            found = runner.run_all(left, options, on_case=on_case, save=save, stop=interrupts)
            save(found)
        return whole(found)

    before = load(path) if path is not None and path.exists() else None
    left = sweep.rest(run, before)
    record = extended(before, left, options) if before is None or left.cases else before
    if not sweep.rest(run, record).cases and (slow := sweep.slow(run, record)).cases:
        record = extended(record, slow, replace(options, policy=sweep.longer(options.policy)))
    console = records.console()
    for table in sweep.tables(record):
        console.print(table.rich())
    for problem in record.errors:
        console.print(problem, style="red", markup=False)
    if record.interrupted:
        console.print(f"{len(record.not_run)} cases are left; the same command continues with --json.", markup=False)
    if record.errors or record.interrupted:
        ctx.exit(1)
    if gate is not None and (reached := sweep.reached(record)) < gate:
        console.print(f"The 5th percentile is {reached:.3f}, below the gate of {gate}.", style="red")
        ctx.exit(REGRESSION)


@bench.command("list")
def list_command() -> None:
    """List the suites, the operators, their variants and peers."""
    for found in planning.discover():
        for suite_name, suite in suites_of(found).items():
            click.echo(f"suite     {suite_name:12} {suite.about} ({found.package})")
        for operator in found.operators:
            known = ", ".join(operator.variants())
            needs = {peer.name: " and ".join(each.name for each in peer.requires) for peer in operator.peers}
            versus = ", ".join(f"{name} (needs {what})" if what else name for name, what in needs.items())
            click.echo(f"operator  {operator.name:12} variants: {known}; peers: {versus}")


def _write(record: Record, json_path: str | None, out: Path | None, console: Console) -> None:
    text = record.dumps()
    if json_path == "-":
        click.echo(text, nl=False)
    elif json_path is not None:
        write_atomically(Path(json_path), text)
        console.print(f"record: {json_path}", highlight=False)
    if out is not None:
        stamp = re.sub(r"\D", "", record.date[:19])
        stem = re.sub(r"[^a-z0-9]+", "-", f"{record.suite} {record.environment.machine} {stamp}".lower())
        write_atomically(out / f"{stem}.json", text)
        write_atomically(out / f"{stem}.md", report.markdown(record))
        console.print(f"record: {out / stem}.json and .md", highlight=False)
