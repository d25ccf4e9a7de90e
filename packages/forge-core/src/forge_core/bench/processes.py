"""Runs of the bench in processes of their own: spread over devices, or of two sources in turn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import msgspec

from forge_core.bench.records import INTERRUPTED, ContenderRecord, Record, interrupted_note, load, over_runs
from forge_core.bench.summary import thin
from forge_core.errors import BenchmarkError

__all__ = ["pool", "run_bench", "spread", "union"]


def run_bench(
    arguments: Sequence[str],
    record: Path,
    *,
    environment: Mapping[str, str] | None = None,
    on_case: Callable[[str], None] = lambda name: None,
    on_start: Callable[[subprocess.Popen[str]], None] = lambda child: None,
) -> Record:
    """Runs ``forge-cute bench run`` in a process and reads the record that it writes.

    Args:
        arguments: what follows ``run``.
        record: the file to write.
        environment: variables beside this process's.
        on_case: called with a case's name when it is done.
        on_start: called with the process.

    Raises:
        BenchmarkError: the process left no record; the message has its last line.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "forge_core.cli", "bench", "run", *arguments, "--json", str(record)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    with child:
        on_start(child)
        last = _follow(child, on_case)
    if not record.exists():
        raise BenchmarkError(f"a process of the bench ended with status {child.returncode} and no record: {last}")
    return load(record)


def _follow(child: subprocess.Popen[str], on_case: Callable[[str], None]) -> str:
    """Reads what a process says until it ends; returns its last line."""
    last = "no message"
    while True:
        try:
            for line in child.stderr or ():
                done = re.match(r"\[\d+/\d+\] (.*?)(?: \(ends about .*\))?$", line.rstrip())
                if done:
                    on_case(done[1])
                last = line.strip() or last
            child.wait()
        except KeyboardInterrupt:
            continue  # the process was interrupted, too: it writes what it has, and that is waited for
        return last


def spread(
    arguments: Sequence[str], devices: Sequence[str], folder: Path, on_case: Callable[[str], None]
) -> list[Record]:
    """Runs a suite on several devices at once, each with its share of the cases.

    Raises:
        BenchmarkError: some left no record; the message has what each of them said.
    """
    children: list[subprocess.Popen[str]] = []

    def one(number: int, device: str) -> Record:
        share = [*arguments, "--device", device, "--share", f"{number + 1}/{len(devices)}"]
        return run_bench(share, folder / f"{number}.json", on_case=on_case, on_start=children.append)

    with ThreadPoolExecutor(len(devices)) as pool:
        running = [pool.submit(one, number, device) for number, device in enumerate(devices)]
        while True:
            try:
                wait(running)
                break
            except KeyboardInterrupt:
                # By Ctrl-C the processes were interrupted, too, and take no notice of another signal; by SIGTERM they
                # were not.  They write what they have, and that is waited for.
                for child in children:
                    child.terminate()
    failed = {device: error for device, run in zip(devices, running, strict=True) if (error := run.exception())}
    if failed:
        raise BenchmarkError("; ".join(f"{device}: {error}" for device, error in failed.items())) from next(
            iter(failed.values())
        )
    return [run.result() for run in running]


def union(records: Sequence[Record], devices: Sequence[str]) -> Record:
    """One record of the shares that several devices measured, the cases in the suite's order."""
    first = records[0]
    cases = [
        msgspec.structs.replace(record.cases[row], device=device)
        for row in range(max(len(record.cases) for record in records))
        for record, device in zip(records, devices, strict=True)
        if row < len(record.cases)
    ]
    gpus = list(dict.fromkeys(record.environment.gpu for record in records))
    notes = list(dict.fromkeys(note for record in records for note in record.notes))
    not_run = [name for record in records for name in record.not_run]
    if any(record.interrupted for record in records):
        notes = [note for note in notes if not note.startswith(INTERRUPTED)]
        notes.append(interrupted_note(len(cases), len(cases) + len(not_run)))
    if len(gpus) > 1:
        notes.append(f"The devices differ: {', '.join(gpus)}.")
    return msgspec.structs.replace(
        first,
        notes=notes,
        cases=cases,
        imports=[entry for record in records for entry in record.imports],
        seconds=max(record.seconds for record in records),
        interrupted=any(record.interrupted for record in records),
        not_run=not_run,
        devices=list(devices),
    )


def pool(records: Sequence[Record]) -> Record:
    """One record of several of the same cases: the runs of all, side by side."""
    first = records[0]
    cases = []
    for case in first.cases:
        same = [found for record in records for found in record.cases if found.name == case.name]
        error = next((found.error for found in same if found.error), "")
        contenders = [
            _pooled([part for found in same if (part := found.contender(contender.name)) is not None])
            for contender in ([] if error else case.contenders)
        ]
        cases.append(msgspec.structs.replace(case, contenders=contenders, error=error))
    return msgspec.structs.replace(first, cases=cases, repeats=sum(record.repeats for record in records))


def _pooled(parts: Sequence[ContenderRecord]) -> ContenderRecord:
    runs = [run for part in parts for run in part.runs]
    taken = [samples for part in parts for samples in part.samples_by_run()]
    fewest = min((len(samples) for samples in taken), default=0)
    return msgspec.structs.replace(
        parts[0],
        runs=runs,
        **over_runs(runs),
        samples_ms=[sample for samples in taken for sample in thin(samples, fewest)],
    )
