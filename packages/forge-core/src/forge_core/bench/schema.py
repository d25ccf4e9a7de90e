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

Every mistake is an error that names file, line, suite and entry, and says what was expected: a misspelt key, an unknown
operator, dtype, layout, variant or peer, a case listed twice, a target that no case can reach.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import yaml

from forge_core import dtypes
from forge_core.bench.declare import Bench, Case
from forge_core.bench.inputs import LAYOUTS
from forge_core.errors import BenchmarkError

__all__ = [
    "ALL",
    "AUTO",
    "BANDWIDTH",
    "BEST_PEER",
    "CEILING",
    "OURS",
    "CaseGroup",
    "Suite",
    "Target",
    "load_suites",
    "our_name",
    "parse_shape",
    "suites_of",
]

#: The name of our operator's `auto` among the contenders; a variant is ``forge:<variant>``.
OURS = "forge"
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
        timer: ``"device"``; ``"host"``, what the calling thread pays; or ``"cold"``, what a process's first call costs.
        cpu: whether it is run on the CPU, where there is no GPU, without being told to.
        imports: modules whose import is timed.
        targets: what is to be reached.
        targets_for: the GPU that the targets are meant for, for example ``"NVIDIA H200"``; on another they are not
            judged.
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


def parse_shape(text: str | int) -> tuple[int, ...]:
    """A shape from ``"4096x4096"``.

    Raises:
        ValueError: anything else.
    """
    if not re.fullmatch(r"\d+(x\d+)*", str(text)):
        raise ValueError(f"expected a shape such as 4096x4096, got {text!r}")
    return tuple(int(size) for size in str(text).split("x"))


def line_of(root: yaml.Node | None, *path: str | int) -> int:
    """The line of a key or an entry of a YAML document, from 1.

    Args:
        root: the composed document; None for an empty text, which has line 1 only.
        *path: keys of mappings, and positions in sequences from 0.  Of a path that leads nowhere the last part that
            exists counts.
    """
    node, line = root, 1
    for key in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == str(key)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
            line = node.start_mark.line + 1
        else:
            break
    return line


def path_in(message: str) -> list[str | int]:
    """The path that a message of msgspec ends in, such as ``at `$.cases[0].shapes```, and the field it speaks of."""
    found = re.search(r"at `\$([^`]*)`", message)
    parts = re.findall(r"\.(\w+)|\[(\d+)\]", found[1] if found else "")
    unknown = re.search(r"unknown field `(\w+)`", message)
    return [*(name or int(index) for name, index in parts), *([unknown[1]] if unknown else [])]


@dataclass(frozen=True)
class Place:
    """Where an entry stands, for messages.

    Attributes:
        words: for example ``"suite smoke, cases entry 2"``.
        file: the file, shortened, and its composed text; None for an entry of no file.
        keys: the path to the entry.
    """

    words: str
    file: tuple[str, yaml.Node | None] | None = None
    keys: tuple[str | int, ...] = ()

    def error(self, message: str, *keys: str | int) -> BenchmarkError:
        """The error that says where the entry, or one of its keys, stands, and what is wrong with it."""
        text = f"{self.words}: {message}" if self.words else message
        if self.file is None:
            return BenchmarkError(text)
        line = line_of(self.file[1], *self.keys, *keys, *path_in(message))
        return BenchmarkError(f"{self.file[0]}:{line}: {text}")

    def known(self, key: str, what: str, names: list[str], known: list[str]) -> None:
        """Raises the error of a key's names, unless all are known."""
        for name in names:
            if name not in known:
                raise self.error(f"expected one of the {what}s {', '.join(known) or '(none)'}, got {name!r}.", key)

    def parsed(self, key: str, entries: list[Any] | None, parse: Callable[[Any], Any]) -> list[Any]:
        """A key's entries, parsed."""
        try:
            return [parse(entry) for entry in entries or []]
        except ValueError as error:
            raise self.error(str(error), key) from error


def load_suites(bench: Bench) -> dict[str, Suite]:
    """Reads and checks the suites of a package.

    Raises:
        BenchmarkError: the file cannot be read, or is not what is expected; the message names the line.
    """
    path = bench.suites
    # The package's folder and the file name it well enough; the folders above differ from machine to machine.
    shown = "/".join(path.parts[-2:])
    try:
        text = path.read_text(encoding="utf-8")
        raw = msgspec.yaml.decode(text)
        file = (shown, yaml.compose(text, Loader=yaml.SafeLoader))
    except (OSError, msgspec.DecodeError, yaml.YAMLError) as error:
        raise BenchmarkError(f"{shown}: {error}") from error
    whole = Place("", file)
    if not isinstance(raw, dict) or raw.get("version") != VERSION or not isinstance(raw.get("suites"), dict):
        wrong = "suites" if isinstance(raw, dict) and raw.get("version") == VERSION else "version"
        raise whole.error(f"expected 'version: {VERSION}' and a mapping 'suites'.", wrong)
    if unknown := sorted(set(raw) - {"version", "suites"}):
        raise whole.error(f"expected the keys version and suites only, got {', '.join(unknown)}.", unknown[0])
    return {
        str(name): _suite(bench, str(name), content, Place(f"suite {name}", file, ("suites", name)))
        for name, content in raw["suites"].items()
    }


def _suite(bench: Bench, name: str, content: Any, place: Place) -> Suite:
    if name in bench.by_name:
        raise place.error("the name is an operator's; a suite needs one of its own.")

    def entry(key: str, index: int) -> Place:
        return Place(f"{place.words}, {key} entry {index + 1}", place.file, (*place.keys, key, index))

    try:
        suite = msgspec.convert(content, Suite)
    except msgspec.ValidationError as error:
        match path_in(str(error)):
            case ["cases" | "targets" as key, int(index), *_]:
                words = entry(key, index).words
            case _:
                words = place.words
        raise replace(place, words=words).error(str(error)) from error
    names: set[str] = set()
    cases = []
    for index, group in enumerate(suite.cases):
        where = entry("cases", index)
        for case in expand(group, bench, where, suite.peers):
            if case.name in names:
                raise where.error(f"expected each case once, got {case.name} again.")
            names.add(case.name)
            cases.append((case, suite.peers if group.peers is None else group.peers))
    for index, target in enumerate(suite.targets):
        _check_target(target, suite, cases, entry("targets", index))
    return suite


def expand(group: CaseGroup, bench: Bench, where: Place | str, suite_peers: list[str]) -> list[Case]:
    """The cases of a group, each shape with each dtype.

    Args:
        group: the group.
        bench: the package's declaration.
        where: where the group stands, for messages.
        suite_peers: the peers of a group that names none.

    Raises:
        BenchmarkError: an unknown operator, variant, peer, layout, dtype or shape.
    """
    place = Place(where) if isinstance(where, str) else where
    place.known("operator", "operator", [group.operator], list(bench.by_name))
    operator = bench.by_name[group.operator]
    place.known("layout", "layout", [group.layout], list(LAYOUTS))
    peers = suite_peers if group.peers is None else group.peers
    place.known("peers", "peer", peers, [peer.name for peer in operator.peers])
    if group.variants != ALL:
        place.known("variants", "variant", list(group.variants), [AUTO, *operator.variants()])
    shapes = place.parsed("shapes", group.shapes, parse_shape)
    kinds = place.parsed("dtypes", group.dtypes, dtypes.parse)
    return [Case(group.operator, shape, dtype, group.layout) for shape in shapes for dtype in kinds]


def _check_target(target: Target, suite: Suite, cases: list[tuple[Case, list[str]]], where: Place) -> None:
    if (target.at_least is None) == (target.at_most is None):
        raise where.error("expected either at_least or at_most.")
    if target.of == "import":
        where.known("operator", "imported module", [target.operator], suite.imports)
        return
    where.parsed("shapes", target.shapes, parse_shape)
    where.parsed("dtypes", target.dtypes, dtypes.parse)
    held = [peers for case, peers in cases if target.applies(case)]
    if not held:
        raise where.error("expected a target for cases of this suite, got one that applies to none.")
    if target.of in (CEILING, BANDWIDTH):
        if suite.timer != "device":
            raise where.error(f"{suite.timer} time has no {target.of}; expected a peer's name.")
        return
    for peers in held:
        where.known("of", "peer", [target.of], [BEST_PEER, *peers] if peers else [])


def suites_of(bench: Bench) -> dict[str, Suite]:
    """The suites of a package, by name: those in its file, and two that no package has to write.

    `full` is every case of its suites, and `cold` its operators' first calls; a package that declares a suite of that
    name has its own.

    Raises:
        BenchmarkError: the file cannot be read, or is not what is expected.
    """
    declared = load_suites(bench)
    # `smoke` is looked at last, so that a case of it has the peers and variants that another suite gives it.
    timed = [declared[name] for name in sorted(declared, key=lambda name: name == "smoke")]
    timed = [suite for suite in timed if suite.timer == "device"]
    full = Suite(
        about="Every case of every suite that times the device.",
        cases=[
            msgspec.structs.replace(group, peers=suite.peers if group.peers is None else group.peers)
            for suite in timed
            for group in suite.cases
        ],
        targets=[target for suite in timed for target in suite.targets],
        targets_for=next((suite.targets_for for suite in timed if suite.targets_for), ""),
    )
    cold = Suite(
        about="What the first call of a process costs, with empty caches and with kept ones, and what the next costs.",
        cases=[
            CaseGroup(
                operator=operator.name,
                shapes=list(operator.default_shapes[:1]),
                dtypes=list(operator.default_dtypes[:1]),
                peers=[peer.name for peer in operator.peers],
            )
            for operator in bench.operators
        ],
        timer="cold",
        cpu=True,
    )
    return {**declared, **{name: s for name, s in (("full", full), ("cold", cold)) if name not in declared}}
