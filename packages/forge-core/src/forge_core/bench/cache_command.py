"""The command ``forge-cute cache``.

Exit status: 0 all right, 1 something is damaged, failed or missing, 3 bad usage.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import click

from forge_core import settings
from forge_core.bench import cache_tables as tables
from forge_core.cache import bundle
from forge_core.cache.entry import Entry
from forge_core.cache.files import folders_in, tree_bytes
from forge_core.cache.folders import default_folder
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


@click.group(help=HELP)
def cache() -> None:
    """The group; what it says to a user stands in HELP."""


def _store(folder: Path | None = None) -> Store:
    """The cache of the user, switched on or not; or a folder such as a bundle."""
    if folder is not None:
        return bundle.open_bundle(folder, "--bundle")
    current = settings.current()
    return Store.of_user(current.cache_dir or default_folder(), max_bytes=current.cache_max_bytes)


_bundle_option = click.option(
    "--bundle", "folder", type=click.Path(file_okay=False, path_type=Path), help="Look at a bundle, not at the cache."
)


@cache.command("ls")
@click.option("--arch", type=ARCH, help="Only this architecture.")
@click.option("--kernel", "text", default="", help="Only builders whose name contains this text.")
@_bundle_option
@_json
def ls(arch: str | None, text: str, folder: Path | None, as_json: bool) -> None:
    """List the kernels, the last used first."""
    store = _store(folder)
    found = [e for e in _sound(store) if arch in (None, e.key.arch) and text in e.key.name]
    found.sort(key=lambda entry: -entry.used)
    if as_json:
        click.echo(json.dumps([tables.as_dict(entry) for entry in found], indent=1))
    else:
        tables.print_entries(found, store.root)


@cache.command("info")
@click.argument("key")
@_bundle_option
@_json
def info(key: str, folder: Path | None, as_json: bool) -> None:
    """Show all of one kernel; KEY is its digest, or the beginning of it."""
    found = [entry for entry in _sound(_store(folder)) if entry.key.digest.startswith(key)]
    if len(found) != 1:
        told = ", ".join(entry.key.digest[:16] for entry in found[:8])
        raise click.ClickException(
            f"{len(found)} kernels begin with {key!r}: {told}" if found else f"no kernel begins with {key!r}"
        )
    told_of = tables.as_dict(found[0], full=True)
    if as_json:
        click.echo(json.dumps(told_of, indent=1))
    else:
        tables.print_entry(told_of)


@cache.command("stats")
@_json
def stats(as_json: bool) -> None:
    """Show how much is there, by architecture and by kernel."""
    current, store = settings.current(), _store()
    told = tables.statistics(list(store.entries()))
    told |= {
        "folder": str(store.root),
        "on": current.cache,
        "max_bytes": current.cache_max_bytes,
        "set_aside": len(folders_in(store.root / "damaged")),
        "bundles": [str(shipped.root) for shipped in bundle.installed()],
    }
    if as_json:
        click.echo(json.dumps(told, indent=1))
    else:
        tables.print_statistics(told)


@cache.command("verify")
@_bundle_option
@_json
@click.pass_context
def verify(ctx: click.Context, folder: Path | None, as_json: bool) -> None:
    """Check every kernel's description and checksum; exit status 1 if one is damaged."""
    store, good, damaged = _store(folder), 0, []
    for found in store.entries():
        entry, wrong = found if isinstance(found, tuple) else (found.folder, store.verify(found))
        if wrong:
            damaged.append({"folder": str(entry), "damage": str(wrong)})
        else:
            good += 1
    if as_json:
        click.echo(json.dumps({"sound": good, "damaged": damaged}, indent=1))
    else:
        for one in damaged:
            click.echo(f"damaged: {one['folder']}: {one['damage']}")
        click.echo(f"{good} sound, {len(damaged)} damaged. A damaged kernel is never loaded; it is compiled anew.")
    ctx.exit(1 if damaged else 0)


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
    from forge_core.cache import upkeep

    store = _store()
    limit = store.max_bytes if max_bytes is None else max_bytes
    removed = upkeep.prune(store, max_bytes=limit, older_than_days=older_than, stale=stale)
    if as_json:
        click.echo(json.dumps({reason: [str(path) for path in paths] for reason, paths in removed.items()}, indent=1))
    else:
        told = ", ".join(f"{len(paths)} {reason}" for reason, paths in removed.items() if paths)
        click.echo(f"removed: {told or 'nothing'}")


@cache.command("clear")
@click.option("--arch", type=ARCH, help="Only this architecture.")
@_json
def clear(arch: str | None, as_json: bool) -> None:
    """Remove all kernels; they are compiled anew when they are needed."""
    store = _store()
    folders = [f[0] if isinstance(f, tuple) else f.folder for f in store.entries()]
    chosen = [folder for folder in folders if arch in (None, folder.parent.name)]
    freed = sum(tree_bytes(folder) for folder in chosen)
    count = sum(store.remove(folder) for folder in chosen)
    if as_json:
        click.echo(json.dumps({"removed": count, "bytes": freed}))
    else:
        click.echo(f"removed {count} kernels, {tables.size(freed)}, from {store.root}")


# ------------------------------------------------------------------------------------------------ warm and build

_suites = click.option("--suite", "suites", multiple=True, metavar="NAME", help="Default: all suites; repeatable.")
_jobs = click.option("-j", "--jobs", type=click.IntRange(min=1), help="Worker processes. Default: the processors.")
_kernel = click.option("--kernel", metavar="MODULE:NAME", help="One kernel instead of suites, with --config.")
_config = click.option("--config", metavar="JSON", help="Its configuration, as a MissingKernelError prints it.")


@cache.command("warm")
@click.option(
    "--arch", "archs", type=ARCH, multiple=True, help="Default: that of the GPUs here, or FORGE_ARCH; repeatable."
)
@_suites
@_kernel
@_config
@_jobs
@_json
@click.pass_context
def warm(
    ctx: click.Context,
    archs: tuple[str, ...],
    suites: tuple[str, ...],
    kernel: str | None,
    config: str | None,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Compile the kernels of suites into the cache, several at a time; needs no GPU."""
    store = user_store()
    if store is None:
        raise CacheError("FORGE_CACHE=0 switches the cache off, so there is nothing to warm.")
    ctx.exit(_compile(store, archs or _own_archs(), suites, kernel, config, jobs, as_json=as_json))


@cache.command("build")
@click.option("--arch", "archs", type=ARCH, multiple=True, required=True, help="As sm_90a, or as H100; repeatable.")
@_suites
@_kernel
@_config
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="The bundle's folder.")
@_jobs
@_json
@click.pass_context
def build(
    ctx: click.Context,
    archs: tuple[str, ...],
    suites: tuple[str, ...],
    kernel: str | None,
    config: str | None,
    out: Path,
    jobs: int | None,
    as_json: bool,
) -> None:
    """Compile the kernels of suites into a bundle that other machines load; needs no GPU."""
    from forge_core.cache import upkeep

    store = Store(out, way_out="Choose another folder by --out.")
    upkeep.check_bundle_target(out)
    status = _compile(store, archs, suites, kernel, config, jobs, as_json=as_json)
    upkeep.finish_bundle(store)
    if not as_json:
        click.echo(f"bundle: {out}; use it with FORGE_BUNDLES={out.absolute()}")
    ctx.exit(status)


def _own_archs() -> tuple[str, ...]:
    named = settings.current().arch
    if named is not None:
        return (named,)
    import torch

    from forge_core import device

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = {device.query(torch.device("cuda", index)).arch for index in range(count)}
    if not found:
        raise click.UsageError("no GPU tells the architecture; name one, for example --arch sm_90a")
    return tuple(sorted(found))


def _compile(
    store: Store,
    archs: tuple[str, ...],
    suites: tuple[str, ...],
    kernel: str | None,
    config: str | None,
    jobs: int | None,
    *,
    as_json: bool,
) -> int:
    from forge_core.bench import kernels as known

    if (kernel is None) != (config is None) or (kernel is not None and suites):
        raise click.UsageError("--kernel and --config go together, and without --suite")
    start = time.perf_counter()
    if kernel is not None and config is not None:
        try:
            wanted = known.one(kernel, config, archs)
        except ValueError as error:
            raise click.UsageError(f"--config: {error}") from error
    else:
        wanted = _requests(suites, archs)
    outcomes = known.compile_shown(wanted, store, jobs=jobs)
    told = tables.summary(outcomes, time.perf_counter() - start)
    if as_json:
        click.echo(json.dumps(told, indent=1))
    else:
        tables.print_summary(told, store.root)
    return 1 if told["failed"] else 0


def _requests(suites: tuple[str, ...], archs: tuple[str, ...]) -> list[Request]:
    from forge_core.bench import exits, plan
    from forge_core.bench import kernels as known
    from forge_core.bench.cli import suites_and_operators

    with exits.told(), exits.nearest(lambda: [(suites, suites_and_operators(plan.discover()))]):
        return known.requests(suites, archs)


def _sound(store: Store) -> Iterator[Entry]:
    """The entries; what is damaged is told on standard error."""
    for found in store.entries():
        if isinstance(found, tuple):
            click.echo(f"damaged: {found[0]}: {found[1]}", err=True)
        else:
            yield found
