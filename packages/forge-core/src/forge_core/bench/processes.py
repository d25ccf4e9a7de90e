"""Runs of the bench in processes of their own: spread over devices, or of old and new sources in turn.

The suspects of a comparison are measured again on this machine, old and new sources taking turns, so that a drift of
the machine affects both alike.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from forge_core.bench.compare import Comparison, compare
from forge_core.bench.environment import git, sources_here
from forge_core.bench.records import Record, load, pool
from forge_core.bench.schema import ALL, AUTO, OURS
from forge_core.errors import BenchmarkError

TURNS = ("old", "new", "new", "old")


def run_bench(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    on_case: Callable[[str], None] = lambda name: None,
    on_start: Callable[[subprocess.Popen[str]], None] = lambda child: None,
) -> Record:
    """Runs ``forge-cute bench run`` in a process, and returns its record.

    `environment` is added to this process's; `on_start` is called with the process, `on_case` with each case's name.

    Raises:
        BenchmarkError: the process left no record; the message has its last line.
    """
    last = "no message"
    with tempfile.TemporaryDirectory(prefix="forge-bench-") as folder:
        record = Path(folder, "record.json")
        with subprocess.Popen(
            [sys.executable, "-m", "forge_core.cli", "bench", "run", *arguments, "--json", str(record)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        ) as child:
            on_start(child)
            while child.returncode is None:
                # A KeyboardInterrupt interrupts the process, too: wait for what it writes.
                with suppress(KeyboardInterrupt):
                    for line in child.stderr or ():
                        if done := re.match(r"\[\d+/\d+\] (.*?)(?: \(ends about .*\))?$", line.rstrip()):
                            on_case(done[1])
                        last = line.strip() or last
                    child.wait()
        if not record.exists():
            raise BenchmarkError(f"a process of the bench ended with status {child.returncode} and no record: {last}")
        return load(record)


def spread(arguments: Sequence[str], devices: Sequence[str], on_case: Callable[[str], None]) -> list[Record]:
    """Runs a suite on several devices at once, each with its share of the cases; BenchmarkError names all failed."""
    children: list[subprocess.Popen[str]] = []

    def one(number: int, device: str) -> Record:
        share = [*arguments, "--device", device, "--share", str(number), str(len(devices))]
        return run_bench(share, on_case=on_case, on_start=children.append)

    with ThreadPoolExecutor(len(devices)) as threads:
        running = [threads.submit(one, number, device) for number, device in enumerate(devices)]
        while not all(run.done() for run in running):
            try:
                wait(running)
            except KeyboardInterrupt:
                # Ctrl-C reaches the processes, which then ignore SIGTERM; SIGTERM reaches this process only.  They
                # write what they have.
                for child in children:
                    child.terminate()
    failed = {device: error for device, run in zip(devices, running, strict=True) if (error := run.exception())}
    if failed:
        text = "; ".join(f"{device}: {error}" for device, error in failed.items())
        raise BenchmarkError(text) from next(iter(failed.values()))
    return [run.result() for run in running]


def confirm(found: Comparison, *, old_source: Path | None = None) -> Comparison:
    """Measures the suspects again if the GPU and both sources are available; otherwise says why not.

    `old_source` is a checkout of the old sources; by default one is made of the old record's commit.
    """
    if not found.suspects:
        return found
    if obstacle := _obstacle(found, old_source):
        return replace(found, rerun=f"The suspects were not measured again: {obstacle}.")
    try:
        with tempfile.TemporaryDirectory(prefix="forge-rerun-") as folder:
            roots = {"old": old_source or _old_sources(found, Path(folder)), "new": _root()}

            def measure(which: str) -> Record:
                packages = roots[which].glob("packages/*/src")
                # Prepended: torch and the peers may be found by the path, too.
                path = os.pathsep.join([*map(str, sorted(packages)), *filter(None, [os.environ.get("PYTHONPATH")])])
                return run_bench(_arguments(found), environment={"PYTHONPATH": path})

            return in_turns(found, measure)
    except BenchmarkError as error:
        return replace(found, rerun=f"The suspects could not be measured again: {error}.")


def _arguments(found: Comparison) -> list[str]:
    """The arguments that measure the suspects as the new record was; old sources may lack options, so no defaults."""
    record, names = found.new, {change.case for change in found.suspects}
    cases = [case for case in record.cases if case.name in names]
    # "all" leaves out by name what cannot serve a case; a variant asked for by its own name would be an error there.
    variant = AUTO if all(change.contender == OURS for change in found.suspects) else ALL
    options = [("--shape", case.shape_text) for case in cases] + [("--dtype", case.dtype) for case in cases]
    options.append(("--variant", variant) if record.backend == "kernel" else ("--backend", record.backend))
    options += [("--timer", record.stopwatch)] if record.stopwatch != "events" else []
    options += [("--l2", record.l2_policy)] if record.l2_policy != "cold" else []
    options.append(("--seed", str(record.seed)))
    return [record.suite, *itertools.chain.from_iterable(dict.fromkeys(options))]


def in_turns(found: Comparison, measure: Callable[[str], Record]) -> Comparison:
    """Replaces the suspects' changes by those of `measure`, called with ``"old"`` or ``"new"`` for a record.

    Raises:
        BenchmarkError: a process failed, or a suspect is not among what they measured.
    """
    names = {change.case for change in found.suspects}
    taken: dict[str, list[Record]] = {"old": [], "new": []}
    for which in TURNS:
        taken[which].append(measure(which))
    again = compare(pool(taken["old"]), pool(taken["new"]), found.threshold)
    decided = {(change.case, change.contender): change for change in again.changes if change.case in names}
    changes = [decided.get((change.case, change.contender), change) for change in found.changes]
    missed = [c for c in found.suspects if (c.case, c.contender) not in decided and c.case not in again.broken]
    if missed:
        which = ", ".join(f"{change.case} ({change.contender})" for change in missed)
        raise BenchmarkError(f"the processes left no figures of {which}")
    broken = {**found.broken, **{name: error for name, error in again.broken.items() if name in names}}
    text = f"{len(names)} suspect cases were measured again, {' '.join(TURNS)} in turn; these figures are theirs."
    return replace(found, changes=changes, broken=broken, rerun=text)


def _obstacle(found: Comparison, old_source: Path | None) -> str:
    new, old = found.new.environment, found.old.environment
    if new.device != "cuda" or not torch.cuda.is_available():
        return "there is no GPU here"
    here = torch.cuda.get_device_name()
    if here != new.gpu:
        return f"this is {here}, and the records are of {new.gpu}"
    if not (_root() / "packages").is_dir():
        return "this is an installed package and no checkout, and the old sources are needed, too"
    if others := sources_here(new.sources):
        return f"the sources here are not those of the new record ({others})"
    if old_source is None and (not old.has_commit or old.dirty):
        return "the old record has no clean commit; name a checkout of it by --old-source"
    return ""


def _root() -> Path:
    return Path(__file__).resolve().parents[5]


def _old_sources(found: Comparison, folder: Path) -> Path:
    """Unpacks the old record's commit into a folder."""
    archive = folder / "old.zip"
    done = git(_root(), "archive", f"--output={archive}", found.old.environment.commit, "packages")
    if done.returncode != 0:
        raise BenchmarkError(f"git archive failed: {done.stderr.strip()}")
    shutil.unpack_archive(archive, folder)
    return folder
