"""A record as tables: on a terminal, as Markdown, and, by :class:`Table`, in the HTML report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from forge_core.bench.records import CaseRecord, ContenderRecord, Record, Verdict
from forge_core.bench.schema import BANDWIDTH, BEST_PEER, CEILING, OURS
from forge_core.timing.clocks import UNEVEN_NOTE

__all__ = ["Table", "headline", "markdown", "print_record", "remarks", "tables"]

NOTHING = "-"
TARGET = "target"


@dataclass(frozen=True)
class Table:
    """A title, the columns' heads, and rows of cells.

    The first `labels` columns are text, and so are targets and verdicts; the others are numbers.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 3

    def is_text(self, column: int) -> bool:
        """Whether a column is text, which stands to the left."""
        return column < self.labels or self.head[column] in (TARGET, "verdict")

    def markdown(self) -> str:
        """The rows as a Markdown table, without the title."""
        rule = tuple("---" if self.is_text(column) else "---:" for column in range(len(self.head)))
        lines = [[cell.replace("|", "\\|") for cell in row] for row in (self.head, rule, *self.rows)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def rich(self, style: Callable[[tuple[str, ...], str], str]) -> RichTable:
        """The table for a terminal; `style` takes a row and one of its cells."""
        shown = RichTable(title=self.title or None, title_justify="left", title_style="bold")
        for column, head in enumerate(self.head):
            justify = "left" if self.is_text(column) else "right"
            shown.add_column(head, justify=justify, no_wrap=column < self.labels)  # type: ignore[arg-type]
        for row in self.rows:
            shown.add_row(*(Text(cell, style=style(row, cell)) for cell in row))
        return shown


def markdown(record: Record) -> str:
    """The record's tables as Markdown, with what is needed to read them."""
    parts = [f"{headline(record)}.", *(f"**{note}**" for note in record.notes)]
    for table in tables(record):
        parts += [f"**{table.title}**", table.markdown()]
    return "\n\n".join([*parts, *remarks(record)]) + "\n"


def print_record(record: Record, console: Console) -> None:
    """Prints the record's tables, with what is needed to read them."""
    console.print(Text(f"{record.suite}: {headline(record)}", style="bold"))
    for note in record.notes:
        console.print(Text(note, style="bold yellow"))
    for table in tables(record):
        console.print(table.rich(lambda row, cell: _style(cell)))
    for line in remarks(record):
        console.print(Text(line, style=_style(line)))


def _style(text: str) -> str:
    if "ERROR" in text or "NOT reached" in text:
        return "red"
    return "green" if "reached" in text and "Targets" not in text else ""


def headline(record: Record) -> str:
    """Machine, versions, date and sources in one line."""
    environment = record.environment
    where = "CPU" if environment.device == "cpu" else f"{environment.gpu}, driver {environment.driver}"
    commit = environment.commit[:12] if environment.has_commit else environment.commit
    commit = f"commit {commit}{' with changes' if environment.dirty else ''}"
    runs = "1 run" if record.repeats == 1 else f"median over {record.repeats} runs"
    versions = {"torch": environment.torch, "CUDA": environment.cuda, "CuTe DSL": environment.dsl}
    versions |= {**environment.peers, "Python": environment.python}
    return "; ".join(
        [where, *(f"{name} {version}" for name, version in versions.items()), record.date[:10], commit, runs]
    )


def tables(record: Record) -> list[Table]:
    """All tables of a record: one for each operator, one for variants side by side, one for imports."""
    host = record.timer == "host"
    found = []
    for operator in dict.fromkeys(case.operator for case in record.cases):
        cases = [case for case in record.cases if case.operator == operator]
        if record.timer == "cold":
            found.append(_cold_table(operator, cases))
            continue
        found.append(_operator_table(operator, cases, host=host))
        several = [case for case in cases if len(_ours(case)) > 1]
        if several:
            found.append(_variants_table(operator, several, host=host))
    if record.imports:
        found.append(_imports_table(record))
    return found


def remarks(record: Record) -> list[str]:
    """What stands below the tables: errors, targets reached, what was left out, and how it was measured."""
    lines = [f"ERROR: {error}" for error in record.errors]
    if record.verdicts:
        reached = sum(verdict.met for verdict in record.verdicts)
        text = f"Targets: {reached} of {len(record.verdicts)} reached."
        rounded = {(v.at_least, v.met_from) for v in record.verdicts if v.met_from is not None}
        for at_least, met_from in sorted(rounded, key=str):
            over = "" if record.repeats == 1 else f", the median over {record.repeats} runs,"
            text += f" A target of {at_least} counts as reached when the ratio{over} is at least {met_from}."
        lines.append(text)
    lines += _means(record)
    lines += _disturbed(record)
    left_out = sorted({(name, why) for case in record.cases for name, why in case.left_out.items()})
    lines += [f"Left out: {name}: {why.rstrip('.')}." for name, why in left_out]
    lines.append(f"Method: {record.method}; median of the samples.")
    if record.timer == "device" and record.cases:
        lines.append(
            "GB/s are of the bytes that must move at least (each input read once, each output written once); the "
            "ceiling is a copy of the same bytes, interleaved in the same run."
        )
    return lines


def _disturbed(record: Record) -> list[str]:
    """The cases' notes; uneven samples, which a busy machine gives to many cases, in one line."""
    noted = [(case.name, note) for case in record.cases for note in case.notes]
    uneven = list(dict.fromkeys(name for name, note in noted if note.startswith(UNEVEN_NOTE)))
    lines = [f"{name}: {note}" for name, note in noted if not note.startswith(UNEVEN_NOTE)]
    if uneven:
        some = ", ".join(uneven[:4]) + (f" and {len(uneven) - 4} more" if len(uneven) > 4 else "")
        lines.append(f"{UNEVEN_NOTE}: {some}.")
    return lines


def _means(record: Record) -> list[str]:
    """The geometric mean of each operator's ratio to the best peer of each case."""
    found: dict[str, list[float]] = {}
    for case in record.cases:
        ours = case.contender(OURS)
        if not case.error and ours is not None and ours.of_best_peer:
            found.setdefault(case.operator, []).append(ours.of_best_peer)
    what = "time over the best peer's" if record.timer == "host" else "bandwidth over the best peer's"
    return [
        f"{operator}: {what}, geometric mean over {len(ratios)} cases: {geometric_mean(ratios):.3f}."
        for operator, ratios in found.items()
        if len(ratios) > 1
    ]


def _ours(case: CaseRecord) -> list[ContenderRecord]:
    return [contender for contender in case.contenders if contender.kind == "ours"]


def _figure(contender: ContenderRecord | None) -> str:
    """GB/s; microseconds in host time."""
    if contender is None:
        return NOTHING
    if contender.gbs is None:
        return f"{contender.median_ms * 1e3:.2f}"
    digits = 0 if contender.gbs >= 1000 else 1 if contender.gbs >= 10 else 3
    return f"{contender.gbs:.{digits}f}"


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


def _targets(verdicts: Sequence[Verdict]) -> str:
    words = []
    for verdict in verdicts:
        wanted = f"{verdict.at_least:g}" if verdict.at_most is None else f"at most {verdict.at_most:g}"
        of = "" if verdict.of == "import" else f" of {'best peer' if verdict.of == BEST_PEER else verdict.of}"
        of = f" {BANDWIDTH}" if verdict.of == BANDWIDTH else of
        value = f"{verdict.value:.0f}" if verdict.of == BANDWIDTH else f"{verdict.value:.4f}"
        words.append(f"{wanted}{of}: {'reached' if verdict.met else f'NOT reached ({value})'}")
    return "; ".join(words) or NOTHING


#: A column's cells: takes a case without an error.
Column = Callable[[CaseRecord], str]


def _of_ours(text: Callable[[ContenderRecord], str]) -> Column:
    """A column of our `auto`, or of the variant that was run instead."""

    def cell(case: CaseRecord) -> str:
        ours = case.contender(OURS) or next(iter(_ours(case)), None)
        return NOTHING if ours is None else text(ours)

    return cell


def _of_peer(peer: str) -> Column:
    return lambda case: "ERROR" if peer in case.wrong else _figure(case.contender(peer))


def _operator_table(operator: str, cases: list[CaseRecord], *, host: bool) -> Table:
    timed = [c.name for case in cases for c in case.contenders if c.kind == "peer"]
    peers = list(dict.fromkeys([*timed, *(name for case in cases for name in case.wrong)]))
    unit = "us" if host else "GB/s"
    columns = {"variant": _of_ours(lambda ours: ours.variant or NOTHING), f"{OURS} {unit}": _of_ours(_figure)}
    if not host:
        columns["of ceiling"] = _of_ours(lambda ours: _share(ours.of_ceiling))
    if peers:
        columns["of best peer"] = _of_ours(lambda ours: _share(ours.of_best_peer))
    columns |= {f"{peer} {unit}": _of_peer(peer) for peer in peers}
    if not host:
        columns[f"{CEILING} {unit}"] = lambda case: _figure(case.contender(CEILING))
    columns["spread"] = _of_ours(lambda ours: f"{ours.spread:.1%}")
    if any(case.targets for case in cases):
        columns[TARGET] = lambda case: _targets(case.targets)
    failed = ["ERROR", *[NOTHING] * (len(columns) - 1)]
    rows = tuple(
        (case.label, case.dtype, *(failed if case.error else [cell(case) for cell in columns.values()]))
        for case in cases
    )
    what = "host time of an eager call, microseconds; ratios are of time" if host else "bandwidth"
    return Table(f"{operator}: {what}", ("shape", "dtype", *columns), rows)


def _variants_table(operator: str, cases: list[CaseRecord], *, host: bool) -> Table:
    rows = []
    for case in cases:
        for ours in _ours(case):
            name = "auto" if ours.name == OURS else ours.name.removeprefix(f"{OURS}:")
            name += f" ({ours.variant})" if name == "auto" and ours.variant else ""
            share = [] if host else [_share(ours.of_ceiling)]
            rows.append((case.label, case.dtype, name, _figure(ours), *share, _share(ours.of_best_peer)))
    head = ("shape", "dtype", "variant", *(["us"] if host else ["GB/s", "of ceiling"]), "of best peer")
    return Table(f"{operator}: variants side by side", head, tuple(rows))


def _cold_table(operator: str, cases: list[CaseRecord]) -> Table:
    rows = []
    for case in cases:
        if case.error:
            rows.append((case.label, case.dtype, "ERROR", *[NOTHING] * 4))
        for contender in case.contenders:
            cold = contender.cold
            if cold is not None:
                seconds = [f"{value:.3f}" for value in (cold.import_s, cold.empty_s, cold.kept_s)]
                rows.append((case.label, case.dtype, contender.name, *seconds, f"{cold.again_us:.1f}"))
    head = ("shape", "dtype", "contender", "import s", "empty caches s", "kept caches s", "next call us")
    return Table(f"{operator}: first call of a process", head, tuple(rows))


def _imports_table(record: Record) -> Table:
    rows = [
        (entry.module, "ERROR" if entry.error else f"{entry.median_s:.3f}", _targets(entry.targets))
        for entry in record.imports
    ]
    return Table("import: seconds added to importing torch", ("module", "seconds", TARGET), tuple(rows), labels=1)
