"""What ``forge-cute cache`` prints, and the same as plain values for JSON."""

from __future__ import annotations

import collections
import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from forge_core.cache.entry import Damaged, Entry
from forge_core.cache.parallel import Outcome

__all__ = [
    "as_dict",
    "config_text",
    "print_entries",
    "print_entry",
    "print_statistics",
    "print_summary",
    "size",
    "statistics",
    "summary",
]


def size(count: int) -> str:
    """Bytes for people: ``"24 KiB"``."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"


def config_text(tagged: Any) -> str:
    """A tagged configuration as it would be written: ``TiledConfig(itemsize=4, tile=32)``."""
    match tagged:
        case ["dataclass", str(path), dict(fields)]:
            inside = ", ".join(f"{name}={config_text(value)}" for name, value in fields.items())
            return f"{path.rpartition(':')[2]}({inside})"
        case ["enum", str(path), str(name)]:
            return f"{path.rpartition(':')[2]}.{name}"
        case ["tuple", list(items)]:
            return f"({', '.join(config_text(item) for item in items)})"
        case ["dtype", str(name)]:
            return name
        case [str(), value]:
            return repr(value)
    return repr(tagged)


def as_dict(entry: Entry, *, full: bool = False) -> dict[str, Any]:
    """An entry as plain values; ``full`` adds the whole key."""
    key = entry.key
    told: dict[str, Any] = {
        "digest": key.digest,
        "builder": key.name,
        "config": config_text(json.loads(key.config)),
        "arch": key.arch,
        "bytes": entry.bytes,
        "compile_s": entry.seconds,
        "made": entry.made,
        "used": dt.datetime.fromtimestamp(entry.used, dt.UTC).replace(microsecond=0).isoformat(),
    }
    if full:
        told |= {"object": str(entry.object), "sha256": entry.sha256, "symbol": key.symbol, "key": key.describe()}
    return told


def print_entries(entries: Sequence[Entry], root: Path) -> None:
    """One line for each kernel."""
    table = Table(box=None, pad_edge=False)
    table.add_column("key", no_wrap=True)
    table.add_column("arch", no_wrap=True)
    table.add_column("kernel", no_wrap=True)
    table.add_column("config", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("compiled in", justify="right", no_wrap=True)
    table.add_column("used", no_wrap=True)
    for entry in entries:
        told = as_dict(entry)
        table.add_row(
            told["digest"][:12],
            told["arch"],
            escape(told["builder"].removesuffix(":build")),
            escape(told["config"]),
            size(entry.bytes),
            f"{entry.seconds:.2f} s",
            told["used"][:16].replace("T", " "),
        )
    # Where no terminal says how wide it is, nothing is cut off: the lines go to a file, or to grep.
    console = Console()
    if not console.is_terminal:
        console = Console(width=400)
    if entries:
        console.print(table)
    total = sum(entry.bytes for entry in entries)
    console.print(f"{len(entries)} kernels, {size(total)}, in {root}", highlight=False, markup=False)


def print_entry(told: dict[str, Any]) -> None:
    """All of one kernel."""
    console = Console()
    key = told.pop("key")
    for name, value in [*told.items(), *((n, v) for n, v in key.items() if n not in ("name", "config", "arch"))]:
        if isinstance(value, dict):
            console.print(f"{name}:", highlight=False, markup=False)
            for inner, text in value.items():
                console.print(f"    {inner} {text}", highlight=False, markup=False, soft_wrap=True)
        else:
            text = size(value) + f" ({value})" if name == "bytes" else value
            console.print(f"{name + ':':11} {text}", highlight=False, markup=False, soft_wrap=True)


def statistics(found: Sequence[Entry | tuple[Path, Damaged]]) -> dict[str, Any]:
    """Counts and sums of what is in a store."""
    entries = [entry for entry in found if isinstance(entry, Entry)]
    return {
        "kernels": len(entries),
        "bytes": sum(entry.bytes for entry in entries),
        "compile_s": round(sum(entry.seconds for entry in entries), 2),
        "damaged": len(found) - len(entries),
        "need_the_dsl": sum(not entry.linked for entry in entries),
        "by_arch": dict(collections.Counter(entry.key.arch for entry in entries)),
        "by_kernel": dict(collections.Counter(entry.key.name for entry in entries).most_common()),
    }


def print_statistics(told: dict[str, Any]) -> None:
    """The statistics for people."""
    console = Console()

    def line(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    line(f"{told['folder']}{'' if told['on'] else ' (FORGE_CACHE=0: not in use)'}")
    limit = size(told["max_bytes"]) if told["max_bytes"] else "no limit"
    line(f"{told['kernels']} kernels, {size(told['bytes'])} of {limit}, {told['compile_s']:.1f} s of compiling kept")
    for reason, text in (("damaged", "damaged"), ("set_aside", "set aside"), ("need_the_dsl", "only the DSL can load")):
        if told[reason]:
            line(f"{told[reason]} {text}")
    for group in ("by_arch", "by_kernel"):
        for name, count in told[group].items():
            line(f"  {count:5}  {name}")
    for folder in told["bundles"]:
        line(f"bundle {folder}")


def summary(outcomes: Sequence[Outcome], wall_s: float) -> dict[str, Any]:
    """What came of compiling many kernels."""
    return {
        "kernels": len(outcomes),
        "compiled": sum(outcome.status == "compiled" for outcome in outcomes),
        "present": sum(outcome.status == "present" for outcome in outcomes),
        "bytes": sum(outcome.bytes for outcome in outcomes),
        "compile_s": round(sum(o.seconds for o in outcomes if o.status == "compiled"), 2),
        "wall_s": round(wall_s, 2),
        "failed": [
            {
                "builder": outcome.request.builder,
                "config": str(outcome.request.config),
                "arch": outcome.request.arch,
                "key": outcome.digest,
                "error": outcome.error,
            }
            for outcome in outcomes
            if outcome.status == "failed"
        ],
    }


def print_summary(told: dict[str, Any], root: Path) -> None:
    """The summary for people."""
    console = Console()
    for one in told["failed"]:
        text = f"failed: {one['builder']} {one['config']} [{one['arch']}]: {one['error']}"
        console.print(text, highlight=False, markup=False, soft_wrap=True, style="red")
    text = (
        f"{told['kernels']} kernels: {told['compiled']} compiled in {told['wall_s']:.1f} s "
        f"({told['compile_s']:.1f} s of compiling), {told['present']} were there, {len(told['failed'])} failed; "
        f"{size(told['bytes'])} in {root}"
    )
    console.print(text, highlight=False, markup=False, soft_wrap=True)
