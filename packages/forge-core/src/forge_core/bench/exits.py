"""The exit status of `forge-cute bench`, and bad usage told from the rest by its number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from forge_core.bench.plan import UsageError
from forge_core.errors import ForgeError

__all__ = ["ALL_RIGHT", "BAD_USAGE", "REGRESSION", "WRONG", "told", "usage_is_3"]

ALL_RIGHT = 0
#: A wrong result, an error, or a run that was interrupted.
WRONG = 1
REGRESSION = 2
BAD_USAGE = 3


@contextmanager
def usage_is_3() -> Iterator[None]:
    """Gives click's errors of usage the status 3; click's own is 2, which is a regression here."""
    try:
        yield
    except click.UsageError as error:
        # An attribute of the class in click; here it is the error's own.
        vars(error)["exit_code"] = BAD_USAGE
        raise


@contextmanager
def told() -> Iterator[None]:
    """Turns Forge's errors into a message and the exit status."""
    try:
        yield
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    except ForgeError as error:
        raise click.ClickException(str(error)) from error
