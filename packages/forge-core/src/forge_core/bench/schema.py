"""The file ``suites.yaml``: which cases a suite runs, against whom, and what it is to reach.

    version: 1
    suites:
      week0:
        about: What the suite is for, in one sentence.
        peers: [eager, compile]
        cases:
          - {operator: transpose, shapes: [4096x4096, 8191x8193], dtypes: [float32, int8]}
          - {operator: transpose, shapes: [2048x2048], dtypes: [float32], variants: all}
        targets:
          - {operator: transpose, of: ceiling, at_least: 0.97, shapes: [4096x4096], dtypes: [float32]}

Every mistake is an error that names file, suite and entry, and says what was expected: a misspelt key, an unknown
operator, dtype, layout, variant or peer, a case listed twice, a target that no case can reach.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from forge_core import dtypes
from forge_core.bench.declare import Bench, Case
from forge_core.bench.inputs import LAYOUTS
from forge_core.errors import BenchmarkError

if TYPE_CHECKING:
    import torch

__all__ = [
    "ALL",
    "AUTO",
    "BANDWIDTH",
    "BEST_PEER",
    "CEILING",
    "CaseGroup",
    "Suite",
    "Target",
    "load_suites",
    "parse_shape",
]

AUTO = "auto"
ALL = "all"
CEILING = "ceiling"
BANDWIDTH = "GB/s"
BEST_PEER = "best_peer"
VERSION = 1


class CaseGroup(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Cases that differ in shape and dtype only.

    Attributes:
        operator: the operator's name.
        shapes: for example ``"4096x4096"``.
        dtypes: for example ``"bfloat16"``.
        layout: how the input lies in memory.
        variants: the variants to run beside each other, or ``"all"``: auto and every variant there is.
        peers: the peers; without it, the suite's.
    """

    operator: str
    shapes: list[str | int]
    dtypes: list[str]
    layout: str = LAYOUTS[0]
    variants: list[str] | Literal["all"] = msgspec.field(default_factory=lambda: [AUTO])
    peers: list[str] | None = None


class Target(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """What ``auto`` is to reach on some cases.

    Attributes:
        operator: the operator's name; or, with `of` ``import``, the module's.
        of: ``"ceiling"``, ``"best_peer"``, a peer's name, ``"GB/s"``, or ``"import"``.
        at_least: the least bandwidth, as a share of that of `of`; or in GB/s itself.
        at_most: the most time: host time as a multiple of that of `of`, or seconds of import.
        met_from: the measured share that counts as `at_least` reached; without it, `at_least` itself.
        shapes: the cases it holds for; without it, all.
        dtypes: likewise.
    """

    operator: str
    of: str
    at_least: float | None = None
    at_most: float | None = None
    met_from: float | None = None
    shapes: list[str | int] | None = None
    dtypes: list[str] | None = None

    def applies(self, case: Case) -> bool:
        """Whether the target is one for this case."""
        if self.operator != case.operator or self.of == "import":
            return False
        if self.shapes is not None and case.shape not in [parse_shape(shape) for shape in self.shapes]:
            return False
        return self.dtypes is None or case.dtype in [dtypes.parse(name) for name in self.dtypes]

    def met(self, value: float) -> bool:
        """Whether a measured value reaches the target."""
        if self.at_most is not None:
            return value <= self.at_most
        at_least = self.at_least if self.met_from is None else self.met_from
        return at_least is not None and value >= at_least


class Suite(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One suite.

    Attributes:
        about: one sentence.
        cases: what to run.
        peers: whom to run against, unless a group of cases names its own.
        timer: ``"device"`` or ``"host"``, what the calling thread pays.
        cpu: whether it is run on the CPU, where there is no GPU, without being told to.
        imports: modules whose import is timed.
        targets: what is to be reached.
        targets_for: the GPU that the targets are meant for, for example ``"NVIDIA H200"``; on another they are not
            judged.
    """

    about: str
    cases: list[CaseGroup] = []
    peers: list[str] = []
    timer: Literal["device", "host"] = "device"
    cpu: bool = False
    imports: list[str] = []
    targets: list[Target] = []
    targets_for: str = ""


def parse_shape(text: str | int) -> tuple[int, ...]:
    """A shape from ``"4096x4096"``.

    Raises:
        ValueError: anything else.
    """
    if not re.fullmatch(r"\d+(x\d+)*", str(text)):
        raise ValueError(f"expected a shape such as 4096x4096, got {text!r}")
    return tuple(int(size) for size in str(text).split("x"))


def load_suites(bench: Bench) -> dict[str, Suite]:
    """Reads and checks the suites of a package.

    Raises:
        BenchmarkError: the file cannot be read, or is not what is expected.
    """
    path = bench.suites
    try:
        raw = msgspec.yaml.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise BenchmarkError(f"{_shown(path)}: {error}") from error
    if not isinstance(raw, dict) or raw.get("version") != VERSION or not isinstance(raw.get("suites"), dict):
        raise BenchmarkError(f"{_shown(path)}: expected 'version: {VERSION}' and a mapping 'suites'.")
    if unknown := sorted(set(raw) - {"version", "suites"}):
        raise BenchmarkError(f"{_shown(path)}: expected the keys version and suites only, got {', '.join(unknown)}.")
    return {str(name): _suite(bench, str(name), content) for name, content in raw["suites"].items()}


def _shown(path: Path) -> str:
    # The package's folder and the file name it well enough; the folders above differ from machine to machine.
    return "/".join(path.parts[-2:])


def _suite(bench: Bench, name: str, content: Any) -> Suite:
    place = f"{_shown(bench.suites)}: suite {name}"
    if name in bench.by_name:
        raise BenchmarkError(f"{place}: the name is an operator's; a suite needs one of its own.")
    if isinstance(content, dict):
        # Entry by entry, so that the message has the entry's number; the whole afterwards, for the other keys.
        for key, kind in (("cases", CaseGroup), ("targets", Target)):
            entries = content.get(key)
            for number, entry in enumerate(entries if isinstance(entries, list) else [], start=1):
                _convert(entry, kind, f"{place}, {key} entry {number}")
    suite: Suite = _convert(content, Suite, place)
    names: set[str] = set()
    cases = []
    for number, group in enumerate(suite.cases, start=1):
        where = f"{place}, cases entry {number}"
        for case in expand(group, bench, where, suite.peers):
            if case.name in names:
                raise BenchmarkError(f"{where}: expected each case once, got {case.name} again.")
            names.add(case.name)
            cases.append((case, suite.peers if group.peers is None else group.peers))
    for number, target in enumerate(suite.targets, start=1):
        _check_target(target, suite, cases, f"{place}, targets entry {number}")
    return suite


def _convert(entry: Any, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        raise BenchmarkError(f"{where}: {error}") from error


def _parse_each(entries: list[Any], parse: Any, where: str) -> list[Any]:
    try:
        return [parse(entry) for entry in entries]
    except ValueError as error:
        raise BenchmarkError(f"{where}: {error}") from error


def _known(what: str, names: list[str], known: list[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise BenchmarkError(f"{where}: expected one of the {what}s {', '.join(known) or '(none)'}, got {name!r}.")


def expand(group: CaseGroup, bench: Bench, where: str, suite_peers: list[str]) -> list[Case]:
    """The cases of a group, each shape with each dtype.

    Raises:
        BenchmarkError: an unknown operator, variant, peer, layout, dtype or shape.
    """
    _known("operator", [group.operator], list(bench.by_name), where)
    operator = bench.by_name[group.operator]
    _known("layout", [group.layout], list(LAYOUTS), where)
    _known("peer", suite_peers if group.peers is None else group.peers, [peer.name for peer in operator.peers], where)
    if group.variants != ALL:
        _known("variant", list(group.variants), [AUTO, *operator.variants()], where)
    shapes: list[tuple[int, ...]] = _parse_each(group.shapes, parse_shape, where)
    kinds: list[torch.dtype] = _parse_each(group.dtypes, dtypes.parse, where)
    return [Case(group.operator, shape, dtype, group.layout) for shape in shapes for dtype in kinds]


def _check_target(target: Target, suite: Suite, cases: list[tuple[Case, list[str]]], where: str) -> None:
    if (target.at_least is None) == (target.at_most is None):
        raise BenchmarkError(f"{where}: expected either at_least or at_most.")
    if target.of == "import":
        _known("imported module", [target.operator], suite.imports, where)
        return
    _parse_each(target.shapes or [], parse_shape, where)
    _parse_each(target.dtypes or [], dtypes.parse, where)
    held = [peers for case, peers in cases if target.applies(case)]
    if not held:
        raise BenchmarkError(f"{where}: expected a target for cases of this suite, got one that applies to none.")
    if target.of in (CEILING, BANDWIDTH):
        if suite.timer == "host":
            raise BenchmarkError(f"{where}: host time has no {target.of}; expected a peer's name.")
        return
    for peers in held:
        _known("peer", [target.of], [BEST_PEER, *peers] if peers else [], where)
