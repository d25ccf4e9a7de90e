"""How far a run is, and when it will end."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

__all__ = ["ends", "progress"]


def ends(done: int, total: int, seconds: float, now: dt.datetime) -> str:
    """The estimated end in words: the remaining cases take as long as those that are done did on average.

    Args:
        done: cases that are done; "" for none.
        total: all of them.
        seconds: how long those took.
        now: the time of day.
    """
    if done == 0:
        return ""
    left = seconds / done * (total - done)
    return f"ends about {(now + dt.timedelta(seconds=left)):%H:%M:%S}"


class _Ends(TextColumn):
    """A column with the estimated end."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Task) -> Text:
        """The text of the column."""
        elapsed = task.elapsed or 0.0
        return Text(ends(int(task.completed), int(task.total or 0), elapsed, dt.datetime.now().astimezone()))


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal; in a log, a line for each case, so that a long run shows where it is.

    Yields:
        What to call with a case's name when it is done.
    """
    if not sys.stderr.isatty():
        began, done = time.perf_counter(), 0

        def line(name: str) -> None:
            nonlocal done
            done += 1
            until = ends(done, total, time.perf_counter() - began, dt.datetime.now().astimezone())
            click.echo(f"[{done}/{total}] {name} ({until})", err=True)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), _Ends())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=total)
        yield lambda name: bar.update(task, advance=1, description=f"done: {name}")
