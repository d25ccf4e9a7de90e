"""The file ``suites.yaml``: which cases a suite runs, against which peers, and what it is to reach.

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

An error names the file, the suite and the entry, and says what was expected: a misspelt key, an unknown operator,
dtype, layout, variant or peer, a case listed twice, a target that applies to no case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
import yaml

from forge_core import dtypes
from forge_core.bench import Bench, Case, OperatorBench
from forge_core.cli import did_you_mean
from forge_core.errors import BenchmarkError
from forge_core.testing.inputs import LAYOUTS

#: The name of our operator's `auto` among the contenders; a variant is ``forge:<variant>``.
OURS = "forge"
AUTO = "auto"
ALL = "all"
CEILING = "ceiling"
BANDWIDTH = "GB/s"
BEST_PEER = "best_peer"


class CaseGroup(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Cases that differ in shape (``"4096x4096"``) and dtype (``"bfloat16"``) only.

    `variants` run beside each other; ``"all"`` is auto and every variant.  Without `peers`, the suite's.
    """

    operator: str
    shapes: list[str | int]
    dtypes: list[str]
    layout: str = LAYOUTS[0]
    variants: list[str] | Literal["all"] = msgspec.field(default_factory=lambda: [AUTO])
    peers: list[str] | None = None


class Target(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """What ``auto`` is to reach on the cases of some shapes and dtypes; by default, of all.

    Attributes:
        operator: the operator's name; or, with `of` ``import``, the module's.
        of: ``"ceiling"``, ``"best_peer"``, a peer's name, ``"GB/s"``, or ``"import"``.
        at_least: the least bandwidth, as a share of that of `of`; or in GB/s itself.
        at_most: the most time: host time as a multiple of that of `of`, or seconds of import.
        met_from: the measured share that counts as `at_least` reached; by default `at_least`.
    """

    operator: str
    of: str
    at_least: float | None = None
    at_most: float | None = None
    met_from: float | None = None
    shapes: list[str | int] | None = None
    dtypes: list[str] | None = None

    def applies(self, case: Case) -> bool:
        """Whether the target is for this case."""
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


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: Literal[1]
    suites: dict[str, Any]


class Suite(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One suite.

    Attributes:
        timer: ``"device"``; ``"host"``, the time of the calling thread; or ``"cold"``, a process's first call.
        cpu: whether it runs on the CPU by default where there is no GPU.
        imports: modules whose import is timed.
        targets_for: the GPU of the targets, for example ``"NVIDIA H200"``; on others they are not judged.
    """

    about: str
    cases: list[CaseGroup] = []
    peers: list[str] = []
    timer: Literal["device", "host", "cold"] = "device"
    cpu: bool = False
    imports: list[str] = []
    targets: list[Target] = []
    targets_for: str = ""


def our_name(variant: str) -> str:
    """A variant's name among the contenders."""
    return OURS if variant == AUTO else f"{OURS}:{variant}"


def variant_of(name: str) -> str:
    """The variant of a contender of that name; "" for a peer and for the ceiling."""
    first, _, variant = name.partition(":")
    return (variant or AUTO) if first == OURS else ""


def parse_shape(text: str | int) -> tuple[int, ...]:
    """A shape from ``"4096x4096"``; ValueError for anything else."""
    if not re.fullmatch(r"\d+(x\d+)*", str(text)):
        raise ValueError(f"expected a shape such as 4096x4096, got {text!r}")
    return tuple(int(size) for size in str(text).split("x"))


def check_known(
    where: str, what: str, names: Iterable[str], known: Iterable[str], error: type[Exception] = BenchmarkError
) -> None:
    """Raises an error that lists the known names, with the nearest one, unless all `names` are known."""
    known = list(dict.fromkeys(known))
    for name in names:
        if name not in known:
            text = f"{where}: no {what} {name!r}; {what}s: {', '.join(known) or 'none'}"
            raise error(". ".join(filter(None, [text, did_you_mean(name, known)])))


def load_suites(bench: Bench) -> dict[str, Suite]:
    """Reads and checks the suites of a package; BenchmarkError if the file is not what is expected."""
    shown = "/".join(bench.suites.parts[-2:])  # the folders above differ from machine to machine
    try:
        file = msgspec.yaml.decode(bench.suites.read_bytes(), type=_File)
    except (OSError, msgspec.DecodeError, yaml.YAMLError) as error:
        raise BenchmarkError(f"{shown}: {error}") from error
    return {name: _suite(bench, name, content, f"{shown}, suite {name}") for name, content in file.suites.items()}


def _suite(bench: Bench, name: str, content: Any, where: str) -> Suite:
    if name in bench.by_name:
        raise BenchmarkError(f"{where}: the name is an operator's; a suite needs one of its own")
    try:
        suite = msgspec.convert(content, Suite)
    except msgspec.ValidationError as error:
        raise BenchmarkError(f"{where}: {error}") from error
    groups = [msgspec.structs.replace(g, peers=suite.peers if g.peers is None else g.peers) for g in suite.cases]
    suite = msgspec.structs.replace(suite, cases=groups)
    cases: dict[str, tuple[Case, list[str]]] = {}
    for index, group in enumerate(groups):
        entry = f"{where}, cases[{index}]"
        for case in expand(group, bench, entry):
            if case.name in cases:
                raise BenchmarkError(f"{entry}: expected each case once, got {case.name} again")
            cases[case.name] = case, group.peers or []
    for index, target in enumerate(suite.targets):
        _check_target(target, suite, cases.values(), f"{where}, targets[{index}]")
    return suite


def expand(group: CaseGroup, bench: Bench, where: str) -> list[Case]:
    """The cases of a group, each shape with each dtype; BenchmarkError for an unknown name, with its place `where`."""
    check_known(where, "operator", [group.operator], bench.by_name)
    operator = bench.by_name[group.operator]
    check_known(where, "layout", [group.layout], LAYOUTS)
    check_known(where, "peer", group.peers or [], [peer.name for peer in operator.peers])
    check_known(where, "variant", [] if group.variants == ALL else group.variants, [AUTO, *operator.variants()])
    try:
        shapes = [parse_shape(shape) for shape in group.shapes]
        kinds = [dtypes.parse(dtype) for dtype in group.dtypes]
    except ValueError as error:
        raise BenchmarkError(f"{where}: {error}") from error
    return [Case(group.operator, shape, dtype, group.layout) for shape in shapes for dtype in kinds]


def _check_target(target: Target, suite: Suite, cases: Iterable[tuple[Case, list[str]]], where: str) -> None:
    if (target.at_least is None) == (target.at_most is None):
        raise BenchmarkError(f"{where}: expected either at_least or at_most")
    if target.of == "import":
        check_known(where, "imported module", [target.operator], suite.imports)
        return
    try:
        peers = [peers for case, peers in cases if target.applies(case)]
    except ValueError as error:
        raise BenchmarkError(f"{where}: {error}") from error
    if not peers:
        raise BenchmarkError(f"{where}: expected a target for cases of this suite, got one that applies to none")
    if target.of not in (CEILING, BANDWIDTH):
        for known in peers:
            check_known(where, "peer", [target.of], [BEST_PEER, *known] if known else [])
    elif suite.timer != "device":
        raise BenchmarkError(f"{where}: {suite.timer} time has no {target.of}; expected a peer's name")


def operator_group(operator: OperatorBench, shapes: Iterable[str], kinds: Iterable[str]) -> CaseGroup:
    """Cases of an operator against all of its peers."""
    peers = [peer.name for peer in operator.peers]
    return CaseGroup(operator=operator.name, shapes=list(shapes), dtypes=list(kinds), peers=peers)


def suites_of(bench: Bench) -> dict[str, Suite]:
    """The suites in a package's file, and, unless they are declared there, two that are derived.

    `full` is every case of its suites, and `cold` its operators' first calls.
    """
    declared = load_suites(bench)
    # `smoke` comes last, so that a case of it has the peers and variants that another suite gives it.
    timed = [declared[name] for name in sorted(declared, key=lambda name: name == "smoke")]
    timed = [suite for suite in timed if suite.timer == "device"]
    full = Suite(
        about="Every case of every suite that times the device.",
        cases=[group for suite in timed for group in suite.cases],
        targets=[target for suite in timed for target in suite.targets],
        targets_for=next((suite.targets_for for suite in timed if suite.targets_for), ""),
    )
    cold = Suite(
        about="What the first call of a process costs, with empty caches and with kept ones, and what the next costs.",
        cases=[operator_group(o, o.default_shapes[:1], o.default_dtypes[:1]) for o in bench.operators],
        timer="cold",
        cpu=True,
    )
    return declared | {name: suite for name, suite in (("full", full), ("cold", cold)) if name not in declared}
