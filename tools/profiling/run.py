"""Profiles cases of the benchmarks, or a command of your own: `nox -s profile -- TOOL ...`.

Exit status: 0; 1 the sanitizer found something; 2 it cannot be done here, and the message says what to do; 3 bad usage.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import ncu_extract
from runners import ROOT, RUNNERS, SANITIZERS, Request

from forge_core.cli import BAD_USAGE
from forge_core.errors import ForgeError

#: Exit status where a tool is missing, may not do its work, or was asked for what does not exist.
CANNOT = 2

HELP = """Profile cases of the benchmarks, or a command of your own that stands behind a further `--`.

\b
TOOL       ncu        the GPU's counters of each launch, and what limits it
           nsys       the timeline
           sanitizer  memcheck, racecheck, initcheck and synccheck; each is a TOOL of its own too
           torch      PyTorch's profiler
PACKAGE    week0, week0-transpose, forge_week0_transpose, ..., or planted: the five planted faults; without it, all

`ncu --extract REPORT [--json] [--kernel NAME]` reads a report that is there already, and `ncu --extract compare A B`
sets two side by side.  Results go to profiles/, named by time, tool and case.
"""


@click.command(help=HELP)
@click.argument("tool", type=click.Choice([*RUNNERS, *SANITIZERS]), metavar="TOOL")
@click.argument("package", required=False)
@click.option("--case", help="An operator, a shape, a dtype, a layout: 'transpose 4096x4096'; else the suite smoke.")
@click.option("--variant", default="auto", show_default=True, help="A name, or all: each on a case that it can do.")
@click.option(
    "--set",
    "sets",
    help="ncu: forge (default), launch, or one of ncu's own; nsys: what to trace; sanitizer: tools, with commas.",
)
@click.option("--kernel", help="Only kernels whose name holds this.")
@click.option("--calls", type=int, help="Profiled calls of each case.")
@click.option("--clock-control", type=click.Choice(["none", "base"]), default="none", help="ncu: leave the clocks.")
@click.option("--lines", is_flag=True, help="Compile with line information, for the source page.")
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "profiles", help="Where results go.")
@click.pass_obj
def command(own: tuple[str, ...], /, tool: str, sets: str | None, out: Path, **options: Any) -> int:
    """The command; what it says to a user stands in HELP."""
    if own and (options["package"] or options["case"]):
        raise click.UsageError("a command of your own stands instead of a package and a case")
    if tool in SANITIZERS:
        tool, sets = "sanitizer", tool
    return RUNNERS[tool](Request(tool=tool, sets=sets, command=own, out=out.resolve(), **options))


def main(argv: Sequence[str]) -> int:
    """The program."""
    words = list(argv)
    cut = words.index("--") if "--" in words else len(words)
    before, own = words[:cut], tuple(words[cut + 1 :])
    name, chosen = "nox -s profile --", command
    if before[:2] == ["ncu", "--extract"]:
        name, chosen, before = f"{name} ncu --extract", ncu_extract.command, before[2:]
    try:
        return int(chosen.main(before, prog_name=name, standalone_mode=False, obj=own) or 0)
    except click.UsageError as error:
        error.show()
        return BAD_USAGE
    except ForgeError as error:
        sys.stderr.write(f"\ncannot profile: {error}\n")
        return CANNOT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
