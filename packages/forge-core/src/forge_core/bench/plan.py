"""From what was asked to what is run: packages found, suites and operators resolved, cases selected."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from forge_core import dtypes
from forge_core.bench.declare import Bench, Case, OperatorBench
from forge_core.bench.schema import ALL, AUTO, CaseGroup, Suite, Target, expand, parse_shape, suites_of
from forge_core.cli import did_you_mean
from forge_core.errors import BenchmarkError

__all__ = [
    "GROUP",
    "PlannedCase",
    "Run",
    "Selection",
    "UsageError",
    "discover",
    "packages_named",
    "plan",
]

#: The entry-point group in which packages name their :class:`~forge_core.bench.declare.Bench`.
GROUP = "forge.bench"


class UsageError(BenchmarkError):
    """What was asked for does not exist; the message lists what does."""

    @classmethod
    def unknown(cls, message: str, name: str, known: Iterable[str]) -> UsageError:
        """The error of an unknown name, with the known ones that are nearest to it."""
        return cls(". ".join(filter(None, [message, did_you_mean(name, known)])))


@dataclass(frozen=True)
class Selection:
    """What the command line asked for; empty means the suite's own choice.

    Attributes:
        packages: the weeks, by any of their names.
        operators: names.
        variants: names, or ``("all",)``.
        shapes: as typed, for example ``"4096x4096"``.
        dtypes: as typed, for example ``"bfloat16"``.
        peers: names.
    """

    variants: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannedCase:
    """One case, with the contenders that were asked for.

    Attributes:
        bench: the package's declaration.
        operator: the operator's declaration.
        case: the problem.
        variants: the variants to run, ``auto`` first where it is among them.
        peers: the peers to run against.
        targets: what ``auto`` is to reach here.
        lenient: names that came from "all": those that cannot serve the case are left out by name, not errors.
        peers_asked: whether the peers were asked for by name: then a missing requirement is an error.
    """

    bench: Bench
    operator: OperatorBench
    case: Case
    variants: tuple[str, ...]
    peers: tuple[str, ...]
    targets: tuple[Target, ...] = ()
    lenient: frozenset[str] = frozenset()
    peers_asked: bool = False


@dataclass(frozen=True)
class Run:
    """Everything that one call of the bench is to measure.

    Attributes:
        name: the suite's or the operator's name.
        cases: the cases in order.
        timer: ``"device"``, ``"host"`` or ``"cold"``.
        cpu: whether it runs on the CPU without being told to, where there is no GPU.
        imports: modules whose import is timed, with the targets for each.
        targets_for: the GPUs that the targets are meant for; on others they are not judged.
        packages: import names of the packages that declare the cases.
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
        try:
            bench = entry.load()
        except ImportError as error:
            raise BenchmarkError(
                f"entry point {entry.name} = {entry.value} of {GROUP} cannot be imported ({error}): what is "
                "installed and its sources do not belong together; install it again"
            ) from error
        if not isinstance(bench, Bench):
            raise BenchmarkError(
                f"entry point {entry.name} = {entry.value} of {GROUP}: expected a forge_core.bench.Bench, "
                f"got {type(bench).__name__}"
            )
        found.append(bench)
    return found


def plan(benches: Sequence[Bench], name: str, selection: Selection, *, commands: Iterable[str] = ()) -> Run:
    """Resolves the name of a suite or an operator, and selects.

    Args:
        benches: the packages.
        name: of a suite or an operator.  Several packages may have a suite of it (``smoke``): all of them are run.
        selection: what to select.
        commands: what else may have been meant by the name, for the message.

    Raises:
        UsageError: no such suite, operator, variant, shape, dtype or peer.
        BenchmarkError: a ``suites.yaml`` is not what is expected.
    """
    benches = packages_named(benches, selection.packages)
    suites = [(bench, suites_of(bench)) for bench in benches]
    of_suite = [(bench, table[name]) for bench, table in suites if name in table]
    of_operator = [bench for bench in benches if name in bench.by_name]
    _check_names(selection)
    if of_suite:
        return _plan_suite(name, of_suite, selection)
    if of_operator:
        return _plan_operator(of_operator[0], of_operator[0].by_name[name], selection)
    known_suites = sorted({suite for _, table in suites for suite in table})
    known_operators = sorted({operator for bench in benches for operator in bench.by_name})
    text = (
        f"no suite and no operator is named {name!r}; suites: {', '.join(known_suites) or 'none'}; "
        f"operators: {', '.join(known_operators) or 'none'}"
    )
    raise UsageError.unknown(text, name, [*commands, *known_suites, *known_operators])


def packages_named(benches: Sequence[Bench], asked: Sequence[str]) -> list[Bench]:
    """The packages that were asked for, each by its week, its import name, or the name it is installed by; or all.

    Raises:
        UsageError: no package has one of the names.
    """
    if not asked:
        return list(benches)
    names = {bench.name: {bench.name, bench.package, bench.package.replace("_", "-")} for bench in benches}
    for name in asked:
        if not any(name in known for known in names.values()):
            text = f"no package {name!r} declares benchmarks; packages: {', '.join(sorted(names))}"
            raise UsageError.unknown(text, name, names)
    return [bench for bench in benches if names[bench.name] & set(asked)]


def _check_names(selection: Selection) -> None:
    for parse, texts in ((parse_shape, selection.shapes), (dtypes.parse, selection.dtypes)):
        for text in texts:
            try:
                parse(text)
            except ValueError as error:
                raise UsageError(str(error)) from None


def _plan_suite(name: str, found: list[tuple[Bench, Suite]], selection: Selection) -> Run:
    _check_asked(name, [bench.by_name[group.operator] for bench, suite in found for group in suite.cases], selection)
    cases: list[PlannedCase] = []
    seen: set[tuple[str, str]] = set()
    for bench, suite in found:
        for group in suite.cases:
            operator = bench.by_name[group.operator]
            if selection.operators and group.operator not in selection.operators:
                continue
            # Operators have variants and peers of their own: what was asked for selects those that have it.
            if selection.variants and not set(selection.variants) & {AUTO, ALL, *operator.variants()}:
                continue
            variants, lenient = _variants(operator, _kept(selection.variants, operator.variants()) or group.variants)
            own_peers = suite.peers if group.peers is None else group.peers
            peers = _peers(operator, own_peers)
            if selection.peers:
                peers = _kept(selection.peers, [peer.name for peer in operator.peers])
            for case in expand(group, bench, f"suite {name}", suite.peers):
                # A derived suite may hold a case of several suites: the first one decides.
                if _selected(case, selection) and (bench.name, case.name) not in seen:
                    seen.add((bench.name, case.name))
                    targets = tuple(target for target in suite.targets if target.applies(case))
                    asked = bool(selection.peers)
                    cases.append(PlannedCase(bench, operator, case, variants, peers, targets, lenient, asked))
    imports = [
        (module, tuple(target for target in suite.targets if target.of == "import" and target.operator == module))
        for _, suite in found
        for module in suite.imports
    ]
    narrowed = bool(selection.shapes or selection.dtypes or selection.operators)
    if not cases and (narrowed or not imports):
        raise UsageError(
            f"suite {name} has no case of shape {' or '.join(selection.shapes) or 'any'} and dtype "
            f"{' or '.join(selection.dtypes) or 'any'}; name an operator to measure any shape and dtype"
        )
    timers = {suite.timer for _, suite in found}
    if len(timers) > 1:
        raise BenchmarkError(f"suite {name} is declared with different timers: {', '.join(sorted(timers))}")
    return Run(
        name=name,
        cases=tuple(cases),
        timer=timers.pop(),
        cpu=all(suite.cpu for _, suite in found),
        imports=() if selection.operators else tuple(imports),
        targets_for=tuple({suite.targets_for for _, suite in found if suite.targets_for}),
        packages=tuple(bench.package for bench, _ in found),
    )


def _plan_operator(bench: Bench, operator: OperatorBench, selection: Selection) -> Run:
    others = [name for name in selection.operators if name != operator.name]
    if others:
        raise UsageError(f"{operator.name} is an operator, and --operator selects in a suite: got {', '.join(others)}")
    group = CaseGroup(
        operator=operator.name,
        shapes=list(selection.shapes or operator.default_shapes),
        dtypes=list(selection.dtypes or operator.default_dtypes),
    )
    variants, lenient = _variants(operator, selection.variants or (AUTO,))
    peers = _peers(operator, selection.peers or [peer.name for peer in operator.peers])
    cases = tuple(
        PlannedCase(bench, operator, case, variants, peers, (), lenient, bool(selection.peers))
        for case in expand(group, bench, operator.name, [])
    )
    return Run(name=operator.name, cases=cases, cpu=True, packages=(bench.package,))


def _check_asked(suite: str, operators: list[OperatorBench], selection: Selection) -> None:
    """Every operator, variant and peer that was asked for has to belong to at least one case of the suite."""
    whose = f"suite {suite}"
    _check_known(whose, "operator", selection.operators, [operator.name for operator in operators])
    _check_known(whose, "variant", selection.variants, [AUTO, *(v for o in operators for v in o.variants())])
    _check_known(whose, "peer", selection.peers, [peer.name for operator in operators for peer in operator.peers])


def _check_known(whose: str, what: str, asked: Iterable[str], known: Iterable[str]) -> None:
    known = dict.fromkeys(known)
    for name in asked:
        if name not in known and (what, name) != ("variant", ALL):
            text = f"{whose} has no {what} {name!r}; {what}s: {', '.join(known) or 'none'}"
            text += f", and {ALL} for all of them" if what == "variant" else ""
            raise UsageError.unknown(text, name, [*known, ALL] if what == "variant" else known)


def _kept(asked: Sequence[str], known: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in asked if name in (AUTO, ALL, *known))


def _selected(case: Case, selection: Selection) -> bool:
    shapes = [parse_shape(text) for text in selection.shapes]
    kinds: list[torch.dtype] = [dtypes.parse(text) for text in selection.dtypes]
    return (not shapes or case.shape in shapes) and (not kinds or case.dtype in kinds)


def _variants(operator: OperatorBench, asked: Sequence[str] | str) -> tuple[tuple[str, ...], frozenset[str]]:
    known = list(operator.variants())
    if asked == ALL or ALL in asked:
        return (AUTO, *known), frozenset(known)
    _check_known(operator.name, "variant", asked, [AUTO, *known])
    return tuple(dict.fromkeys(asked)), frozenset()


def _peers(operator: OperatorBench, asked: Sequence[str]) -> tuple[str, ...]:
    _check_known(operator.name, "peer", asked, [peer.name for peer in operator.peers])
    return tuple(dict.fromkeys(asked))
