"""What is to be profiled: from the words of the command line to calls.

    PACKAGE     week0, week0-transpose, forge_week0_transpose, planted, or nothing for all packages
    --case      words in any order: an operator, a shape, a dtype, a layout; what is left out is the operator's default
    --variant   auto, a variant's name, or all

Without a case, the cases of the package's suite ``smoke``.  With ``--variant all``, each variant on the first of those
cases, or of the other suites' cases, that it can do.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from forge_core import device as devices
from forge_core import dtypes
from forge_core.bench.declare import Bench, Case, OperatorBench
from forge_core.bench.inputs import LAYOUTS, generator_for
from forge_core.bench.plan import UsageError
from forge_core.bench.schema import CaseGroup, expand, load_suites, parse_shape
from forge_core.commands.find import explain_case
from forge_core.errors import UnsupportedError
from forge_core.profiling.compiled import traceable
from forge_core.profiling.geometry import RecordedLaunch, record_launches

__all__ = ["PLANTED", "Work", "choose", "planted_works"]

PLANTED = "planted"

#: The suite whose cases are profiled where none is named.
DEFAULT_SUITE = "smoke"


@dataclass(frozen=True)
class Work:
    """One call to profile.

    Attributes:
        name: in words, for ranges and messages.
        variant: the variant that runs.
        why: why it runs.
        launches: the kernels that it launches, in order: the names that they are given, grid, block, shared memory.
        read: bytes that it must read.
        written: bytes that it must write.
        make: makes the inputs of one call on a device, from the number of the set.
        call: takes them.
        case: operator, shape, dtype and layout, and the variant asked for; what repeats this work.
    """

    name: str
    variant: str
    why: str
    launches: tuple[RecordedLaunch, ...]
    read: int
    written: int
    make: Callable[[torch.device, int], tuple[Any, ...]]
    call: Callable[..., Any]
    case: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        return {
            "name": self.name,
            "variant": self.variant,
            "why": self.why,
            "kernels": [launch.name for launch in self.launches],
            "launches": [dataclasses.asdict(launch) for launch in self.launches],
            "read": self.read,
            "written": self.written,
            "case": self.case,
        }


def choose(
    benches: Sequence[Bench], package: str | None, case: str | None, variant: str, *, arch: str
) -> tuple[list[Work], list[str]]:
    """The works that were asked for, and what was left out, in words.

    Args:
        benches: the packages' declarations.
        package: one of the names in the module's docstring; None for all.
        case: the words of a case; None for the suite ``smoke``.
        variant: ``"auto"``, ``"all"`` or a name.
        arch: the architecture of the GPU.

    Raises:
        UsageError: nothing has that name.
        ForgeError: what the call itself would raise.
    """
    if package == PLANTED:
        return planted_works(case), []
    chosen = [bench for bench in benches if package is None or package in _names(bench)]
    if not chosen:
        known = ", ".join([*(bench.name for bench in benches), PLANTED])
        raise UsageError(f"no package is named {package!r}; packages that declare benchmarks: {known}")
    pairs = [_parse_case(chosen, case)] if case is not None else _suite_cases(chosen, DEFAULT_SUITE)
    if not pairs:
        names = ", ".join(bench.name for bench in chosen)
        raise UsageError(f"{names}: no suite {DEFAULT_SUITE}, so a case has to be named with --case")
    if variant == "all":
        return _every_variant(chosen, pairs, arch)
    works, left_out = [], []
    for operator, found in pairs:
        if case is None and variant not in ("auto", *operator.variants()):
            left_out.append(f"{found.name}: {operator.name} has no variant {variant}")
            continue
        try:
            works.append(_work(operator, found, variant, arch))
        except UnsupportedError as error:
            if case is not None:  # it was named, so it is an error
                raise
            left_out.append(f"{found.name}: {error}")
    if not works:
        raise UsageError(f"no case can be run by variant {variant!r}: {'; '.join(left_out)}")
    return works, left_out


def _names(bench: Bench) -> tuple[str, ...]:
    # The folder and the distribution are spelled with dashes.
    module = bench.package
    return (bench.name, module, module.replace("_", "-"), module.removeprefix("forge_").replace("_", "-"))


def _suite_cases(benches: Sequence[Bench], name: str | None) -> list[tuple[OperatorBench, Case]]:
    """The cases of one suite, or of all where no name is given."""
    pairs = []
    for bench in benches:
        for suite_name, suite in load_suites(bench).items():
            if name is None or suite_name == name:
                for group in suite.cases:
                    operator = bench.by_name[group.operator]
                    pairs += [(operator, case) for case in expand(group, bench, suite_name, suite.peers)]
    return pairs


def _parse_case(benches: Sequence[Bench], text: str) -> tuple[OperatorBench, Case]:
    operators = {operator.name: (bench, operator) for bench in benches for operator in bench.operators}
    words = text.split()
    named = [word for word in words if word in operators]
    if len(named) != 1:
        raise UsageError(f"--case {text!r}: expected one operator of {', '.join(operators)}, got {', '.join(words)}")
    bench, operator = operators[named[0]]
    shape, dtype, layout = operator.default_shapes[0], operator.default_dtypes[0], LAYOUTS[0]
    for word in words:
        if word == operator.name:
            continue
        if word in LAYOUTS:
            layout = word
        elif re.fullmatch(r"\d+(x\d+)*", word):
            shape = word
        else:
            try:
                dtypes.parse(word)
            except ValueError as error:
                raise UsageError(f"--case {text!r}: {word!r} is no operator, shape, dtype or layout") from error
            dtype = word
    parse_shape(shape)
    group = CaseGroup(operator=operator.name, shapes=[shape], dtypes=[dtype])
    (case,) = expand(group, bench, operator.name, [])
    return operator, Case(case.operator, case.shape, case.dtype, layout)


def _every_variant(
    benches: Sequence[Bench], pairs: list[tuple[OperatorBench, Case]], arch: str
) -> tuple[list[Work], list[str]]:
    works, left_out = [], []
    size = pairs[0][1].nbytes
    # Near the size of what was asked for: a variant on a tiny problem says little.
    wide = pairs + sorted(_suite_cases(benches, None), key=lambda pair: abs(math.log(pair[1].nbytes / size)))
    # What only a misaligned or a permuted input asks for.
    wide += [
        (operator, Case(case.operator, case.shape, case.dtype, layout))
        for layout in LAYOUTS[1:]
        for operator, case in wide
        if len(case.shape) > 1
    ]
    for operator in dict.fromkeys(operator for operator, _ in pairs):
        for variant in operator.variants():
            for candidate, case in wide:
                if candidate is operator:
                    try:
                        works.append(_work(operator, case, variant, arch))
                        break
                    except UnsupportedError:
                        continue
            else:
                left_out.append(f"{operator.name}: no case of a suite can be done by variant {variant}")
    return works, left_out


def _work(operator: OperatorBench, case: Case, variant: str, arch: str) -> Work:
    explanation = explain_case(operator, case, variant, arch=arch)
    if explanation.builder is None:
        raise UnsupportedError(f"{case.name}: no kernel runs: {explanation.why}", requirement="a kernel")
    source, pointers = traceable(explanation.builder, explanation.config)
    launches = record_launches(source.function, explanation.integers, pointers=pointers)

    def make(device: torch.device, number: int) -> tuple[Any, ...]:
        return operator.inputs(case, device, generator_for(device, seed=0, what=f"{case.name} set {number}"))

    return Work(
        name=f"{case.name} {explanation.variant}",
        variant=str(explanation.variant),
        why=explanation.why,
        launches=launches,
        read=explanation.read,
        written=explanation.written,
        make=make,
        call=operator.call(variant),
        case={
            "operator": case.operator,
            "shape": case.shape_text,
            "dtype": case.dtype_text,
            "layout": case.layout,
            "variant": variant,
        },
    )


#: For each planted fault: elements, and elements of a block, with the fault and without.
_PLANTED_SIZES: dict[str, tuple[int, int, int]] = {
    "uncoalesced": (1 << 24, 1 << 14, 1 << 14),
    "bank_conflicts": (1 << 22, 1 << 13, 1 << 13),
    "spills": (1 << 24, 64 * 1024, 64 * 256),
    "too_little_work": (1 << 20, 1 << 18, 1 << 10),
    # 1056 blocks at once: 4 times the H200's L2, or a seventh of it.
    "reread": (1 << 26, 1 << 16, 1 << 11),
}


def planted_works(only: str | None = None) -> list[Work]:
    """The planted kernels, each fault followed by its sound twin.

    Args:
        only: one fault; None for all.

    Raises:
        UsageError: no fault has that name.
    """
    from kernels.planted import FAULTS, PlantedConfig, build

    if only is not None and only not in FAULTS:
        raise UsageError(f"no planted fault is named {only!r}; faults: {', '.join(FAULTS)}")
    works = []
    for fault in FAULTS if only is None else (only,):
        count, *slabs = _PLANTED_SIZES[fault]
        for sound, slab in zip((False, True), slabs, strict=True):
            works.append(_planted(PlantedConfig(fault, sound), build, count, slab))
    return works


def _planted(config: Any, build: Any, count: int, slab: int) -> Work:
    def make(device: torch.device, number: int) -> tuple[Any, ...]:
        x = torch.randn(count, device=device)
        return x, torch.empty_like(x)

    def call(x: torch.Tensor, y: torch.Tensor) -> None:
        launch = build(config, arch=devices.query(x.device).arch)
        launch(x.data_ptr(), y.data_ptr(), count, slab, torch.cuda.current_stream().cuda_stream)

    return Work(
        name=config.kernel_name,
        variant=config.kernel_name,
        why="planted",
        launches=record_launches(build.__wrapped__(config).function, (count, slab)),
        read=4 * count,
        written=4 * count,
        make=make,
        call=call,
        case={"fault": config.fault, "sound": config.sound, "count": count, "slab": slab},
    )
