"""What a run leaves behind: small enough to commit, complete enough to be judged later.

A record is JSON, one case a line.  Times are milliseconds, bandwidth is GB/s of 1e9 bytes, ratios are of bandwidth
(above 1 is faster), except in host time, where they are of time (below 1 is faster).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from forge_core.bench.environment import Environment
from forge_core.errors import BenchmarkError
from forge_core.files import read_unpacked
from forge_core.timing import quantile

__all__ = [
    "INTERRUPTED",
    "READABLE",
    "SCHEMA_VERSION",
    "CaseRecord",
    "Cold",
    "ContenderRecord",
    "ImportRecord",
    "Record",
    "Run",
    "Verdict",
    "interrupted_note",
    "load",
    "over_runs",
]

#: What is written.  Version 2 added stopwatch, l2_policy, interrupted, not_run, devices; a case's device and notes; a
#: contender's cold figures.  All have defaults, so records of version 1 are read as they are.
SCHEMA_VERSION = 2
READABLE = (1, 2)

Kind = Literal["ours", "peer", "ceiling"]

#: How the note of a run that was stopped begins.
INTERRUPTED = "Interrupted: "


def interrupted_note(done: int, wanted: int) -> str:
    """The note of a run that was stopped."""
    return f"{INTERRUPTED}{done} of {wanted} cases were measured."


class Run(msgspec.Struct, frozen=True):
    """One run of one contender.

    Attributes:
        median_ms, p20_ms, p80_ms: of the samples, in milliseconds.
        samples: how many were taken.
        of_ceiling: its bandwidth over the ceiling's, in this run; None in host time.
        of_best_peer: its bandwidth over the best peer's (its time, in host time), in this run; None without peers.
        clocks: the SM clock before and after.
    """

    median_ms: float
    p20_ms: float
    p80_ms: float
    samples: int
    of_ceiling: float | None = None
    of_best_peer: float | None = None
    clocks: str = "not read"


def over_runs(runs: Sequence[Run]) -> dict[str, float]:
    """The times of a contender: of each of a run's figures the median over the runs, in milliseconds."""
    names = ("median_ms", "p20_ms", "p80_ms")
    return {name: round(quantile([getattr(run, name) for run in runs], 0.5), 6) for name in names}


class Cold(msgspec.Struct, frozen=True):
    """What a first call costs, in fresh processes: the medians.

    Attributes:
        import_s: seconds of importing what the call needs, after torch: the package, or a peer's library.
        empty_s: seconds of the first call with empty caches, compiling included.
        kept_s: seconds of the first call of a process that finds the caches as an earlier one left them.
        again_us: microseconds of a call once the kernel is in memory.
        processes: how many of each kind.
    """

    import_s: float
    empty_s: float
    kept_s: float
    again_us: float
    processes: int


class ContenderRecord(msgspec.Struct, frozen=True):
    """One contender of one case: the median over the runs of each figure, and each run.

    Attributes:
        name: ``"forge"`` (auto), ``"forge:<variant>"``, a peer's name, or ``"ceiling"``.
        kind: whose it is.
        median_ms, p20_ms, p80_ms: the medians over the runs.
        spread: (p80 - p20) / median.
        gbs: bytes over `median_ms`; None in host time.
        of_ceiling, of_best_peer: the medians over the runs of the ratios of each run.
        runs: each run.
        samples_ms: samples of the runs, thinned evenly.
        variant, config, why: what was launched and why; the reference for the CPU and for ``--backend ref``.
        correct: the verdict of the gate.
        first_call_s: seconds of the first call of the first run, compiling included.
        cold: what a first call costs in a fresh process; of suites with the timer ``cold``.
    """

    name: str
    kind: Kind
    median_ms: float
    p20_ms: float
    p80_ms: float
    spread: float
    gbs: float | None
    of_ceiling: float | None
    of_best_peer: float | None
    runs: list[Run]
    samples_ms: list[float]
    variant: str = ""
    config: str = ""
    why: str = ""
    correct: str = ""
    first_call_s: float | None = None
    cold: Cold | None = None

    def samples_by_run(self) -> list[list[float]]:
        """The kept samples, in milliseconds, of each run; every run kept as many."""
        count = len(self.samples_ms) // max(1, len(self.runs))
        return [self.samples_ms[n * count : (n + 1) * count] for n in range(len(self.runs))] if count else []


class Verdict(msgspec.Struct, frozen=True):
    """One target and what was measured.

    Attributes:
        of: what it is measured against: ``"ceiling"``, ``"best_peer"``, a peer's name, or ``"import"``; or ``"GB/s"``,
            which is against nothing.
        at_least, at_most: the target; one of the two.
        value: the measured figure: the median over the runs.
        met: whether it is reached.
        met_from: the measured share that counts as reached, where it is not `at_least` itself.
    """

    of: str
    value: float
    met: bool
    at_least: float | None = None
    at_most: float | None = None
    met_from: float | None = None


class CaseRecord(msgspec.Struct, frozen=True):
    """One case.

    Attributes:
        name: for example ``"transpose 4096x4096 float32"``.
        package: the import name of the package that declares it.
        operator, shape, dtype, layout: the case.
        read, written, traffic: bytes that must move at least, and why.
        contenders: the figures; empty if `error` is set.
        best_peer: the fastest peer by the median over the runs; "" without peers.
        left_out: contenders that were left out, and the missing requirement.
        wrong: peers that gave a wrong result or an error, and what it was; they have no figures.
        targets: targets and verdicts.
        error: "" or why the case has no figures.
        tolerance: how results were compared with the reference.
        floor_ms: the time below which a sample would have been refused; 0 where there is none.
        l2: the state of the cache before each launch.
        device: which of several devices it ran on; "" where there was one.
        notes: what disturbed the measurement: a clock that moved, a processor that was slowed down.
    """

    name: str
    package: str
    operator: str
    shape: list[int]
    dtype: str
    layout: str
    read: int
    written: int
    traffic: str
    contenders: list[ContenderRecord] = []
    best_peer: str = ""
    left_out: dict[str, str] = {}
    wrong: dict[str, str] = {}
    targets: list[Verdict] = []
    error: str = ""
    tolerance: str = ""
    floor_ms: float = 0.0
    l2: str = ""
    device: str = ""
    notes: list[str] = []

    def contender(self, name: str) -> ContenderRecord | None:
        """The contender of that name, or None."""
        return next((contender for contender in self.contenders if contender.name == name), None)

    @property
    def shape_text(self) -> str:
        """The shape as it is typed: ``"4096x4096"``."""
        return "x".join(map(str, self.shape))

    @property
    def label(self) -> str:
        """The shape, and the layout unless it is contiguous: ``"4096x4096 permuted"``."""
        return self.shape_text if self.layout == "contiguous" else f"{self.shape_text} {self.layout}"


class ImportRecord(msgspec.Struct, frozen=True):
    """What an import costs: seconds of fresh processes, and their median."""

    module: str
    median_s: float
    samples_s: list[float]
    method: str
    targets: list[Verdict] = []
    error: str = ""


class Record(msgspec.Struct, frozen=True):
    """A run of a suite.

    Attributes:
        schema_version: 2; a record of version 1 is read as one of version 2.
        suite: the suite's or the operator's name.
        date: UTC, ISO 8601.
        timer: what was timed: ``"device"``, ``"host"``, or ``"cold"``, the first call of a process.
        backend: ``"kernel"`` or ``"ref"``.
        method: how times were taken, in words.
        notes: what a reader must know before the figures.
        environment: the machine and the sources.
        seed: the inputs' seed.
        repeats: runs of the whole suite.
        warmup: launches of each contender before the first sample, at least.
        empty_pair_us: what a sample's two events cost on their own, in every sample; None off the GPU.
        seconds: how long it all took.
        cases, imports: the figures.
        stopwatch: the timer's name: ``"events"``, ``"graph"``, ``"cupti"`` or ``"wall"``.
        l2_policy: ``"cold"``, ``"flushed"`` or ``"warm"``.
        interrupted: whether the run was stopped before its end; the figures are those of what was measured.
        not_run: the cases that were not reached.
        devices: the devices that the cases were spread over, where there were several.
    """

    suite: str
    date: str
    timer: str
    backend: str
    method: str
    notes: list[str]
    environment: Environment
    seed: int
    repeats: int
    warmup: int
    empty_pair_us: float | None
    seconds: float
    cases: list[CaseRecord]
    imports: list[ImportRecord] = []
    stopwatch: str = "events"
    l2_policy: str = "cold"
    interrupted: bool = False
    not_run: list[str] = []
    devices: list[str] = []
    schema_version: int = SCHEMA_VERSION

    @property
    def errors(self) -> list[str]:
        """The errors of all cases, peers and imports."""
        found = []
        for case in self.cases:
            found += [f"{case.name}: {error}" for error in (case.error, *case.wrong.values()) if error]
        return found + [f"import {entry.module}: {entry.error}" for entry in self.imports if entry.error]

    @property
    def verdicts(self) -> list[Verdict]:
        """All targets with their verdicts."""
        owners: list[CaseRecord | ImportRecord] = [*self.cases, *self.imports]
        return [verdict for owner in owners for verdict in owner.targets]

    def dumps(self) -> str:
        """The record as JSON: one line for each case, so that a changed case is a changed line."""
        fields = msgspec.to_builtins(self)
        lines = []
        for key in ("schema_version", *(key for key in fields if key != "schema_version")):
            value = fields[key]
            if key in ("cases", "imports") and value:
                inner = ",\n".join("  " + msgspec.json.encode(entry).decode() for entry in value)
                lines.append(f' "{key}": [\n{inner}\n ]')
            else:
                lines.append(f' "{key}": {msgspec.json.encode(value).decode()}')
        return "{\n" + ",\n".join(lines) + "\n}\n"


def load(path: Path) -> Record:
    """Reads a record.

    Raises:
        BenchmarkError: the file cannot be read, is no record, or has another schema version.
    """
    try:
        raw = msgspec.json.decode(read_unpacked(path))
    except (OSError, msgspec.DecodeError) as error:
        raise BenchmarkError(f"{path}: expected a record of a benchmark: {error}") from error
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version not in READABLE:
        known = " or ".join(map(str, READABLE))
        raise BenchmarkError(f"{path}: expected a record with schema_version {known}, got {version}.")
    try:
        return msgspec.convert({**raw, "schema_version": SCHEMA_VERSION}, Record)
    except msgspec.ValidationError as error:
        raise BenchmarkError(f"{path}: expected a record of a benchmark: {error}") from error
