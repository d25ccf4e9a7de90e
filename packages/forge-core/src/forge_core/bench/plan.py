"""From the command line to a plan of what is run: discovers packages, resolves suites and operators, selects cases."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from click import UsageError

from forge_core import dtypes
from forge_core.bench import Bench, Case, OperatorBench, Peer
from forge_core.bench.schema import (
    ALL,
    AUTO,
    Suite,
    Target,
    check_known,
    expand,
    operator_group,
    parse_shape,
    suites_of,
)
from forge_core.cli import did_you_mean
from forge_core.errors import BenchmarkError

#: The entry-point group in which packages name their :class:`~forge_core.bench.Bench`.
GROUP = "forge.bench"


@dataclass(frozen=True)
class Selection:
    """The options that select in a suite, as typed; an empty one selects all."""

    variants: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannedCase:
    """One case, with its contenders and targets.

    Attributes:
        lenient: variants that came from "all": one that does not support the case is left out, instead of an error.
        peers_asked: whether the peers were asked for by name: then a missing requirement is an error.
    """

    bench: Bench
    operator: OperatorBench
    case: Case
    variants: tuple[str, ...]
    peers: tuple[Peer, ...]
    targets: tuple[Target, ...] = ()
    lenient: frozenset[str] = frozenset()
    peers_asked: bool = False


@dataclass(frozen=True)
class Run:
    """What one call of the bench measures; see :class:`~forge_core.bench.schema.Suite`.

    `imports` has the targets of each module, `packages` the import names of those that declare the cases.
    """

    name: str
    cases: tuple[PlannedCase, ...]
    timer: str = "device"
    cpu: bool = False
    imports: tuple[tuple[str, tuple[Target, ...]], ...] = ()
    targets_for: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


def discover() -> list[Bench]:
    """The declarations of all installed packages.

    Raises:
        BenchmarkError: an entry point names something that is not a :class:`Bench`, or cannot be imported.
    """
    found = []
    for entry in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        where = f"entry point {entry.name} = {entry.value} of {GROUP}"
        try:
            bench = entry.load()
        except ImportError as error:
            raise BenchmarkError(
                f"{where} cannot be imported ({error}): what is installed and its sources do not belong together; "
                "install it again"
            ) from error
        if not isinstance(bench, Bench):
            raise BenchmarkError(f"{where}: expected a forge_core.bench.Bench, got {type(bench).__name__}")
        found.append(bench)
    return found


def plan(benches: Sequence[Bench], name: str, selection: Selection, *, commands: Iterable[str] = ()) -> Run:
    """Selects the cases of a suite, of all packages that have it, or of an operator.

    `commands` are other names that the user may have meant, for the message.

    Raises:
        UsageError: no such suite, operator, variant, shape, dtype or peer.
        BenchmarkError: a ``suites.yaml`` is not what is expected.
    """
    benches = packages_named(benches, selection.packages)
    try:
        shapes = [parse_shape(text) for text in selection.shapes]
        kinds = [dtypes.parse(text) for text in selection.dtypes]
    except ValueError as error:
        raise UsageError(str(error)) from None
    tables = [(bench, suites_of(bench)) for bench in benches]
    found = [(bench, table[name]) for bench, table in tables if name in table]
    for bench in benches:
        if not found and (operator := bench.by_name.get(name)):
            chosen = selection.shapes or operator.default_shapes, selection.dtypes or operator.default_dtypes
            found = [(bench, Suite(about=name, cases=[operator_group(operator, *chosen)], cpu=True))]
    if not found:
        suites = sorted({suite for _, table in tables for suite in table})
        operators = sorted({operator for bench in benches for operator in bench.by_name})
        text = (
            f"no suite and no operator is named {name!r}; suites: {', '.join(suites) or 'none'}; "
            f"operators: {', '.join(operators) or 'none'}. {did_you_mean(name, [*commands, *suites, *operators])}"
        )
        raise UsageError(text.removesuffix(". "))
    cases = [
        planned
        for planned in _planned(name, found, selection)
        if (not shapes or planned.case.shape in shapes) and (not kinds or planned.case.dtype in kinds)
    ]
    imports = {
        module: tuple(target for target in suite.targets if target.of == "import" and target.operator == module)
        for _, suite in found
        for module in suite.imports
    }
    if not cases and (shapes or kinds or selection.operators or not imports):
        raise UsageError(
            f"suite {name} has no case of shape {' or '.join(selection.shapes) or 'any'} and dtype "
            f"{' or '.join(selection.dtypes) or 'any'}; name an operator to measure any shape and dtype"
        )
    (timer, *others) = sorted({suite.timer for _, suite in found})
    if others:
        raise BenchmarkError(f"suite {name} is declared with different timers: {', '.join([timer, *others])}")
    return Run(
        name=name,
        cases=tuple(cases),
        timer=timer,
        cpu=all(suite.cpu for _, suite in found),
        imports=() if selection.operators else tuple(imports.items()),
        targets_for=tuple({suite.targets_for for _, suite in found if suite.targets_for}),
        packages=tuple(bench.package for bench, _ in found),
    )


def names_of(bench: Bench) -> set[str]:
    """A package's names: its week, import name, distribution, and folder, ``week2-softmax``."""
    distribution = bench.package.replace("_", "-")
    return {bench.name, bench.package, distribution, distribution.removeprefix("forge-")}


def packages_named(benches: Sequence[Bench], names: Sequence[str]) -> list[Bench]:
    """The packages of these names (see :func:`names_of`), all for none; UsageError for an unknown one."""
    known = {bench.name: names_of(bench) for bench in benches}
    unknown = [name for name in names if not any(name in own for own in known.values())]
    check_known("benchmarks", "package", unknown, known, UsageError)
    return [bench for bench in benches if not names or known[bench.name] & set(names)]


def _planned(name: str, found: Sequence[tuple[Bench, Suite]], selection: Selection) -> Iterator[PlannedCase]:
    operators = [bench.by_name[group.operator] for bench, suite in found for group in suite.cases]
    # A selected name has to belong to at least one operator; it then selects in the operators that have it.
    for what, names, known in (
        ("operator", selection.operators, [operator.name for operator in operators]),
        ("variant", selection.variants, [AUTO, *(v for operator in operators for v in operator.variants()), ALL]),
        ("peer", selection.peers, [peer.name for operator in operators for peer in operator.peers]),
    ):
        check_known(name, what, names, known, UsageError)
    seen = set()
    for bench, suite in found:
        for group in suite.cases:
            operator = bench.by_name[group.operator]
            every = [AUTO, *operator.variants()]
            chosen = [variant for variant in selection.variants if variant in (*every, ALL)]
            wanted = chosen if selection.variants else group.variants
            if operator.name not in (selection.operators or [operator.name]) or (selection.variants and not chosen):
                continue
            asked = selection.peers or group.peers or ()
            peers = tuple(peer for name in dict.fromkeys(asked) if (peer := operator.peer(name)) is not None)
            variants = tuple(every if ALL in wanted else dict.fromkeys(wanted))
            lenient = frozenset(every[1:] if ALL in wanted else ())
            for case in expand(group, bench, f"suite {name}"):
                # A derived suite may hold a case of several suites: the first one decides.
                if (bench.name, case.name) not in seen:
                    seen.add((bench.name, case.name))
                    targets = tuple(target for target in suite.targets if target.applies(case))
                    yield PlannedCase(bench, operator, case, variants, peers, targets, lenient, bool(selection.peers))


# ----------------------------------------------------------------------------------- the options --device and --devices


def devices_of(device: str | None, devices: str | None, run: Run) -> list[torch.device]:
    """The devices that the options name; by default the first GPU, or the CPU if the run allows it.

    Raises:
        UsageError: an option names no device, or one GPU twice, or both were given.
        BenchmarkError: the machine does not have the device.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device is not None and devices is not None:
        raise UsageError("--device and --devices were given: expected one of them")
    if device is None and devices is None and not count and not run.cpu:
        raise BenchmarkError(
            f"{run.name} needs a CUDA GPU: No GPU devices found. With --device cpu the reference is timed on the "
            "CPU instead"
        )
    if devices == "all":
        names = [f"cuda:{index}" for index in range(max(1, count))]
    else:
        names = [device or ("cuda" if count else "cpu")] if devices is None else devices.split(",")
    found = [_parsed(name.strip()) for name in names]
    # The CPU may stand for several devices, to try the option without GPUs.
    if len(set(found)) < len(found) and set(found) != {torch.device("cpu")}:
        raise UsageError(f"--devices: expected different GPUs, got {devices!r}")
    for one in found:
        if one.type == "cuda" and one.index >= count:
            raise BenchmarkError(f"--device {one}: {count or 'No'} GPU devices found")
    return found


def gpu_named(text: str, why: str) -> torch.device:
    """The device of a command that needs a GPU, `why`; UsageError for another, BenchmarkError if it is not there."""
    (device,) = devices_of(text, None, Run("", ()))
    if device.type != "cuda":
        raise UsageError(f"--device: expected cuda or cuda:N, since {why}, got {text!r}")
    return device


def _parsed(text: str) -> torch.device:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise UsageError(f"--device: expected cpu, cuda or cuda:N, got {text!r}")
    return torch.device("cuda:0" if text == "cuda" else text)
