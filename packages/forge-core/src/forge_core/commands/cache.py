"""The command ``forge-cute cache``.

Exit status: 0 all right, 1 something is damaged, failed or missing, 3 bad usage.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.filesize import decimal

from forge_core import settings
from forge_core.bench import kernels
from forge_core.cache import bundle
from forge_core.cache.files import check_writable, tree_bytes
from forge_core.cache.key import untag
from forge_core.cache.parallel import Request
from forge_core.cache.store import Damaged, Entry, Store, user_store
from forge_core.cli import ARCH, FOLDER, answers, with_options
from forge_core.errors import CacheError

HELP = """Show, check, warm and ship compiled kernels.

\b
forge-cute cache ls                              what is there
forge-cute cache warm --suite week1 -j 8         compile before anybody waits
forge-cute cache build --arch sm_90a --suite week1 --out BUNDLE
"""

# Plain values for --json, and the same as lines.
_Answer = tuple[Any, Iterable[str]]
_arch = click.option("--arch", type=ARCH, help="Only this architecture.")
_bundle = click.option("--bundle", "folder", type=FOLDER, help="Look at a bundle, not at the cache.")


@click.group(help=HELP)
def cache() -> None:
    """The group; its help is HELP."""


def _store(folder: Path | None) -> Store:
    """A bundle, or the user's cache, enabled or not."""
    return Store.of_user() if folder is None else bundle.open_bundle(folder, "--bundle")


def _intact(store: Store) -> Iterator[Entry]:
    """The entries; damaged ones are reported on standard error."""
    for found in store.entries():
        if isinstance(found, Entry):
            yield found
        else:
            click.echo(f"damaged: {found.folder}: {found}", err=True)


def _config_text(tagged: Any) -> str:
    """A tagged configuration in Python's notation: ``TiledConfig(itemsize=4, tile=32)``."""
    match tagged:
        case ["dataclass", str(path), dict(fields)]:
            inside = ", ".join(f"{name}={_config_text(value)}" for name, value in fields.items())
            return f"{path.rpartition(':')[2]}({inside})"
        case ["enum", str(path), str(name)]:
            return f"{path.rpartition(':')[2]}.{name}"
        case ["tuple", list(items)]:
            return f"({', '.join(map(_config_text, items))})"
        case ["dtype", str(name)]:
            return name
        case [str(), value]:
            return repr(value)
    return repr(tagged)


def _plain(entry: Entry) -> dict[str, Any]:
    """An entry as plain values."""
    return {
        "digest": entry.key.digest,
        "builder": entry.key.name,
        "config": _config_text(json.loads(entry.key.config)),
        "arch": entry.key.arch,
        "bytes": entry.bytes,
        "compile_s": entry.seconds,
        "made": entry.made,
        "used": dt.datetime.fromtimestamp(entry.used, dt.UTC).replace(microsecond=0).isoformat(),
    }


# ------------------------------------------------------------------------------------------------ show and check


@cache.command("ls")
@_arch
@click.option("--kernel", "text", default="", help="Only builders whose name contains this text.")
@_bundle
@answers
def ls(arch: str | None, text: str, folder: Path | None) -> _Answer:
    """List the kernels, the last used first."""
    store = _store(folder)
    found = [e for e in _intact(store) if arch in (None, e.key.arch) and text in e.key.name]
    rows = [_plain(entry) for entry in sorted(found, key=lambda entry: -entry.used)]
    lines = [
        f"{row['digest'][:12]}  {row['arch']:8}  {decimal(row['bytes']):>8}  compiled in {row['compile_s']:5.2f} s  "
        f"used {row['used'][:16]}  {row['builder'].removesuffix(':build')}  {row['config']}"
        for row in rows
    ]
    lines += [f"{len(rows)} kernels, {decimal(sum(row['bytes'] for row in rows))}, in {store.root}"]
    return rows, lines


@cache.command("info")
@click.argument("key")
@_bundle
@answers
def info(key: str, folder: Path | None) -> _Answer:
    """Show one kernel and its whole key; KEY is the beginning of its digest."""
    found = [entry for entry in _intact(_store(folder)) if entry.key.digest.startswith(key)]
    if len(found) != 1:
        some = ", ".join(entry.key.digest[:16] for entry in found[:8])
        raise click.ClickException(f"expected one kernel whose key begins with {key!r}, found {len(found)} {some}")
    (entry,) = found
    told = _plain(entry) | {"object": str(entry.object), "sha256": entry.sha256, "symbol": entry.key.symbol}
    parts = entry.key.describe()

    def lines() -> Iterator[str]:
        for name, value in (parts | told).items():
            if isinstance(value, dict):
                yield from (f"{name}:", *(f"    {inner} {text}" for inner, text in value.items()))
            else:
                yield f"{name + ':':11} {value}"

    return told | {"key": parts}, lines()


@cache.command("stats")
@answers
def stats() -> _Answer:
    """Count the kernels by architecture and by builder."""
    current, store = settings.current(), Store.of_user()
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
        "bundles": [str(shipped.root) for shipped in bundle.all_bundles()],
    }
    limit = decimal(told["max_bytes"]) if told["max_bytes"] else "no limit"
    lines = [
        f"{told['folder']}{'' if told['on'] else ' (FORGE_CACHE=0: not in use)'}",
        f"{told['kernels']} kernels, {decimal(told['bytes'])} of {limit}, {told['compile_s']:.1f} s of compiling saved",
        f"{told['damaged']} damaged, {told['need_the_dsl']} that only the DSL can load",
        *(f"  {count:5}  {name}" for group in ("by_arch", "by_kernel") for name, count in told[group].items()),
        *(f"bundle {folder}" for folder in told["bundles"]),
    ]
    return told, lines


@cache.command("verify")
@_bundle
@answers
def verify(folder: Path | None) -> tuple[Any, Iterable[str], int]:
    """Check every kernel's description and checksum; exit status 1 if one is damaged."""
    checked = list(_store(folder).entries(check=True))
    damaged = [{"folder": str(e.folder), "damage": str(e)} for e in checked if isinstance(e, Damaged)]
    sound = len(checked) - len(damaged)
    lines = [f"damaged: {one['folder']}: {one['damage']}" for one in damaged]
    lines += [f"{sound} sound, {len(damaged)} damaged. A damaged kernel is never loaded; it is compiled again."]
    return {"sound": sound, "damaged": damaged}, lines, 1 if damaged else 0


# -------------------------------------------------------------------------------------------------------- remove


def _store_to_change() -> Store:
    """The user's cache; raises CacheError if it is read-only."""
    store = Store.of_user()
    if store.root.exists():
        check_writable(store.root, remedy=store.remedy)
    return store


def _bytes(text: str) -> int:
    try:
        return settings.parse_bytes(text)
    except ValueError:
        raise click.BadParameter(f"expected {settings.BYTES}, got {text!r}") from None


@cache.command("prune")
@click.option("--max-bytes", type=_bytes, metavar="500M", help="Remove the least recently used until the rest fits.")
@click.option("--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Remove what was not used since.")
@click.option("--stale", is_flag=True, help="Remove what this installation cannot use: other versions, other sources.")
@answers
def prune(max_bytes: int | None, older_than: float | None, stale: bool) -> _Answer:
    """Remove what is of no use: leftovers, damaged kernels, and what the options say."""
    store = _store_to_change()
    limit = store.max_bytes if max_bytes is None else max_bytes
    removed = store.prune(max_bytes=limit, older_than_days=older_than, stale=stale)
    counts = ", ".join(f"{len(paths)} {reason}" for reason, paths in removed.items() if paths)
    return removed, [f"removed: {counts or 'nothing'}"]


@cache.command("clear")
@_arch
@answers
def clear(arch: str | None) -> _Answer:
    """Remove all kernels; they are compiled again when they are needed."""
    store = _store_to_change()
    chosen = [found.folder for found in store.entries() if arch in (None, found.folder.parent.name)]
    freed = sum(map(tree_bytes, chosen))
    count = sum(map(store.remove, chosen))
    return {"removed": count, "bytes": freed}, [f"removed {count} kernels, {decimal(freed)}, from {store.root}"]


# ------------------------------------------------------------------------------------------------ warm and build


#: The options of :func:`_compile`.
_compiling = with_options(
    click.option("--suite", "suites", multiple=True, metavar="NAME", help="Default: all suites; repeatable."),
    click.option("--kernel", metavar="MODULE:NAME", help="One kernel instead of suites, with --config."),
    click.option("--config", metavar="JSON", help="Its configuration, as a MissingKernelError prints it."),
    click.option("-j", "--jobs", type=click.IntRange(min=1), help="Worker processes. Default: the processors."),
)


def _compile(
    store: Store, archs: Sequence[str], suites: Sequence[str], kernel: str | None, config: str | None, jobs: int | None
) -> tuple[dict[str, Any], list[str], int]:
    """Compiles kernels into a store; returns plain values, the same as lines, and the exit status.

    Raises:
        CacheError: the store is not writable; nothing is compiled.
    """
    if (kernel is None) != (config is None) or (kernel is not None and suites):
        raise click.UsageError("--kernel and --config go together, and without --suite")
    if kernel is None or config is None:
        wanted = kernels.requests(suites, archs)
    else:
        try:
            value = untag(json.loads(config))
        except (ValueError, TypeError, ImportError, AttributeError, KeyError) as error:
            raise click.UsageError(f"--config: {type(error).__name__}: {error}") from error
        wanted = [Request(kernel, value, arch) for arch in archs]
    check_writable(store.root, remedy=store.remedy)
    start = time.perf_counter()
    outcomes = kernels.compile_shown(wanted, store, jobs=jobs)
    counts = Counter(outcome.status for outcome in outcomes)
    failed = [
        {**vars(o.request), "config": str(o.request.config), "key": o.digest, "error": o.error}
        for o in outcomes
        if o.status == "failed"
    ]
    told: dict[str, Any] = {
        "kernels": len(outcomes),
        "compiled": counts["compiled"],
        "present": counts["present"],
        "bytes": sum(outcome.bytes for outcome in outcomes),
        "compile_s": round(sum(o.seconds for o in outcomes if o.status == "compiled"), 2),
        "wall_s": round(time.perf_counter() - start, 2),
        "failed": failed,
    }
    lines = [click.style("failed: {builder} {config} [{arch}]: {error}".format(**each), fg="red") for each in failed]
    lines.append(
        f"{told['kernels']} kernels: {told['compiled']} compiled in {told['wall_s']:.1f} s "
        f"({told['compile_s']:.1f} s of compiling), {told['present']} were there, {len(failed)} failed; "
        f"{decimal(told['bytes'])} in {store.root}"
    )
    return told, lines, 1 if failed else 0


@cache.command("warm")
@click.option(
    "--arch", "archs", type=ARCH, multiple=True, help="Default: that of the GPUs here, or FORGE_ARCH; repeatable."
)
@_compiling
@answers
def warm(archs: tuple[str, ...], **asked: Any) -> tuple[Any, Iterable[str], int]:
    """Compile the kernels of suites into the cache, several at a time; needs no GPU."""
    store = user_store()
    if store is None:
        raise CacheError("FORGE_CACHE=0 switches the cache off, so there is nothing to warm.")
    archs = archs or settings.target_archs()
    if not archs:
        raise click.UsageError("no GPU tells the architecture; name one, for example --arch sm_90a")
    return _compile(store, archs, **asked)


@cache.command("build")
@click.option("--arch", "archs", type=ARCH, multiple=True, required=True, help="As sm_90a, or as H100; repeatable.")
@click.option("--out", type=FOLDER, required=True, help="The bundle's folder.")
@_compiling
@answers
def build(archs: tuple[str, ...], out: Path, **asked: Any) -> tuple[Any, Iterable[str], int]:
    """Compile the kernels of suites into a bundle that other machines load; needs no GPU."""
    store = Store(out, remedy="Choose another folder by --out.")
    if out.exists() and any(out.iterdir()):
        bundle.check_format(out, f"--out {out} is not empty", "Choose another folder, or empty it.")
    told, lines, status = _compile(store, archs, **asked)
    try:
        bundle.finish(store)
    except CacheError as error:  # reported beside the kernels that failed
        click.echo(f"{type(error).__name__}: {error}", err=True)
        return told, lines, 1
    return told, [*lines, f"bundle: {out}; use it with FORGE_BUNDLES={out.absolute()}"], status
