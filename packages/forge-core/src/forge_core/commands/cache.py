"""The command ``forge-cute cache``.

Exit status: 0 all right, 1 something is damaged, failed or missing, 3 bad usage.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from forge_core import device, settings
from forge_core.bench import exits, kernels
from forge_core.cache import bundle, upkeep
from forge_core.cache.entry import Entry
from forge_core.cache.files import folders_in, tree_bytes
from forge_core.cache.lookup import user_store
from forge_core.cache.parallel import Request
from forge_core.cache.store import Store
from forge_core.cli import ARCH
from forge_core.errors import CacheError

__all__ = ["cache"]

HELP = """Show, check, warm and ship compiled kernels.

\b
forge-cute cache ls                              what is there
forge-cute cache warm --suite week1 -j 8         compile before anybody waits
forge-cute cache build --arch sm_90a --suite week1 --out BUNDLE
"""

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_bundle = click.option(
    "--bundle", "folder", type=click.Path(file_okay=False, path_type=Path), help="Look at a bundle, not at the cache."
)


@click.group(help=HELP)
def cache() -> None:
    """The group; what it says to a user stands in HELP."""


def _tell(told: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Prints plain values as JSON, or the lines that say the same to people."""
    for line in [json.dumps(told, indent=1)] if as_json else lines:
        click.echo(line)


def _store(folder: Path | None = None) -> Store:
    """The cache of the user, switched on or not; or a folder such as a bundle."""
    if folder is not None:
        return bundle.open_bundle(folder, "--bundle")
    current = settings.current()
    return Store.of_user(current.folder, max_bytes=current.cache_max_bytes)


def _sound(store: Store) -> Iterator[Entry]:
    """The entries; what is damaged is told on standard error."""
    for found in store.entries():
        if isinstance(found, Entry):
            yield found
        else:
            click.echo(f"damaged: {found[0]}: {found[1]}", err=True)


def _size(count: int) -> str:
    """Bytes for people: ``"24 KiB"``."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"


def _config_text(tagged: Any) -> str:
    """A tagged configuration as it would be written: ``TiledConfig(itemsize=4, tile=32)``."""
    match tagged:
        case ["dataclass", str(path), dict(fields)]:
            inside = ", ".join(f"{name}={_config_text(value)}" for name, value in fields.items())
            return f"{path.rpartition(':')[2]}({inside})"
        case ["enum", str(path), str(name)]:
            return f"{path.rpartition(':')[2]}.{name}"
        case ["tuple", list(items)]:
            return f"({', '.join(_config_text(item) for item in items)})"
        case ["dtype", str(name)]:
            return name
        case [str(), value]:
            return repr(value)
    return repr(tagged)


def _plain(entry: Entry) -> dict[str, Any]:
    """An entry as plain values."""
    key = entry.key
    return {
        "digest": key.digest,
        "builder": key.name,
        "config": _config_text(json.loads(key.config)),
        "arch": key.arch,
        "bytes": entry.bytes,
        "compile_s": entry.seconds,
        "made": entry.made,
        "used": dt.datetime.fromtimestamp(entry.used, dt.UTC).replace(microsecond=0).isoformat(),
    }


# ------------------------------------------------------------------------------------------------ show and check


@cache.command("ls")
@click.option("--arch", type=ARCH, help="Only this architecture.")
@click.option("--kernel", "text", default="", help="Only builders whose name contains this text.")
@_bundle
@_json
def ls(arch: str | None, text: str, folder: Path | None, as_json: bool) -> None:
    """List the kernels, the last used first."""
    store = _store(folder)
    found = [e for e in _sound(store) if arch in (None, e.key.arch) and text in e.key.name]
    rows = [_plain(entry) for entry in sorted(found, key=lambda entry: -entry.used)]
    if rows and not as_json:
        table = Table("key", "arch", "kernel", box=None, pad_edge=False)
        table.add_column("config", overflow="fold")
        for head, justify in (("size", "right"), ("compiled in", "right"), ("used", "left")):
            table.add_column(head, justify=justify)  # type: ignore[arg-type]
        for column in table.columns:
            column.no_wrap = column.header != "config"
        for row in rows:
            kernel, used = row["builder"].removesuffix(":build"), row["used"][:16].replace("T", " ")
            cells = row["digest"][:12], row["arch"], kernel, row["config"], _size(row["bytes"])
            table.add_row(*map(Text, (*cells, f"{row['compile_s']:.2f} s", used)))
        # Where no terminal says how wide it is, nothing is cut off: the lines go to a file, or to grep.
        console = Console()
        (console if console.is_terminal else Console(width=400)).print(table)
    total = sum(row["bytes"] for row in rows)
    _tell(rows, [f"{len(rows)} kernels, {_size(total)}, in {store.root}"], as_json=as_json)


@cache.command("info")
@click.argument("key")
@_bundle
@_json
def info(key: str, folder: Path | None, as_json: bool) -> None:
    """Show all of one kernel; KEY is its digest, or the beginning of it."""
    found = [entry for entry in _sound(_store(folder)) if entry.key.digest.startswith(key)]
    if len(found) != 1:
        told = ", ".join(entry.key.digest[:16] for entry in found[:8])
        raise click.ClickException(
            f"{len(found)} kernels begin with {key!r}: {told}" if found else f"no kernel begins with {key!r}"
        )
    (entry,) = found
    told_of = _plain(entry) | {"object": str(entry.object), "sha256": entry.sha256, "symbol": entry.key.symbol}
    parts = entry.key.describe()

    def lines() -> Iterator[str]:
        shown = told_of | {"bytes": f"{_size(entry.bytes)} ({entry.bytes})"}
        for name, value in (shown | {n: v for n, v in parts.items() if n not in ("name", "config", "arch")}).items():
            if isinstance(value, dict):
                yield from (f"{name}:", *(f"    {inner} {text}" for inner, text in value.items()))
            else:
                yield f"{name + ':':11} {value}"

    _tell(told_of | {"key": parts}, lines(), as_json=as_json)


@cache.command("stats")
@_json
def stats(as_json: bool) -> None:
    """Show how much is there, by architecture and by kernel."""
    current, store = settings.current(), _store()
    found = list(store.entries())
    entries = [entry for entry in found if isinstance(entry, Entry)]
    told: dict[str, Any] = {
        "kernels": len(entries),
        "bytes": sum(entry.bytes for entry in entries),
        "compile_s": round(sum(entry.seconds for entry in entries), 2),
        "damaged": len(found) - len(entries),
        "need_the_dsl": sum(not entry.linked for entry in entries),
        "by_arch": dict(Counter(entry.key.arch for entry in entries)),
        "by_kernel": dict(Counter(entry.key.name for entry in entries).most_common()),
        "folder": str(store.root),
        "on": current.cache,
        "max_bytes": current.cache_max_bytes,
        "set_aside": len(folders_in(store.root / "damaged")),
        "bundles": [str(shipped.root) for shipped in bundle.installed()],
    }
    limit = _size(told["max_bytes"]) if told["max_bytes"] else "no limit"
    wrong = {"damaged": "damaged", "set_aside": "set aside", "need_the_dsl": "only the DSL can load"}
    lines = [
        f"{told['folder']}{'' if told['on'] else ' (FORGE_CACHE=0: not in use)'}",
        f"{told['kernels']} kernels, {_size(told['bytes'])} of {limit}, {told['compile_s']:.1f} s of compiling kept",
        *(f"{told[name]} {text}" for name, text in wrong.items() if told[name]),
        *(f"  {count:5}  {name}" for group in ("by_arch", "by_kernel") for name, count in told[group].items()),
        *(f"bundle {folder}" for folder in told["bundles"]),
    ]
    _tell(told, lines, as_json=as_json)


@cache.command("verify")
@_bundle
@_json
@click.pass_context
def verify(ctx: click.Context, folder: Path | None, as_json: bool) -> None:
    """Check every kernel's description and checksum; exit status 1 if one is damaged."""
    store = _store(folder)
    checked = [(e.folder, store.verify(e)) if isinstance(e, Entry) else e for e in store.entries()]
    damaged = [{"folder": str(place), "damage": str(wrong)} for place, wrong in checked if wrong]
    good = len(checked) - len(damaged)
    lines = [f"damaged: {one['folder']}: {one['damage']}" for one in damaged]
    lines += [f"{good} sound, {len(damaged)} damaged. A damaged kernel is never loaded; it is compiled anew."]
    _tell({"sound": good, "damaged": damaged}, lines, as_json=as_json)
    ctx.exit(1 if damaged else 0)


# -------------------------------------------------------------------------------------------------------- remove


def _bytes(ctx: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    variable = next(v for v in settings.VARIABLES if v.field == "cache_max_bytes")
    try:
        return None if text is None else variable.parse(text)
    except ValueError:
        raise click.BadParameter(f"expected {variable.takes}, got {text!r}", ctx, parameter) from None


@cache.command("prune")
@click.option(
    "--max-bytes", callback=_bytes, help="Remove the least recently used ones until the rest takes no more, as 500M."
)
@click.option("--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Remove what was not used since.")
@click.option("--stale", is_flag=True, help="Remove what this installation cannot use: other versions, other sources.")
@_json
def prune(max_bytes: int | None, older_than: float | None, stale: bool, as_json: bool) -> None:
    """Remove what is of no use: leftovers, what was set aside, and what the options say."""
    store = _store()
    limit = store.max_bytes if max_bytes is None else max_bytes
    removed = upkeep.prune(store, max_bytes=limit, older_than_days=older_than, stale=stale)
    counts = ", ".join(f"{len(paths)} {reason}" for reason, paths in removed.items() if paths)
    told = {reason: [str(path) for path in paths] for reason, paths in removed.items()}
    _tell(told, [f"removed: {counts or 'nothing'}"], as_json=as_json)


@cache.command("clear")
@click.option("--arch", type=ARCH, help="Only this architecture.")
@_json
def clear(arch: str | None, as_json: bool) -> None:
    """Remove all kernels; they are compiled anew when they are needed."""
    store = _store()
    folders = [found.folder if isinstance(found, Entry) else found[0] for found in store.entries()]
    chosen = [folder for folder in folders if arch in (None, folder.parent.name)]
    freed = sum(tree_bytes(folder) for folder in chosen)
    count = sum(store.remove(folder) for folder in chosen)
    line = f"removed {count} kernels, {_size(freed)}, from {store.root}"
    _tell({"removed": count, "bytes": freed}, [line], as_json=as_json)


# ------------------------------------------------------------------------------------------------ warm and build


@dataclass(frozen=True)
class Asked:
    """What is to be compiled, as ``warm`` and ``build`` are asked for it."""

    suites: tuple[str, ...]
    kernel: str | None
    config: str | None
    jobs: int | None
    as_json: bool

    def requests(self, archs: Sequence[str]) -> list[Request]:
        """The kernels.

        Raises:
            click.UsageError: the options do not go together, or name nothing that there is.
        """
        if (self.kernel is None) != (self.config is None) or (self.kernel is not None and self.suites):
            raise click.UsageError("--kernel and --config go together, and without --suite")
        if self.kernel is not None and self.config is not None:
            try:
                return kernels.one(self.kernel, self.config, archs)
            except ValueError as error:
                raise click.UsageError(f"--config: {error}") from error
        with exits.told():
            return kernels.requests(self.suites, archs)

    def compile(self, store: Store, archs: Sequence[str]) -> int:
        """Compiles the kernels into a store, and tells what came of it; returns the exit status."""
        start = time.perf_counter()
        outcomes = kernels.compile_shown(self.requests(archs), store, jobs=self.jobs)
        failed = [
            {
                "builder": outcome.request.builder,
                "config": str(outcome.request.config),
                "arch": outcome.request.arch,
                "key": outcome.digest,
                "error": outcome.error,
            }
            for outcome in outcomes
            if outcome.status == "failed"
        ]
        told: dict[str, Any] = {
            "kernels": len(outcomes),
            "compiled": sum(outcome.status == "compiled" for outcome in outcomes),
            "present": sum(outcome.status == "present" for outcome in outcomes),
            "bytes": sum(outcome.bytes for outcome in outcomes),
            "compile_s": round(sum(o.seconds for o in outcomes if o.status == "compiled"), 2),
            "wall_s": round(time.perf_counter() - start, 2),
            "failed": failed,
        }
        wrong = (f"failed: {one['builder']} {one['config']} [{one['arch']}]: {one['error']}" for one in failed)
        text = (
            f"{told['kernels']} kernels: {told['compiled']} compiled in {told['wall_s']:.1f} s "
            f"({told['compile_s']:.1f} s of compiling), {told['present']} were there, {len(failed)} failed; "
            f"{_size(told['bytes'])} in {store.root}"
        )
        _tell(told, [*(click.style(line, fg="red") for line in wrong), text], as_json=self.as_json)
        return 1 if failed else 0


def _asked(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of :class:`Asked`."""
    for option in (
        _json,
        click.option("-j", "--jobs", type=click.IntRange(min=1), help="Worker processes. Default: the processors."),
        click.option("--config", metavar="JSON", help="Its configuration, as a MissingKernelError prints it."),
        click.option("--kernel", metavar="MODULE:NAME", help="One kernel instead of suites, with --config."),
        click.option("--suite", "suites", multiple=True, metavar="NAME", help="Default: all suites; repeatable."),
    ):
        command = option(command)
    return command


@cache.command("warm")
@click.option(
    "--arch", "archs", type=ARCH, multiple=True, help="Default: that of the GPUs here, or FORGE_ARCH; repeatable."
)
@_asked
@click.pass_context
def warm(ctx: click.Context, /, archs: tuple[str, ...], **asked: Any) -> None:
    """Compile the kernels of suites into the cache, several at a time; needs no GPU."""
    store = user_store()
    if store is None:
        raise CacheError("FORGE_CACHE=0 switches the cache off, so there is nothing to warm.")
    ctx.exit(Asked(**asked).compile(store, archs or _own_archs()))


@cache.command("build")
@click.option("--arch", "archs", type=ARCH, multiple=True, required=True, help="As sm_90a, or as H100; repeatable.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="The bundle's folder.")
@_asked
@click.pass_context
def build(ctx: click.Context, /, archs: tuple[str, ...], out: Path, **asked: Any) -> None:
    """Compile the kernels of suites into a bundle that other machines load; needs no GPU."""
    store, wanted = Store(out, way_out="Choose another folder by --out."), Asked(**asked)
    bundle.check_target(out)
    status = wanted.compile(store, archs)
    bundle.finish(store)
    if not wanted.as_json:
        click.echo(f"bundle: {out}; use it with FORGE_BUNDLES={out.absolute()}")
    ctx.exit(status)


def _own_archs() -> tuple[str, ...]:
    named = settings.current().arch
    if named is not None:
        return (named,)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = {device.query(torch.device("cuda", index)).arch for index in range(count)}
    if not found:
        raise click.UsageError("no GPU tells the architecture; name one, for example --arch sm_90a")
    return tuple(sorted(found))
