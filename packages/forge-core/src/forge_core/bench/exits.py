"""How `forge-cute bench` ends: its exit status, errors as messages, and being told to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from forge_core.bench.plan import UsageError
from forge_core.cli import BAD_USAGE
from forge_core.errors import ForgeError

__all__ = ["ALL_RIGHT", "BAD_USAGE", "REGRESSION", "WRONG", "Interrupts", "termination_interrupts", "told"]

ALL_RIGHT = 0
#: A wrong result, an error, or a run that was interrupted.
WRONG = 1
REGRESSION = 2


@contextmanager
def told() -> Iterator[None]:
    """Turns Forge's errors into a message and the exit status."""
    try:
        yield
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    except ForgeError as error:
        raise click.ClickException(str(error)) from error


class Interrupts:
    """Whether somebody asked for the end; see :func:`termination_interrupts`."""

    def __init__(self) -> None:
        self._asked = self._over = False

    def measured(self) -> None:
        """To be called when all is measured."""
        self._over = True

    def check(self) -> None:
        """To be called between cases: Python drops what a signal's handler raises while a finalizer runs.

        Raises:
            KeyboardInterrupt: somebody asked for the end, and what that raised was lost.
        """
        if self._asked:
            raise KeyboardInterrupt

    def _take(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM and (self._asked or self._over):
            return
        self._asked = True
        raise KeyboardInterrupt


@contextmanager
def termination_interrupts() -> Iterator[Interrupts]:
    """SIGTERM, which `timeout` and schedulers send, interrupts as Ctrl-C does, so that a record is written.

    It comes once, not after a Ctrl-C, and not after all is measured: it would lose the record that is being made and
    written then.  Ctrl-C does end that, too.  Python takes signals in its main thread only; in another one nothing is
    changed.
    """
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = {number: signal.signal(number, interrupts._take) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
