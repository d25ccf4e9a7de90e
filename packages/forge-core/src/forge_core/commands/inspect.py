"""The command ``forge-cute inspect``: the kernel of a call, its resources and its code, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from forge_core.cli import FILE, answers
from forge_core.commands.find import call_options, explained
from forge_core.device import Arch
from forge_core.profiling.cubin import count_sass, disassemble
from forge_core.profiling.static import inspect_explained

HELP = """Show what kernel a call would run, and what it takes: no GPU needed.

OPERATOR is what the benchmarks name (transpose, sum_rows) or a public operator of a package (reduce_sum).

\b
forge-cute inspect transpose --shape 4096x4096 --dtype bfloat16 --arch sm_90a
forge-cute inspect sum_rows --shape 32768x4096 --dtype float32 --arch H100 --variant cluster --json
forge-cute inspect reduce_sum --shape 64x32x16 --dtype float16 --arg dim=[0,2]
"""


@click.command(help=HELP)
@call_options
@click.option("--ptx", is_flag=True, help="Print the PTX instead.")
@click.option("--sass", is_flag=True, help="Print the machine code instead; needs nvdisasm.")
@click.option("--cubin", type=FILE, help="Write the machine code to a file.")
@answers
def inspect(ptx: bool, sass: bool, cubin: Path | None, arch: Arch, **call: Any) -> tuple[dict[str, Any], list[str]]:
    """See :data:`HELP`."""
    if ptx + sass + click.get_current_context().params["as_json"] > 1:
        raise click.UsageError("--ptx, --sass and --json each print something else: name one of them")
    report = inspect_explained(explained(arch=arch, **call), arch=arch)
    if cubin is not None:
        cubin.write_bytes(report.artefacts.cubin)
    lines = [report.artefacts.ptx if ptx else report.text()]
    if sass:
        lines = [disassemble(report.artefacts.cubin)]
        for kernel, counts in count_sass(lines[0]).items():
            lines.append(f"// {kernel}: " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    return report.as_dict(), lines
