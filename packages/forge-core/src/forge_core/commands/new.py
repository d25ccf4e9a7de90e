"""The command ``forge-cute new``: a package with an operator, from a template."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from forge_core.cli import FOLDER
from forge_core.scaffold import KINDS, Names, create


@click.command()
@click.argument("name")
@click.option("--operator", help="The operator's name; by default the last word of NAME.")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    help="rows: a row program on the row engine (default); kernel: a CuTe DSL kernel of its own.",
)
@click.option("--into", type=FOLDER, default=".", help="The folder that gets it.")
@click.option("--prefix", default="", help="Of the distribution and the module, as forge- in Forge's repository.")
def new(name: str, operator: str | None, kind: str | None, into: Path, prefix: str) -> None:
    """Make a package with a tested operator; it asks for what is not given."""
    suggested = Names.of(name, operator)
    if sys.stdin.isatty():
        operator = operator or click.prompt("Operator", default=suggested.operator)
        kind = kind or click.prompt("Kind", type=click.Choice(KINDS), default="rows")
    in_repository = (into / "forge-core" / "pyproject.toml").is_file()
    names = Names.of(name, operator, kind or "rows", prefix=prefix, folder=into.name if in_repository else "")
    made = create(names, into)
    if find_spec("ruff") is not None:
        # Names of other lengths wrap and sort otherwise.
        for words in (("check", "--fix-only", "--select", "I"), ("format",)):
            subprocess.run([sys.executable, "-m", "ruff", *words, "-q", "--no-cache", str(made)], check=True)
    files = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file())
    click.echo(f"{made}: {names.distribution}, operator {names.operator}, {len(files)} files:")
    click.echo("\n".join(f"  {file}" for file in files))
    install = f"cd {made} && pip install -e . pytest pytest-xdist && pytest -n auto -p forge_core.pytest_plugin"
    click.echo(f"nox -s tests -- {names.name}" if in_repository else install)
