"""The progress of a run on standard error, with its estimated end."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

#: Seconds between two notes in a log.
NOTES = 30.0


def ends(done: int, total: int, seconds: float, now: dt.datetime) -> str:
    """The estimated end in words, where ``done`` of ``total`` took so many seconds until ``now``; "" for none."""
    return f"ends about {(now + dt.timedelta(seconds=seconds / done * (total - done))):%H:%M:%S}" if done else ""


class Shown:
    """A progress bar on a terminal, lines in a log: one for each item if ``each``, otherwise one in ``NOTES`` seconds.

    ``bar`` updates the progress bar; it is None in a log.
    """

    def __init__(self, total: int, doing: str, *, each: bool, bar: Callable[..., None] | None) -> None:
        self._total, self._doing, self._each, self._bar = total, doing, each, bar
        self._done = 0
        self._began = self._noted = time.perf_counter()

    def __call__(self, name: str) -> None:
        """Counts one item as done."""
        self._done += 1
        end = ends(self._done, self._total, time.perf_counter() - self._began, dt.datetime.now().astimezone())
        if self._bar is not None:
            self._bar(advance=1, description=f"done: {name}", until=end)
        elif self._each:
            click.echo(f"[{self._done}/{self._total}] {name} ({end})", err=True)
        else:
            self.note(f"{self._doing}: {self._done} of {self._total} ({end})")

    def note(self, text: str) -> None:
        """Shows what is in progress: on a terminal until the next item is done, in a log once in ``NOTES`` seconds."""
        now = time.perf_counter()
        if self._bar is not None:
            self._bar(description=text)
        elif now - self._noted >= NOTES:
            self._noted = now
            click.echo(f"        {text}", err=True)


@contextmanager
def progress(total: int, doing: str = "measuring", *, each: bool = True) -> Iterator[Shown]:
    """Shows the progress on standard error; see :class:`Shown`."""
    if sys.stderr.isatty():
        words, until = TextColumn("{task.description}"), TextColumn("{task.fields[until]}")
        columns = (words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), until)
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            yield Shown(total, doing, each=each, bar=partial(bar.update, bar.add_task(doing, total=total, until="")))
        return
    if not each:
        click.echo(f"{doing}: {total} to do", err=True)
    yield Shown(total, doing, each=each, bar=None)
