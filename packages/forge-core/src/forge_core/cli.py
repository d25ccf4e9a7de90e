"""The command `forge-cute`.

    forge-cute --version
    forge-cute doctor [--json]          what this machine has, and what is wrong with it
    forge-cute bench ...                benchmarks; see `forge-cute bench --help`
    forge-cute inspect OPERATOR ...     what kernel a call would run and what it takes, without a GPU
    forge-cute layout ...               thread-value layouts and swizzles as SVG, with their bank conflicts
    forge-cute prove ...                what was proven of each kernel on a GPU, and whether it still holds
    forge-cute cache ...                compiled kernels; see `forge-cute cache --help`
    forge-cute settings [--json]        the FORGE_* variables, what they do, and their values

A command's module is imported when the command is called, so that `--help` and `doctor` answer on a machine where
the rest does not work.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from typing import Any

import click

import forge_core
from forge_core import settings
from forge_core.errors import ForgeError, SettingsError

__all__ = ["main"]

# The command's name, where it lives, and its line in the help.
LAZY_COMMANDS = {
    "bench": ("forge_core.bench.cli:bench", "Measure operators and report what was measured."),
    "inspect": ("forge_core.profiling.inspect_command:inspect", "Show what kernel a call would run; needs no GPU."),
    "layout": ("forge_core.profiling.layout_command:layout", "Draw thread-value layouts and swizzles as SVG."),
    "prove": ("forge_core.testing.proofs.cli:prove", "Prove kernels on a GPU; check anywhere what is proven."),
    "cache": ("forge_core.cache.cli:cache", "Show, check, warm and ship compiled kernels."),
}


class Commands(click.Group):
    """A group whose commands are imported at first use, and whose ForgeErrors are one plain message."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, without importing what has not been imported."""
        return sorted({*super().list_commands(ctx), *LAZY_COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now if it has to be."""
        if cmd_name not in LAZY_COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = LAZY_COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in the help, in which a lazy command is described without being imported."""
        rows = []
        for name in self.list_commands(ctx):
            if name in LAZY_COMMANDS:
                rows.append((name, LAZY_COMMANDS[name][1]))
            elif (command := self.get_command(ctx, name)) is not None:
                rows.append((name, command.get_short_help_str(limit=100)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; what Forge found wrong is one message and exit status 1."""
        try:
            return super().invoke(ctx)
        except ForgeError as error:
            if _traceback_wanted():
                raise
            click.echo(f"{type(error).__name__}: {error}", err=True)
            ctx.exit(1)


def _traceback_wanted() -> bool:
    try:
        return settings.current().debug
    except SettingsError:
        return False


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(forge_core.__version__, prog_name="forge-cute")
def main() -> None:
    """Forge: CuTe DSL kernels as PyTorch operators."""


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print facts and findings as JSON.")
def doctor(as_json: bool) -> None:
    """Check this machine, and give the command that repairs each fault."""
    from forge_core.env_check.report import main as check

    sys.exit(check(["--json"] if as_json else []))


@main.command("settings")
@click.option("--json", "as_json", is_flag=True, help="Print the values as JSON.")
def show_settings(as_json: bool) -> None:
    """Show the FORGE_* variables, what they do, and the values in force."""
    current = settings.current()
    if as_json:
        values = {v.name: getattr(current, v.field) for v in settings.VARIABLES}
        click.echo(json.dumps(values, indent=2, default=str))
        return
    defaults = {f.name: f.default for f in dataclasses.fields(settings.Settings)}
    for variable in settings.VARIABLES:
        value = getattr(current, variable.field)
        origin = "default" if value == defaults[variable.field] else "set"
        click.echo(f"{variable.name} = {value} ({origin})")
        click.echo(f"    {variable.help}; takes {variable.takes}")


if __name__ == "__main__":
    main()
