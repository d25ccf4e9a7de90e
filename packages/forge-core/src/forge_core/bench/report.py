"""A record as Markdown, on its own or between the markers of a page; and as tables on a terminal."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from forge_core.bench.records import Record
from forge_core.bench.tables import Table, headline, remarks, tables
from forge_core.errors import BenchmarkError
from forge_core.files import write_atomically

__all__ = ["block", "markdown", "print_record", "replace_between_markers"]


def markdown(record: Record) -> str:
    """The record's tables as Markdown, with what is needed to read them."""
    parts = [f"{headline(record)}.", *(f"**{note}**" for note in record.notes)]
    for table in tables(record):
        parts += [f"**{table.title}**", _markdown_table(table)]
    parts += remarks(record)
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    # Targets are words, so they stand to the left as the labels do.
    rule = ["---" if n < table.labels or head == "target" else "---:" for n, head in enumerate(table.head)]
    return "\n".join([line(table.head), line(tuple(rule)), *(line(row) for row in table.rows)])


def block(record: Record, note: str = "") -> str:
    """What stands between the markers of a page: the record's tables, and a sentence below them."""
    return f"{markdown(record)}\n{note}\n" if note else markdown(record)


def replace_between_markers(page: Path, record: Record, name: str = "", note: str = "") -> None:
    """Puts the record's Markdown between ``<!-- bench:SUITE begin -->`` and ``<!-- bench:SUITE end -->`` of a page.

    Args:
        page: the page.
        record: the record.
        name: what the markers call it, where several records are of parts of a suite; by default its suite.
        note: a sentence below the tables.

    Raises:
        BenchmarkError: the page cannot be read, or does not have the two markers once each, in this order.
    """
    begin, end = (f"<!-- bench:{name or record.suite} {edge} -->" for edge in ("begin", "end"))
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise BenchmarkError(f"{page}: {error.strerror}") from error
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise BenchmarkError(f"{page}: expected the line {begin!r} and below it the line {end!r}, once each.")
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    write_atomically(page, f"{before}{begin}\n\n{block(record, note)}\n{end}{after}")


def print_record(record: Record, console: Console) -> None:
    """Prints the record's tables, with what is needed to read them."""
    console.print(Text(f"{record.suite}: {headline(record)}", style="bold"))
    for note in record.notes:
        console.print(Text(note, style="bold yellow"))
    for table in tables(record):
        shown = RichTable(title=table.title, title_justify="left", title_style="bold")
        for number, head in enumerate(table.head):
            left = number < table.labels or head == "target"
            shown.add_column(head, justify="left" if left else "right", no_wrap=number < table.labels)
        for row in table.rows:
            shown.add_row(*(Text(cell, style=_style(cell)) for cell in row))
        console.print(shown)
    for line in remarks(record):
        console.print(Text(line, style=_style(line)))


def _style(text: str) -> str:
    if "ERROR" in text or "NOT reached" in text:
        return "red"
    return "green" if "reached" in text and "Targets" not in text else ""
