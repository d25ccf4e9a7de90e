"""A record as tables: on a terminal, as Markdown, and, by :class:`Table`, in the HTML report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from forge_core.bench.records import CaseRecord, ContenderRecord, ImportRecord, Record, Verdict
from forge_core.bench.schema import AUTO, BANDWIDTH, BEST_PEER, CEILING, OURS, variant_of
from forge_core.timing.clocks import UNEVEN_NOTE

NOTHING = "-"
TARGET = "target"
PEER = "best peer"
TEXTS = (PEER, TARGET, "verdict")


@dataclass(frozen=True)
class Table:
    """A title, the columns' heads, and rows of cells; the first `labels` columns and those in TEXTS are text."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 3

    @classmethod
    def of(cls, title: str, rows: Sequence[Mapping[str, str]], labels: int = 3) -> Table:
        """The table of some rows, each its cells by their columns' heads; a missing cell is "-"."""
        head = tuple(dict.fromkeys(name for row in rows for name in row))
        return cls(title, head, tuple(tuple(row.get(name) or NOTHING for name in head) for row in rows), labels)

    def is_text(self, column: int) -> bool:
        """Whether a column is text, which is aligned to the left."""
        return column < self.labels or self.head[column] in TEXTS

    def markdown(self) -> str:
        """The rows as a Markdown table, without the title."""
        rule = tuple("---" if self.is_text(column) else "---:" for column in range(len(self.head)))
        lines = [[cell.replace("|", "\\|") for cell in row] for row in (self.head, rule, *self.rows)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def rich(self) -> RichTable:
        """The table for a terminal."""
        shown = RichTable(title=self.title or None, title_justify="left", title_style="bold")
        for column, head in enumerate(self.head):
            justify = "left" if self.is_text(column) else "right"
            shown.add_column(head, justify=justify, no_wrap=column < self.labels)  # type: ignore[arg-type]
        for row in self.rows:
            shown.add_row(*map(coloured, row))
        return shown


def markdown(record: Record) -> str:
    """The record's tables as Markdown, with what is needed to read them."""
    parts = [f"{headline(record)}.", *(f"**{note}**" for note in record.warnings)]
    for table in tables(record):
        parts += [f"**{table.title}**", table.markdown()]
    return "\n\n".join([*parts, *remarks(record)]) + "\n"


def print_record(record: Record, console: Console) -> None:
    """Prints the record's tables, with what is needed to read them."""
    console.print(Text(f"{record.suite}: {headline(record)}", style="bold"))
    for note in record.warnings:
        console.print(Text(note, style="bold yellow"))
    for table in tables(record):
        console.print(table.rich())
    for line in remarks(record):
        console.print(coloured(line))


def coloured(text: str) -> Text:
    """A line or a cell for a terminal, coloured by what it says."""
    bad = any(word in text for word in ("ERROR", "NOT reached", "REGRESSION"))
    good = text == "faster" or ("reached" in text and "Targets" not in text)
    return Text(text, style="red" if bad else "green" if good else "")


def headline(record: Record) -> str:
    """Machine, versions, date and sources in one line."""
    environment = record.environment
    where = environment.machine if environment.device == "cpu" else f"{environment.gpu}, driver {environment.driver}"
    commit = f"commit {environment.revision(environment.commit)}"
    runs = "1 run" if record.repeats == 1 else f"median over {record.repeats} runs"
    versions = {"torch": environment.torch, "CUDA": environment.cuda, "CuTe DSL": environment.dsl}
    versions |= {**environment.peers, "Python": environment.python}
    return "; ".join(
        [where, *(f"{name} {version}" for name, version in versions.items()), record.date[:10], commit, runs]
    )


def tables(record: Record) -> list[Table]:
    """The tables of a record: the summary, those of each operator, and that of imports."""
    found = [summary([record])] if record.cases and record.timer != "cold" else []
    for name in dict.fromkeys(case.operator for case in record.cases):
        found += operator_tables(record, name)
    return [*found, imports_table(record)] if record.imports else found


def operator_tables(record: Record, operator: str) -> list[Table]:
    """The tables of an operator: its cases, and where several variants ran, these."""
    cases = [case for case in record.cases if case.operator == operator]
    if record.timer == "cold":
        return [_cold_table(operator, cases)]
    host = record.timer == "host"
    unit = "us" if host else "GB/s"
    timed = [contender.name for case in cases for contender in case.contenders if contender.kind == "peer"]
    peers = list(dict.fromkeys([*timed, *(name for case in cases for name in case.wrong)]))

    def row(case: CaseRecord, ours: ContenderRecord | None, head: str, variant: str, *, beside: bool) -> dict[str, str]:
        cells = {"shape": case.label, "dtype": case.dtype, "variant": variant, head: _figure(ours)}
        cells |= {} if host else {"of ceiling": _share(ours.of_ceiling if ours else None)}
        shares = {"of best peer": _share(ours.of_best_peer if ours else None), PEER: case.best_peer}
        return cells | (shares if beside else {})

    rows, variants = [], []
    for case in cases:
        own = [contender for contender in case.contenders if contender.kind == "ours"]
        ours = case.contender(OURS) or next(iter(own), None)
        variant = "ERROR" if case.error else ours.variant if ours else ""
        cells = row(case, ours, f"{OURS} {unit}", variant, beside=bool(peers))
        for peer in peers:
            cells[f"{peer} {unit}"] = "ERROR" if peer in case.wrong else _figure(case.contender(peer))
        if not host:
            cells[f"{CEILING} {unit}"] = _figure(case.contender(CEILING))
        cells["spread"] = f"{ours.spread:.1%}" if ours else ""
        if any(case.targets for case in cases):
            cells[TARGET] = _targets(case.targets)
        rows.append(cells)
        for each in own if len(own) > 1 else ():
            name = variant_of(each.name)
            chosen = f" ({each.variant})" if name == AUTO and each.variant else ""
            variants.append(row(case, each, unit, name + chosen, beside=True))
    what = "host time of an eager call, microseconds; ratios are of time" if host else "bandwidth"
    tables = [Table.of(f"{operator}: {what}", rows)]
    return [*tables, Table.of(f"{operator}: variants side by side", variants)] if variants else tables


def compared(cases: Sequence[CaseRecord]) -> list[CaseRecord]:
    """The cases of an operator that count as a comparison with peers.

    Variants are measured beside eager alone, so a case of one peer counts only if no case has several.
    """

    def asked(case: CaseRecord) -> int:
        peers = {contender.name for contender in case.contenders if contender.kind == "peer"}
        return len(peers | {name for name in (*case.left_out, *case.wrong) if not variant_of(name)})

    least = min(2, max(map(asked, cases), default=0))
    return [case for case in cases if asked(case) >= least]


def summary(records: Sequence[Record]) -> Table:
    """Speed-up over the best peers and share of the ceiling, a row for each operator of each record."""
    rows = []
    for record in records:
        for operator in dict.fromkeys(case.operator for case in record.cases):
            every = [case for case in record.cases if case.operator == operator]
            cases = compared([case for case in every if not case.error])
            count = len(cases) + sum(bool(case.error) for case in every)
            row = {"operator": operator, "suite": record.suite, "cases": str(count)}
            ours = [contender for case in cases if (contender := case.contender(OURS))]
            speedups = [one.of_best_peer if one.gbs else 1 / one.of_best_peer for one in ours if one.of_best_peer]
            shares = [one.of_ceiling for one in ours if one.of_ceiling]
            for name, ratios in (("speed-up", speedups), ("of ceiling", shares)):
                row[name] = f"{geometric_mean(ratios):.3f}" if ratios else ""
                row[f"least {name}"] = f"{min(ratios):.3f}" if ratios else ""
            peers = Counter(case.best_peer for case in cases if case.best_peer)
            verdicts = [verdict.met for case in cases for verdict in case.targets]
            row[PEER] = ", ".join(f"{peer} ({count})" for peer, count in peers.most_common())
            row["targets reached"] = f"{sum(verdicts)} of {len(verdicts)}" if verdicts else ""
            rows.append(row)
    return Table.of("Speed-up over the best peer and share of the ceiling, geometric means", rows, labels=2)


def remarks(record: Record) -> list[str]:
    """The lines below the tables: errors, targets reached, what was left out, and how it was measured."""
    lines = [f"ERROR: {error}" for error in record.errors]
    owners: list[CaseRecord | ImportRecord] = [*record.cases, *record.imports]
    if verdicts := [verdict for owner in owners for verdict in owner.targets]:
        text = f"Targets: {sum(verdict.met for verdict in verdicts)} of {len(verdicts)} reached."
        rounded = {(v.at_least, v.met_from) for v in verdicts if v.met_from is not None}
        for at_least, met_from in sorted(rounded, key=str):
            over = "" if record.repeats == 1 else f", the median over {record.repeats} runs,"
            text += f" A target of {at_least} counts as reached when the ratio{over} is at least {met_from}."
        lines.append(text)
    # The notes on uneven samples are one line.
    noted = [(case.name, note) for case in record.cases for note in case.notes]
    uneven = list(dict.fromkeys(name for name, note in noted if note.startswith(UNEVEN_NOTE)))
    lines += [f"{name}: {note}" for name, note in noted if not note.startswith(UNEVEN_NOTE)]
    if uneven:
        more = f" and {len(uneven) - 4} more" if len(uneven) > 4 else ""
        lines.append(f"{UNEVEN_NOTE}: {', '.join(uneven[:4])}{more}.")
    left_out = sorted({(name, why) for case in record.cases for name, why in case.left_out.items()})
    lines += [f"Left out: {name}: {why.rstrip('.')}." for name, why in left_out]
    lines.append(f"Method: {record.method}; median of the samples.")
    if record.timer == "device" and record.cases:
        lines.append(
            "GB/s are of the bytes that must move at least (each input read once, each output written once); the "
            "ceiling is a copy of the same bytes, interleaved in the same run."
        )
    return lines


def _figure(contender: ContenderRecord | None) -> str:
    """GB/s; microseconds in host time."""
    if contender is None:
        return ""
    if contender.gbs is None:
        return f"{contender.median_ms * 1e3:.2f}"
    digits = 0 if contender.gbs >= 1000 else 1 if contender.gbs >= 10 else 3
    return f"{contender.gbs:.{digits}f}"


def scaled(value: float, units: Sequence[str], step: int) -> str:
    """A number with three digits and its largest unit that leaves it at 1 or more; a unit is `step` smaller ones."""
    power = sum(value >= step**n for n in range(1, len(units)))
    value /= step**power
    return f"{value:.3g} {units[power]}" if value < 100 else f"{value:.0f} {units[power]}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _targets(verdicts: Sequence[Verdict]) -> str:
    words = []
    for verdict in verdicts:
        wanted = f"{verdict.at_least:g}" if verdict.at_most is None else f"at most {verdict.at_most:g}"
        of = {"import": "", BANDWIDTH: f" {BANDWIDTH}", BEST_PEER: " of best peer"}.get(verdict.of, f" of {verdict.of}")
        value = f"{verdict.value:.0f}" if verdict.of == BANDWIDTH else f"{verdict.value:.4f}"
        words.append(f"{wanted}{of}: {'reached' if verdict.met else f'NOT reached ({value})'}")
    return "; ".join(words)


def _cold_table(operator: str, cases: list[CaseRecord]) -> Table:
    rows = []
    for case in cases:
        labels = {"shape": case.label, "dtype": case.dtype}
        rows += [{**labels, "contender": "ERROR"}] if case.error else []
        for contender in case.contenders:
            if cold := contender.cold:
                seconds = {"import s": cold.import_s, "empty caches s": cold.empty_s, "kept caches s": cold.kept_s}
                texts = {name: f"{value:.3f}" for name, value in seconds.items()}
                texts["next call us"] = f"{cold.again_us:.1f}"
                rows.append({**labels, "contender": contender.name, **texts})
    return Table.of(f"{operator}: first call of a process", rows)


def imports_table(record: Record) -> Table:
    """The seconds that imports add."""
    rows = []
    for entry in record.imports:
        seconds = "ERROR" if entry.error else f"{entry.median_s:.3f}"
        rows.append({"module": entry.module, "seconds": seconds, TARGET: _targets(entry.targets)})
    return Table.of("import: seconds added to importing torch", rows, labels=1)
