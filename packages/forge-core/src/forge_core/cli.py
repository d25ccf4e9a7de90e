"""The command `forge-cute`; its `--help` lists what it has.

Exit status: 0 all right, 1 an error or a finding, 3 bad usage; `bench compare` has 2 for a regression.

A command's module is imported when the command is called, so that `--help` and `doctor` answer on a machine where
the rest does not work.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

import forge_core
from forge_core import settings
from forge_core.device import Arch
from forge_core.errors import ForgeError, SettingsError, UnsupportedError

#: Exit statuses; click's own for bad usage is 2.
REGRESSION = 2
BAD_USAGE = 3

#: Commands that are imported at first use from `forge_core.commands.NAME`: the name, and its line in the help.
LAZY_COMMANDS = {
    "doctor": "Check this machine, and name the command that repairs it.",
    "bench": "Measure operators and report what was measured.",
    "inspect": "Show what kernel a call would run; needs no GPU.",
    "layout": "Draw thread-value layouts and swizzles as SVG.",
    "prove": "Prove kernels on a GPU; check anywhere what is proven.",
    "new": "Make a package with a tested operator, from a template.",
    "cache": "Show, check, warm and ship compiled kernels.",
}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that suggests the known names nearest to an unknown one, each once; "" without any."""
    by_lower = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name.lower(), by_lower) or [part for part in by_lower if name.lower() in part][:5]
    return f"Did you mean {' or '.join(by_lower[other] for other in near)}?" if near else ""


def architecture(text: str) -> Arch:
    """Parses an option's architecture or name of a GPU; see :class:`Arch`."""
    try:
        return Arch.parse(text)
    except UnsupportedError as error:
        raise click.BadParameter(str(error)) from error


ARCH = click.types.FuncParamType(architecture)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@contextmanager
def _one_bad_usage() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        # On the error, because in click it is an attribute of the class.
        vars(error)["exit_code"] = BAD_USAGE
        raise


def with_options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several arguments and options as one decorator, in the order of the help."""
    return lambda command: functools.reduce(lambda made, decorate: decorate(made), reversed(decorators), command)


def answers(command: Callable[..., tuple[Any, ...]]) -> Callable[..., None]:
    """Adds --json to a command that returns plain values, the same as lines, and optionally its exit status."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.pass_context
    @functools.wraps(command)
    def answer(ctx: click.Context, /, *, as_json: bool, **options: Any) -> None:
        told, lines, *status = command(**options)
        for line in [json.dumps(told, indent=2, default=str)] if as_json else lines:
            click.echo(line)
        ctx.exit(*status)

    return answer


class Commands(click.Group):
    """A group whose commands are imported at first use, and whose ForgeErrors are one plain message."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Sets the exit status of bad usage."""
        with _one_bad_usage():
            return super().make_context(info_name, args, parent, **extra)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Imports a lazy command in place of the entry that the help lists."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in LAZY_COMMANDS:
            command = getattr(importlib.import_module(f"forge_core.commands.{name}"), name)
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; a ForgeError becomes one message and exit status 1."""
        try:
            with _one_bad_usage():
                return super().invoke(ctx)
        except ForgeError as error:
            with suppress(SettingsError):
                if settings.current().debug:
                    raise
            click.echo(f"{type(error).__name__}: {error}", err=True)
            ctx.exit(1)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(forge_core.__version__, prog_name="forge-cute")
def main() -> None:
    """Forge: CuTe DSL kernels as PyTorch operators."""
    settings.check_names()


for command_name, line in LAZY_COMMANDS.items():
    main.add_command(click.Command(command_name, short_help=line))


SETTINGS_HELP = "Show the FORGE_* variables, what they do, the values in force, and the folders in use."


@main.command("settings", help=SETTINGS_HELP, short_help=SETTINGS_HELP)
@answers
def show_settings() -> tuple[dict[str, Any], Iterable[str]]:
    """See SETTINGS_HELP."""
    current = settings.current()
    origins = {v.name: "environment" if os.environ.get(v.name) else "default" for v in settings.VARIABLES}
    values = {v.name: getattr(current, v.field) for v in settings.VARIABLES}
    places = _places(current)
    lines = [
        f"{v.name} = {_shown(values[v.name])} ({origins[v.name]})\n    {v.help}; takes {v.takes}"
        for v in settings.VARIABLES
    ]
    lines += [f"{place['what']}: {place['place']} ({place['origin']})" for place in places]
    return {**values, "origins": origins, "places": places}, lines


def _shown(value: Any) -> str:
    if isinstance(value, Arch):
        return f"{value}, {value.device.name}"
    if isinstance(value, tuple):
        return os.pathsep.join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _places(current: settings.Settings) -> list[dict[str, str]]:
    """The folders where kernels are looked up, in this order, and their origins; does not import torch."""
    origin = "the user's cache folder" if current.cache_dir is None else "FORGE_CACHE_DIR"
    found = [("cache", str(current.folder.absolute()), origin if current.cache else "not used: FORGE_CACHE=0")]
    found += [("bundle", str(folder.absolute()), "FORGE_BUNDLES") for folder in current.bundles]
    for entry in importlib.metadata.entry_points(group="forge.bundles"):
        found.append(("bundle", entry.value, entry.dist.name if entry.dist is not None else "an installed package"))
    return [dict(zip(("what", "place", "origin"), each, strict=True)) for each in found]


if __name__ == "__main__":
    main()
