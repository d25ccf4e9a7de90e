"""Declarations of the compiled code of the row engine's kernels, one for each type of configuration.

Registers follow from ``resident`` blocks, and nothing spills but in teams of long rows that add up two sums.  Widths
follow from the alignment:

    whole      vectors, in accesses of at most 16 bytes
    shifted    the same, and elements of head and tail; column operands by 16 bytes, and by element where a row ends
    unaligned  the same, and row operands by 16 bytes
    paired     two elements
    element    an element; so too a scalar, a result, a gather, and of a broadcast row operand

Shared memory holds an accumulator for each warp and exchange, and staged vectors.  A launch loads what its part of the
program uses: the program is run on plain numbers, which record what is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any

import torch

from forge_core.device import Device
from forge_core.rows.config import ColumnConfig, HeldConfig, RowConfig, StreamConfig
from forge_core.rows.problem import ACCESS
from forge_core.rows.selection import KERNELS
from forge_core.rows.teams import PersistentConfig
from forge_core.testing.expectations import Declarations, Expect, assert_as_declared, compiled_for, registers_of

WARP, NUMBER = 32, 3.0
#: The GPU for which all configurations are compiled, and the share of its registers from which one may spill.
PROVEN_ON, TIGHT = "NVIDIA H200", 0.9


class _Asked:
    """A row and its elements, of which every value is a number; records the operands that are read and gathered."""

    exact = True

    def __init__(self) -> None:
        self._read, self._gathered = set[str](), set[str]()
        self.stored, self.index = self.__getattr__, lambda: NUMBER

    def __getattr__(self, name: str) -> float:
        self._read.add(name)
        return NUMBER

    def within(self, x: float) -> float:
        return x

    def at(self, name: str, index: Any) -> float:
        self._gathered.add(name)
        return NUMBER


def _note(*values: Any) -> Any:
    """The result of every operation; records the totals among its operands."""
    for x in values:
        if isinstance(x, _Total):
            x.used = True
    return NUMBER


class _Total(float):
    """A total in the workspace of an earlier launch; records whether it is used."""

    used = False
    __add__ = __sub__ = __mul__ = __truediv__ = __radd__ = __rsub__ = __rmul__ = __rtruediv__ = _note
    __neg__ = __eq__ = __lt__ = __gt__ = __le__ = __ge__ = _note
    __hash__ = float.__hash__


def _run(function: Any, *args: Any, **more: Any) -> Any:
    """Runs a program's function on numbers; functions of ``forge_core``, which need a trace, return a number."""
    if function.__module__.startswith("forge_core.") and "." not in function.__qualname__:
        return _note(*args)
    known = {name: partial(_run, f) if isinstance(f, FunctionType) else f for name, f in function.__globals__.items()}
    return FunctionType(function.__code__, known, None, function.__defaults__, function.__closure__)(*args, **more)


def _sizes(config: RowConfig, names: Iterable[str]) -> set[int]:
    """The element sizes of operands."""
    return {config.binding.dtype(name).itemsize for name in names}


def _loads(config: RowConfig, folds: range | None = None, *, last: bool = True, left: int = 0) -> set[int]:
    """The widths of the loads of ``folds``, by default all; with ``last`` also those of constants, results and map.

    The totals of the first ``left`` folds are in the workspace.
    """
    program, asked = config.binding.program, _Asked()
    own, totals = type(program), tuple(_Total(NUMBER) if i < left else NUMBER for i in range(len(program.folds)))
    for i in range(len(program.folds)) if folds is None else folds:
        _run(program.folds[i].term, asked, asked, *totals[:i])
    if last:
        constants = _run(own.constants, program, totals, asked)
        if program.operands.results:
            _run(own.results, program, constants, asked)
        if program.operands.writes:
            _run(own.map, program, asked, constants)
        if program.operands.accumulates:
            _run(own.accumulate, program, asked, constants)
    single = asked._read.intersection((*program.operands.scalars, *config.binding.broadcast)) | asked._gathered
    each = asked._read.intersection((*config.binding.loaded, *program.operands.columns))
    workspace = {config.binding.compute.itemsize for t in totals if isinstance(t, _Total) and t.used}
    return _sizes(config, single).union(workspace, *(_widths(config, name) for name in each))


def _widths(config: RowConfig, name: str) -> set[int]:
    """The access widths of an operand with an element for each element of a row."""
    size, column = config.binding.dtype(name).itemsize, name in config.binding.program.operands.columns
    access = min(ACCESS, config.vec * size)
    if config.align == "skewed":
        return {size} if column else {access, size}
    if config.has_edges and column and isinstance(config, PersistentConfig):
        return {size}
    if config.has_edges:
        window = config.align == "unaligned" and name in config.binding.loaded
        return {ACCESS if column or window else access, size}
    return {size if column and isinstance(config, ColumnConfig) else access}


def _expect(config: RowConfig, loads: set[int], shared: int, stores: set[int] | None = None, **more: Any) -> Expect:
    operands, registers = config.binding.program.operands, registers_of(config.threads * config.resident)
    if stores is None:
        stores = _sizes(config, operands.results).union(*(_widths(config, name) for name in operands.writes))
    # A slot is accessed by 16 bytes, and its end, the launch's number, by 8.
    slot = {ACCESS, 8} if getattr(config, "in_grid", False) else set()
    return Expect(registers, shared, tuple(loads | slot), tuple(stores | slot), **more)


def _exchanges(config: RowConfig) -> int:
    """The number of exchanges."""
    apart = sum(fold.op != "count" for fold in config.binding.program.folds)  # counts are known where none is merged
    return min(apart, 1) if config.merges else apart


def _held(config: HeldConfig, arch: str) -> Expect | tuple[Expect, ...]:
    """With copies of column operands, a launch that makes them before."""
    count, cluster = _exchanges(config) * config.sized, config.blocks > 1
    # Staged column operands: of unaligned rows a thread reads what its neighbor loaded.
    barriers = int(config.columns_staged and not config.columns_whole)
    if not cluster:
        barriers += count * (3 if config.in_grid else 1)
    shared, cluster_barriers = config.shared(config.threads), 2 * (cluster and count > 0)
    # Rows of fp16 and fp32 may exceed the registers of `deep` blocks by a few bytes; of norms those were measured that
    # do, and are faster than other kernels in most cases all the same (docs/lab/week3.md).
    spilled = 32 * (config.deep and config.binding.dtype(config.binding.loaded[0]) is not torch.bfloat16)
    main = _expect(
        config, _loads(config), shared, barriers=barriers, cluster_barriers=cluster_barriers, spilled=spilled
    )
    if not config.columns_realigned:
        return main
    sizes = tuple(_sizes(config, config.binding.operands.columns))
    return Expect(registers_of(config.threads), 0, sizes, sizes), main


def _passes(
    config: StreamConfig | ColumnConfig, barriers: int, cluster_barriers: int = 0
) -> Expect | tuple[Expect, ...]:
    """A kernel whose exchange takes these barriers, or each launch of one that splits rows."""
    count, shared = _exchanges(config), config.shared(config.threads)
    if not config.workspace:
        barriers, cluster_barriers = count * barriers, count * cluster_barriers
        return _expect(config, _loads(config), shared, barriers=barriers, cluster_barriers=cluster_barriers)
    # A pass is a launch that writes partial results, and one that combines up to 64 of a row, eight at a time; the last
    # launch writes the map.
    program, part, passes = config.binding.program, {config.binding.compute.itemsize}, []
    folds = range(len(program.folds))
    each = len(folds) // count
    results = _sizes(config, program.operands.results)
    for p in range(count):
        loads = _loads(config, folds[p * each : p * each + each], last=False, left=p * each)
        passes.append(_expect(config, loads, shared, part, barriers=barriers))
        ends = p + 1 == count and not program.operands.writes
        finish = part | _loads(config, folds[:0], left=p * each) if ends else part
        registers, room = registers_of(config.threads), 64 + 8 * len(folds) * config.threads
        passes.append(Expect(registers, room, tuple(finish), tuple(results if ends else part), barriers=3))
    if program.operands.writes:
        passes.append(_expect(config, _loads(config, folds[:0], left=len(folds)), shared))
    return tuple(passes)


def _column(config: ColumnConfig, arch: str) -> Expect | tuple[Expect, ...]:
    """In a cluster, totals are combined in each block, and then in all; blocks wait for each other before and after.

    Transposed outputs take two barriers in the first iteration, and in the loop over the others, of the last launch.
    """
    expected = _passes(config, 3, 4) if config.blocks > 1 else _passes(config, 2)
    *before, last = expected if isinstance(expected, tuple) else (expected,)
    last = replace(last, barriers=last.barriers + 4 * config.transposes)
    return (*before, last) if before else last


def _persistent(config: PersistentConfig, arch: str) -> Expect | tuple[Expect, ...]:
    """As a held row; where lanes share rows, each vector of sums is reduced at the end."""
    count, names = _exchanges(config), config.binding.operands
    size, cluster = config.binding.compute.itemsize, config.blocks > 1
    sums = {size if config.has_edges else min(ACCESS, config.vec * size)} if config.workspace else set()
    writes = sums.union(_sizes(config, names.results), *(_widths(config, name) for name in names.writes))
    barriers = 0 if cluster else count if config.sized else 4 * config.chunks * len(names.accumulates)
    # Two sums of so many elements exceed the registers by a few bytes; reading rows once is 1.04 to 1.5 times as fast
    # as twice all the same (docs/lab/week3.md).
    several = config.long and len(names.accumulates) > 1
    main = _expect(
        config,
        _loads(config),
        config.shared(config.threads),
        writes,
        barriers=barriers,
        cluster_barriers=2 * (cluster and count > 0),
        spilled=96 if several and config.stages == 1 else 24 if several and config.has_edges else 0,
    )
    if not config.workspace:
        return main
    stores = tuple(_sizes(config, names.accumulates))
    return main, Expect(255, 256 * len(names.accumulates) * size + 64, (size,), stores, barriers=3)


#: The declaration of each configuration.
EXPECTED: Declarations = {
    HeldConfig: _held,
    StreamConfig: lambda config, arch: _passes(config, 1),
    ColumnConfig: _column,
    PersistentConfig: _persistent,
}

_NAMES = {HeldConfig: "held", StreamConfig: "stream", ColumnConfig: "column", PersistentConfig: "persistent"}


def builder_of(config: RowConfig) -> str:
    """The builder of a configuration's kernel, as ``"module:attribute"``."""
    return KERNELS[_NAMES[type(config)]].path


def assert_listed_as_declared(listed: Iterable[RowConfig], device: Device) -> None:
    """Compiles configurations for a device and checks the code: on other GPUs than the H200 those that may spill.

    Raises:
        AssertionError: a figure is not as declared.
    """
    for config in listed:
        limit = registers_of(config.resident * config.threads)
        if device.name == PROVEN_ON or config.registers >= TIGHT * limit:
            assert_as_declared(compiled_for(builder_of(config), config, device.arch), EXPECTED, config, device.arch)
