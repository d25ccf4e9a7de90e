"""The record of a run: small enough to commit, complete enough to be judged later.

A record is JSON, one case a line.  Times are milliseconds, bandwidth is GB/s of 1e9 bytes, ratios are of bandwidth
(above 1 is faster), except in host time, where they are of time (below 1 is faster).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import msgspec

from forge_core.bench.environment import Environment
from forge_core.bench.schema import BANDWIDTH, BEST_PEER, CEILING, OURS, Target
from forge_core.errors import BenchmarkError
from forge_core.files import read_unpacked

SCHEMA_VERSION: Final = 2
#: How the suite of a sweep's record begins; the operator's name follows.
SWEEP: Final = "sweep "


class Run(msgspec.Struct, frozen=True):
    """One run of one contender: its samples' figures, ratios if there is what to compare with, and the SM clock."""

    median_ms: float
    p20_ms: float
    p80_ms: float
    samples: int
    of_ceiling: float | None = None
    of_best_peer: float | None = None
    clocks: str = "not read"


class Cold(msgspec.Struct, frozen=True):
    """The medians of first calls in fresh processes, `processes` of each kind.

    Attributes:
        import_s: seconds of importing what the call needs, after torch.
        empty_s, kept_s: seconds of the first call with empty caches, and with those that an earlier process left.
        again_us: microseconds of a call once the kernel is in memory.
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
        spread: (p80 - p20) / median.
        gbs: bandwidth at `median_ms`; None in host time.
        samples_ms: samples of the runs, thinned evenly; each run has as many.
        correct: how its results were compared with the reference.
        first_call_s: seconds of the first call, compiling included.
    """

    name: str
    kind: Literal["ours", "peer", "ceiling"]
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
        """The kept samples of each run, in milliseconds."""
        count = len(self.samples_ms) // max(1, len(self.runs))
        return [self.samples_ms[n * count : (n + 1) * count] for n in range(len(self.runs))] if count else []


class Verdict(msgspec.Struct, frozen=True):
    """A :class:`~forge_core.bench.schema.Target`, and the measured figure: the median over the runs."""

    of: str
    value: float
    met: bool
    at_least: float | None = None
    at_most: float | None = None
    met_from: float | None = None

    @classmethod
    def on(cls, target: Target, value: float) -> Verdict:
        """Whether a measured figure reaches a target."""
        return cls(target.of, round(value, 4), target.met(value), target.at_least, target.at_most, target.met_from)


class CaseRecord(msgspec.Struct, frozen=True):
    """One case; without contenders if `error` is set.

    Attributes:
        package: the import name of the package that declares it.
        read, written, traffic: bytes that must move at least, and why.
        best_peer: the fastest peer by the median over the runs; "" without peers.
        left_out: contenders that did not run, with the reason.
        wrong: peers that gave a wrong result or an error, and which; they have no figures.
        tolerance: how results were compared with the reference.
        floor_ms: the time below which a sample would have been rejected; 0 for none.
        l2: the state of the cache before each launch.
        device: the one of several devices that it ran on; "" for a single one.
        notes: what disturbed the measurement.
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
        """The contender of that name, if it ran."""
        return next((contender for contender in self.contenders if contender.name == name), None)

    @property
    def errors(self) -> list[str]:
        """The case's error, and those of its peers."""
        return [error for error in (self.error, *self.wrong.values()) if error]

    @property
    def shape_text(self) -> str:
        """The shape as it is typed: ``"4096x4096"``."""
        return "x".join(map(str, self.shape))

    @property
    def label(self) -> str:
        """The shape, and the layout unless it is contiguous: ``"4096x4096 permuted"``."""
        return self.shape_text if self.layout == "contiguous" else f"{self.shape_text} {self.layout}"


class ImportRecord(msgspec.Struct, frozen=True):
    """The seconds that an import takes in fresh processes, and their median."""

    module: str
    median_s: float
    samples_s: list[float]
    method: str
    targets: list[Verdict] = []
    error: str = ""


class Record(msgspec.Struct, frozen=True):
    """A run of a suite.

    Attributes:
        date: UTC, ISO 8601.
        timer: ``"device"``, ``"host"``, or ``"cold"``, the first call of a process.
        notes: what a reader must know before the figures.
        warmup: launches of each contender before the first sample, at least.
        empty_pair_us: the duration of an empty pair of events, which is part of every sample; None off the GPU.
        stopwatch: ``"wall"``, or the name of a timer of the GPU.
        interrupted: whether the run was stopped before its end, and did not reach `not_run`.
        devices: the devices that the cases were spread over, where there were several.
        schema_version: version 2 added fields with defaults, so a record of version 1 is read as one of version 2.
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
    schema_version: Literal[1, 2] = SCHEMA_VERSION

    @property
    def errors(self) -> list[str]:
        """The errors of all cases, peers and imports."""
        found = [f"{case.name}: {error}" for case in self.cases for error in case.errors]
        return found + [f"import {entry.module}: {entry.error}" for entry in self.imports if entry.error]

    @property
    def warnings(self) -> list[str]:
        """The notes, and that the run was interrupted, which older records note themselves."""
        done, wanted = len(self.cases), len(self.cases) + len(self.not_run)
        stopped = [f"Interrupted: {done} of {wanted} cases were measured."] if self.interrupted else []
        return list(dict.fromkeys([*self.notes, *stopped]))

    def dumps(self) -> str:
        """The record as JSON: one line for each case, so that a changed case is a changed line."""
        lines = []
        for key in sorted(self.__struct_fields__, key=lambda key: key != "schema_version"):
            value = getattr(self, key)
            text = msgspec.json.encode(value).decode()
            if key in ("cases", "imports") and value:
                text = "[\n  " + ",\n  ".join(msgspec.json.encode(entry).decode() for entry in value) + "\n ]"
            lines.append(f' "{key}": {text}')
        return "{\n" + ",\n".join(lines) + "\n}\n"


def load(path: Path) -> Record:
    """Reads a record; BenchmarkError if the file cannot be read, is no record, or has another schema version."""
    try:
        record = msgspec.json.decode(read_unpacked(path), type=Record)
    except (OSError, msgspec.DecodeError) as error:
        raise BenchmarkError(f"{path}: expected a record of a benchmark: {error}") from error
    return msgspec.structs.replace(record, schema_version=SCHEMA_VERSION)


# --------------------------------------------------------------------------------------------- one record from several


def figures(runs: Sequence[Run], nbytes: int | None) -> dict[str, Any]:
    """The figures of a contender, medians over its runs; `nbytes` is None for times of no bandwidth."""
    spread = round(median((run.p80_ms - run.p20_ms) / (run.median_ms or 1.0) for run in runs), 4)
    found: dict[str, Any] = {"spread": spread}
    for name in ("median_ms", "p20_ms", "p80_ms", "of_ceiling", "of_best_peer"):
        values = [value for run in runs if (value := getattr(run, name)) is not None]
        found[name] = round(median(values), 6 if name.endswith("_ms") else 4) if values else None
    return {**found, "gbs": None if nbytes is None else round(nbytes / (found["median_ms"] * 1e6), 4)}


def thin(samples: Sequence[float], keep: int) -> list[float]:
    """At most `keep` of the samples, evenly over their order, rounded to nanoseconds."""
    step = max(1.0, len(samples) / keep)
    return [round(samples[int(number * step)], 6) for number in range(min(keep, len(samples)))]


def union(records: Sequence[Record], devices: Sequence[str]) -> Record:
    """One record of the shares that several devices measured, the cases in the suite's order."""
    cases = [
        msgspec.structs.replace(case, device=device)
        for row in zip_longest(*(record.cases for record in records))
        for case, device in zip(row, devices, strict=True)
        if case is not None
    ]
    gpus = list(dict.fromkeys(record.environment.gpu for record in records))
    notes = list(dict.fromkeys(note for record in records for note in record.notes))
    if len(gpus) > 1:
        notes.append(f"The devices differ: {', '.join(gpus)}.")
    return msgspec.structs.replace(
        records[0],
        notes=notes,
        cases=cases,
        imports=[entry for record in records for entry in record.imports],
        seconds=max(record.seconds for record in records),
        interrupted=any(record.interrupted for record in records),
        not_run=[name for record in records for name in record.not_run],
        devices=list(devices),
    )


def pool(records: Sequence[Record]) -> Record:
    """One record of several of the same cases, with the runs of all."""
    cases = [
        combined([found for record in records for found in record.cases if found.name == case.name])
        for case in records[0].cases
    ]
    return msgspec.structs.replace(records[0], cases=cases, repeats=sum(record.repeats for record in records))


def combined(parts: Sequence[CaseRecord], targets: Iterable[Target] = ()) -> CaseRecord:
    """One record of a case from those of its runs: the ratios within each run, and the medians over the runs.

    An error in one run leaves no figures, and a contender that was wrong in one run has none of the others either.
    """
    error = next((part.error for part in parts if part.error), "")
    wrong = {name: text for part in parts for name, text in part.wrong.items()}
    found: dict[str, list[ContenderRecord]] = {}
    for contender in [] if error else parts[0].contenders:
        same = [one for part in parts if (one := part.contender(contender.name)) is not None]
        if contender.name not in wrong and len(same) == len(parts):
            found[contender.name] = same
    runs = {name: [run for part in same for run in part.runs] for name, same in found.items()}
    times = {name: [run.median_ms for run in own] for name, own in runs.items()}
    peers = [name for name, same in found.items() if same[0].kind == "peer"]
    nbytes, host = parts[0].read + parts[0].written, all(same[0].gbs is None for same in found.values())
    rivals = {**times, BEST_PEER: list(map(min, zip(*(times[name] for name in peers), strict=True)))}
    rivals[BANDWIDTH] = [nbytes / 1e6] * len(times.get(OURS, ()))  # the time at 1 GB/s, in milliseconds

    def ratios(name: str, other: str) -> list[float]:
        """Each run's bandwidth over another contender's (of host time, time over time); none if that did not run."""
        pairs = zip(times[name], rivals.get(other, ()), strict=False)
        return [mine / theirs if host else theirs / mine for mine, theirs in pairs]

    def contender_of(name: str) -> ContenderRecord:
        ceiling, best = ([round(ratio, 4) for ratio in ratios(name, other)] for other in (CEILING, BEST_PEER))
        own = [
            msgspec.structs.replace(run, of_ceiling=of_ceiling, of_best_peer=of_best_peer)
            for run, of_ceiling, of_best_peer in zip_longest(runs[name], ceiling, best)
        ]
        taken = [samples for part in found[name] for samples in part.samples_by_run()]
        fewest = min(map(len, taken), default=0)
        return msgspec.structs.replace(
            found[name][0],
            **figures(own, None if host else nbytes),
            runs=own,
            samples_ms=[sample for samples in taken for sample in thin(samples, fewest)],
        )

    contenders = {name: contender_of(name) for name in found}
    reached = [(target, ratios(OURS, target.of)) for target in targets if OURS in found]
    return msgspec.structs.replace(
        parts[0],
        contenders=list(contenders.values()),
        best_peer=min(peers, key=lambda name: contenders[name].median_ms, default=""),
        wrong=wrong,
        targets=[Verdict.on(target, median(ours)) for target, ours in reached if ours],
        error=error,
        notes=list(dict.fromkeys(note for part in parts for note in part.notes)),
    )
