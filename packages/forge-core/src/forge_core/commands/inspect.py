"""The command ``forge-cute inspect``: what an operator's kernel is, without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from forge_core.cli import ARCH
from forge_core.commands.find import explain_named
from forge_core.device import Arch
from forge_core.errors import ArgumentError
from forge_core.op import Explanation
from forge_core.profiling.sass import count_sass, disassemble
from forge_core.profiling.static import inspect_explained

__all__ = ["explained", "inspect"]

HELP = """Show what kernel a call would run, and what it takes: no GPU needed.

OPERATOR is what the benchmarks name (transpose, sum_rows) or a public operator of a package (reduce_sum).

\b
forge-cute inspect transpose --shape 4096x4096 --dtype bfloat16 --arch sm_90a
forge-cute inspect sum_rows --shape 32768x4096 --dtype float32 --arch H100 --variant cluster --json
forge-cute inspect reduce_sum --shape 64x32x16 --dtype float16 --arg dim=[0,2]
"""


def _pairs(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"expected NAME=VALUE, got {text!r}", ctx=context, param=parameter)
        pairs[name] = value
    return pairs


def explained(operator: str, **asked: Any) -> Explanation:
    """What a call would run, as :func:`~forge_core.commands.find.explain_named` has it.

    Raises:
        click.UsageError: no such operator, or it does not take these arguments.
        ForgeError: what else the call itself would raise.
    """
    try:
        return explain_named(operator, **asked)
    except ArgumentError as error:
        raise click.UsageError(str(error)) from error


@click.command(help=HELP)
@click.argument("operator")
@click.option("--shape", required=True, help="The first input's sizes, for example 4096x4096.")
@click.option("--dtype", required=True, help="Its dtype, for example bfloat16.")
@click.option("--layout", default="contiguous", show_default=True, help="contiguous, permuted, offset or sliced.")
@click.option("--arch", type=ARCH, default="sm_90a", show_default=True, help="What to compile for, also as H100.")
@click.option("--variant", default="auto", show_default=True, help="The kernel to look at.")
@click.option("--arg", "arguments", multiple=True, callback=_pairs, help="A further argument, NAME=VALUE.")
@click.option("--ptx", is_flag=True, help="Print the PTX instead.")
@click.option("--sass", is_flag=True, help="Print the machine code instead; needs nvdisasm.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--cubin", type=click.Path(path_type=Path, dir_okay=False), help="Write the machine code to a file.")
def inspect(
    operator: str,
    shape: str,
    dtype: str,
    layout: str,
    arch: Arch,
    variant: str,
    arguments: dict[str, str],
    ptx: bool,
    sass: bool,
    as_json: bool,
    cubin: Path | None,
) -> None:
    """See :data:`HELP`."""
    if ptx + sass + as_json > 1:
        raise click.UsageError("--ptx, --sass and --json each print something else: name one of them")
    explanation = explained(
        operator, shape=shape, dtype=dtype, layout=layout, variant=variant, arch=arch, arguments=arguments
    )
    report = inspect_explained(explanation, arch=arch)
    if cubin is not None:
        cubin.write_bytes(report.artefacts.cubin)
    if ptx:
        click.echo(report.artefacts.ptx)
    elif sass:
        text = disassemble(report.artefacts.cubin)
        click.echo(text)
        for kernel, counts in count_sass(text).items():
            click.echo(f"// {kernel}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    elif as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    else:
        click.echo(report.text())
