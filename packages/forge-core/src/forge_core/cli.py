"""The command `forge-cute`.

    forge-cute --version
    forge-cute doctor [--json]          what this machine has, and what is wrong with it
    forge-cute bench ...                benchmarks; see `forge-cute bench --help`
    forge-cute inspect OPERATOR ...     what kernel a call would run and what it takes, without a GPU
    forge-cute layout ...               thread-value layouts and swizzles as SVG, with their bank conflicts
    forge-cute prove ...                what was proven of each kernel on a GPU, and whether it still holds
    forge-cute cache ...                compiled kernels; see `forge-cute cache --help`
    forge-cute new NAME ...             a package with a tested operator, from a template
    forge-cute settings [--json]        the FORGE_* variables, what they do, their values, and the folders in use

Exit status: 0 all right, 1 an error or a finding, 3 bad usage; `bench compare` has 2 for a regression.

A command's module is imported when the command is called, so that `--help` and `doctor` answer on a machine where
the rest does not work.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click

import forge_core
from forge_core import settings
from forge_core.device import Arch
from forge_core.errors import ForgeError, SettingsError, UnsupportedError

__all__ = ["ARCH", "BAD_USAGE", "REGRESSION", "did_you_mean", "main"]

#: The exit statuses of all commands; a regression, found by `bench compare`, has the number that click gives bad usage.
REGRESSION = 2
BAD_USAGE = 3

# The command's name, where it lives, and its line in the help.
LAZY_COMMANDS = {
    "doctor": ("forge_core.env_check.doctor:doctor", "Check this machine, and name the command that repairs it."),
    "bench": ("forge_core.commands.bench:bench", "Measure operators and report what was measured."),
    "inspect": ("forge_core.commands.inspect:inspect", "Show what kernel a call would run; needs no GPU."),
    "layout": ("forge_core.commands.layout:layout", "Draw thread-value layouts and swizzles as SVG."),
    "prove": ("forge_core.commands.prove:prove", "Prove kernels on a GPU; check anywhere what is proven."),
    "new": ("forge_core.commands.new:new", "Make a package with a tested operator, from a template."),
    "cache": ("forge_core.commands.cache:cache", "Show, check, warm and ship compiled kernels."),
}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known names that are nearest to one that is not known, each once, as a question; or nothing."""
    by_lower = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), by_lower) or [part for part in by_lower if name.lower() in part][:5]
    return f"Did you mean {' or '.join(by_lower[other] for other in near)}?" if near else ""


class ArchType(click.ParamType[Arch]):
    """An architecture, or a GPU whose architecture and figures are meant."""

    name = "architecture"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Arch:
        """The architecture with its figures."""
        try:
            return Arch.parse(value)
        except UnsupportedError as error:
            self.fail(str(error), param, ctx)


ARCH = ArchType()


@contextmanager
def _one_bad_usage() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        # An attribute of the class in click; here it is the error's own.
        vars(error)["exit_code"] = BAD_USAGE
        raise


class Commands(click.Group):
    """A group whose commands are imported at first use, and whose ForgeErrors are one plain message."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """As click's, with the exit status of bad usage."""
        with _one_bad_usage():
            return super().make_context(info_name, args, parent, **extra)

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
            with _one_bad_usage():
                return super().invoke(ctx)
        except ForgeError as error:
            if _traceback_wanted():
                raise
            click.echo(f"{type(error).__name__}: {error}", err=True)
            ctx.exit(getattr(error, "exit_status", 1))


def _traceback_wanted() -> bool:
    try:
        return settings.current().debug
    except SettingsError:
        return False


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(forge_core.__version__, prog_name="forge-cute")
def main() -> None:
    """Forge: CuTe DSL kernels as PyTorch operators."""
    settings.check_names()


@main.command("settings")
@click.option("--json", "as_json", is_flag=True, help="Print the values as JSON.")
def show_settings(as_json: bool) -> None:
    """Show the FORGE_* variables, what they do, the values in force, and the folders in use."""
    current = settings.current()
    origins = {v.name: "environment" if os.environ.get(v.name) else "default" for v in settings.VARIABLES}
    values = {v.name: getattr(current, v.field) for v in settings.VARIABLES}
    places = _places(current)
    if as_json:
        click.echo(json.dumps({**values, "origins": origins, "places": places}, indent=2, default=str))
        return
    for variable in settings.VARIABLES:
        click.echo(f"{variable.name} = {_shown(values[variable.name])} ({origins[variable.name]})")
        click.echo(f"    {variable.help}; takes {variable.takes}")
    for place in places:
        click.echo(f"{place['what']}: {place['place']} ({place['origin']})")


def _shown(value: Any) -> str:
    if isinstance(value, Arch):
        return f"{value}, {value.device.name}"
    if isinstance(value, tuple):
        return os.pathsep.join(str(part) for part in value) or "none"
    return "none" if value is None else str(value)


def _places(current: settings.Settings) -> list[dict[str, str]]:
    """Where kernels are looked up, in this order, and what says so; found without importing torch."""
    origin = "the user's cache folder" if current.cache_dir is None else "FORGE_CACHE_DIR"
    found = [("cache", current.folder, origin if current.cache else "not used: FORGE_CACHE=0")]
    found += [("bundle", folder, "FORGE_BUNDLES") for folder in current.bundles]
    places = [{"what": what, "place": str(folder.absolute()), "origin": origin} for what, folder, origin in found]
    for entry in importlib.metadata.entry_points(group="forge.bundles"):
        brought_by = entry.dist.name if entry.dist is not None else "an installed package"
        places.append({"what": "bundle", "place": entry.value, "origin": brought_by})
    return places


if __name__ == "__main__":
    main()
