"""How far a run is, and when it will end."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal; in a log, a line for each case, so that a long run shows where it is.

    Yields:
        What to call with a case's name when it is done.
    """
    began, done = time.perf_counter(), 0

    def until() -> str:
        nonlocal done
        done += 1
        return ends(done, total, time.perf_counter() - began, dt.datetime.now().astimezone())

    if not sys.stderr.isatty():
        yield lambda name: click.echo(f"[{done + 1}/{total}] {name} ({until()})", err=True)
        return
    words = TextColumn("{task.description}"), TextColumn("{task.fields[until]}")
    columns = (words[0], BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), words[1])
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=total, until="")
        yield lambda name: bar.update(task, advance=1, description=f"done: {name}", until=until())
