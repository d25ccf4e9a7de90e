"""How far a run is, and when it will end."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Shown", "ends", "progress"]

#: Seconds from one note of what is under way to the next, in a log.
NOTES = 30.0


@dataclass(frozen=True)
class Shown:
    """What a run calls as it goes on.

    Attributes:
        done: a case is done; takes its name.
        note: something is under way; takes what.  A terminal shows it until a case is done, a log has it now and then.
    """

    done: Callable[[str], None]
    note: Callable[[str], None]

    def __call__(self, name: str) -> None:
        """The same as ``done``."""
        self.done(name)


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
def progress(total: int, doing: str = "measuring", *, each: bool = True) -> Iterator[Shown]:
    """A bar on a terminal; in a log, lines, so that a long run shows where it is.

    Args:
        total: how many there are.
        doing: what is done with them.
        each: a log has a line for each, when it is done; otherwise one when the first begins, and one now and then.

    Yields:
        What to call with a name when that is done.
    """
    began, done = time.perf_counter(), 0
    noted = began

    def until() -> str:
        nonlocal done
        done += 1
        return ends(done, total, time.perf_counter() - began, dt.datetime.now().astimezone())

    def note_in_log(text: str) -> None:
        nonlocal noted
        now = time.perf_counter()
        if now - noted >= NOTES:
            noted = now
            click.echo(f"        {text}", err=True)

    if not sys.stderr.isatty() and each:
        yield Shown(lambda name: click.echo(f"[{done + 1}/{total}] {name} ({until()})", err=True), note_in_log)
        return
    if not sys.stderr.isatty():
        click.echo(f"{doing}: {total} to do", err=True)

        def count(name: str) -> None:
            end = until()
            note_in_log(f"{doing}: {done} of {total} ({end})")

        yield Shown(count, note_in_log)
        return
    words = TextColumn("{task.description}"), TextColumn("{task.fields[until]}")
    columns = (words[0], BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), words[1])
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=total, until="")
        yield Shown(
            lambda name: bar.update(task, advance=1, description=f"done: {name}", until=until()),
            lambda text: bar.update(task, description=text),
        )
