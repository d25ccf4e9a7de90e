"""A comparison as text: for a terminal, for a pull request, for a commit message."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from forge_core.bench.compare import CONFIDENCE, Change, Comparison
from forge_core.bench.records import Record
from forge_core.bench.report import Table

__all__ = ["commit_message", "comparison_markdown", "print_comparison"]

HEAD = ("case", "contender", "before", "after", "change", "interval", "verdict")
#: Characters of a line of a commit message.
WIDTH = 72


def time_text(milliseconds: float) -> str:
    """A time with three digits and its unit."""
    value, unit = milliseconds * 1e3, "us"
    for larger in ("ms", "s"):
        if value >= 1000:
            value, unit = value / 1e3, larger
    return f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"


def percent(share: float) -> str:
    """A signed percentage."""
    return f"{share * 100:+.1f} %"


def headline(found: Comparison) -> str:
    """The two records in one line."""
    return f"{found.new.suite} on {_where(found.new)}: {_which(found.old)} -> {_which(found.new)}"


def summary(found: Comparison) -> list[str]:
    """The lines below the table."""
    compared = len(found.changes)
    slower = sum(c.slower(found.threshold) for c in found.changes)
    faster = sum(c.faster(found.threshold) for c in found.changes)
    text = (
        f"{compared} compared: {slower} slower and {faster} faster by more than {found.threshold * 100:.3g} %, "
        f"{compared - slower - faster} within; the controls (the ceiling's copy, and peers of the same versions) "
        f"moved by {percent(found.control)}, which is taken out."
    )
    lines = [
        text,
        found.rerun,
        *(f"ERROR: {name}: {error}" for name, error in found.broken.items()),
        f"Only in the old record: {', '.join(found.gone)}." if found.gone else "",
        f"Only in the new record: {', '.join(found.added)}." if found.added else "",
        *found.notes,
        *(f"{c.case}, {_name(c)}: {c.became}." for c in found.moved if c.became),
    ]
    return [line for line in lines if line]


def print_comparison(found: Comparison, console: Console) -> None:
    """Prints a comparison on a terminal."""
    console.print(Text(headline(found), style="bold"))
    if found.moved:
        colours = {"REGRESSION": "red", "faster": "green"}
        console.print(_table(found).rich(lambda row, cell: colours.get(row[-1], "")))
    else:
        console.print(Text("Nothing moved beyond chance and by more than a percent.", style="green"))
    for line in summary(found):
        console.print(Text(line, style="red" if line.startswith("ERROR") else ""))


def comparison_markdown(found: Comparison) -> str:
    """A comparison as Markdown for a pull request."""
    verdict = f"**{len(found.regressions)} regressions**" if found.regressions else "No regression"
    parts = [f"### {headline(found)}", f"{verdict} at {found.threshold * 100:.3g} %."]
    parts += [_table(found).markdown()] if found.moved else []
    parts += [line.replace("|", "\\|") for line in summary(found)]
    parts.append(f"Intervals are of {CONFIDENCE:.0%}, bootstrapped over runs and samples.")
    return "\n\n".join(parts) + "\n"


def commit_message(found: Comparison) -> str:
    """The block that the commit of a kernel's change carries, in lines of at most 72 characters."""
    lines = [f"Bench: {found.new.suite}, {_where(found.new)}", f"  {_which(found.old)} -> {_which(found.new)}"]
    for change in found.moved:
        name, (before, after, moved, interval) = _name(change), _figures(change)
        lines.append(f"  {change.case}{'' if name == 'auto' else f', {name}'}")
        lines.append(f"    {before} -> {after}: {moved} ({interval})")
    same = len(found.changes) - len(found.moved)
    lines.append(f"  {same} of {len(found.changes)} unchanged; controls {percent(found.control)}")
    lines += [f"  {len(found.broken)} cases are errors"] if found.broken else []
    return "\n".join(line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..." for line in lines) + "\n"


def _table(found: Comparison) -> Table:
    rows = []
    for change in found.moved:
        slower = "REGRESSION" if change.slower(found.threshold) else "slower"
        rows.append((change.case, _name(change), *_figures(change), slower if change.change > 0 else "faster"))
    return Table("", HEAD, tuple(rows), labels=2)


def _figures(change: Change) -> tuple[str, str, str, str]:
    interval = f"{percent(change.low)} to {percent(change.high)}"
    return time_text(change.old_ms), time_text(change.new_ms), percent(change.change), interval


def _name(change: Change) -> str:
    return "auto" if change.contender == "forge" else change.contender.removeprefix("forge:")


def _where(record: Record) -> str:
    return record.environment.gpu if record.environment.device == "cuda" else "CPU"


def _which(record: Record) -> str:
    environment = record.environment
    name = environment.commit[:12] if environment.has_commit else record.date[:16].replace("T", " ")
    return f"{name} with changes" if environment.dirty else name
