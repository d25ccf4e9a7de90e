"""Declarations of compiled code (registers, shared memory, access widths), checked without a GPU.

A package has one table, from a type of configuration to the kernels that it launches::

    def row(config: RowConfig, arch: str) -> Expect:
        return Expect(registers=40, shared=256, loads=(16,), stores=(4,), barriers=1)

    EXPECTED = {RowConfig: row}
    assert_as_declared(compiled_for(builder, config, "sm_90a"), EXPECTED, config, "sm_90a")

A declaration is a requirement, not a measurement: ``registers`` follows from the resident blocks that the kernel
counts on, ``shared`` from the configuration, ``loads`` and ``stores`` from the vector width.  A change that spills,
narrows an access or adds a barrier fails wherever kernels can be compiled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from forge_core.device import ARCHES
from forge_core.profiling.compiled import Artefacts, compile_to_look_at
from forge_core.profiling.static import KernelReport, describe


@dataclass(frozen=True)
class Expect:
    """One kernel of a launch: exact access widths, and upper limits of registers, shared memory and barriers.

    There are no local arrays and no atomics, whose order, and so a sum's last bits, would change from run to run.

    Attributes:
        registers: of a thread.
        shared: bytes of shared memory of a block, static and dynamic, without the driver's share.
        loads: widths of loads from global memory in bytes a thread: each occurs, and no other.
        stores: widths of stores, likewise.
        barriers: of a block, counted in the code: a loop's body counts once.
        cluster_barriers: arrivals and waits of a cluster, likewise.
        spilled: bytes of local memory for registers that are spilled: none, unless a measurement is cited.
    """

    registers: int
    shared: int = 0
    loads: tuple[int, ...] = (16,)
    stores: tuple[int, ...] = (16,)
    barriers: int = 0
    cluster_barriers: int = 0
    spilled: int = 0


#: For each type of configuration, one :class:`Expect`, or one for each kernel in the order of their launches.
Declarations = Mapping[type, Callable[[Any, str], "Expect | tuple[Expect, ...]"]]
#: An operator, and the arguments and options of a call of it.
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def registers_of(threads: int) -> int:
    """Registers of each of ``threads`` resident threads: of 65536 a multiprocessor, in steps of 8, 255 at most."""
    return min(65536 // threads // 8 * 8, 255)


def compiled_for(builder: str, config: Any, arch: str) -> Artefacts:
    """Compiles a configuration of the builder ``"module:attribute"``, with the integers that it is traced with."""
    return compile_to_look_at(builder, config, None, arch=arch)


def violations(artefacts: Artefacts, declarations: Declarations, config: Any, arch: str) -> list[str]:
    """Every figure of a configuration, compiled by :func:`compiled_for`, that is not as declared.

    Raises:
        LookupError: the table has no declaration for such a configuration.
        ValueError: it declares another number of kernels than are launched.
    """
    declare = declarations.get(type(config))
    if declare is None:
        known = ", ".join(kind.__name__ for kind in declarations)
        raise LookupError(f"{type(config).__name__} has no declaration of its compiled code; declared are {known}")
    declared = declare(config, arch)
    expected = declared if isinstance(declared, tuple) else (declared,)
    kernels = describe(artefacts, arch)
    if len(expected) != len(kernels):
        raise ValueError(f"{type(config).__name__}: declares {len(expected)} kernels, and {len(kernels)} are launched")
    return [
        f"{kernel.name} for {arch}: {figure}: declared {limit}, got {got}; {config}"
        for kernel, expect in zip(kernels, expected, strict=True)
        for figure, limit, got in _compare(kernel, expect)
    ]


def assert_as_declared(artefacts: Artefacts, declarations: Declarations, config: Any, arch: str) -> None:
    """Raises AssertionError with every one of :func:`violations`."""
    _refuse(f"  {each}" for each in violations(artefacts, declarations, config, arch))


def assert_choices_as_declared(
    draw: Callable[[random.Random], Call], declarations: Declarations, *, seed: int, count: int
) -> None:
    """Checks the kernels that operators choose for random calls and architectures, until ``count`` were compiled.

    Args:
        draw: gives a call of an operator of ``forge_core.op``; its tensors may be on ``meta``.
        declarations: the package's table.
        seed: of what is drawn.
        count: different kernels to compile.

    Raises:
        AssertionError: a figure is not as declared, or 20 * count calls have fewer kernels.
    """
    choose, seen, found = random.Random(seed), set(), []  # noqa: S311 - it decides what is compiled, no secret
    for _ in range(20 * count):
        operator, args, options = draw(choose)
        arch = choose.choice(ARCHES)
        told = operator.explain(*args, arch=arch, **options)
        if told.config is None or (told.builder, told.config, arch) in seen:
            continue
        seen.add((told.builder, told.config, arch))
        call = ", ".join(f"{list(a.shape)}" if hasattr(a, "shape") else repr(a) for a in args)
        made = compiled_for(told.builder, told.config, arch)
        found += [f"  {operator}({call}): {each}" for each in violations(made, declarations, told.config, arch)]
        if len(seen) == count:
            break
    _refuse(found)
    if len(seen) < count:
        raise AssertionError(f"expected {count} different kernels, and {len(seen)} came up")


def _refuse(found: Iterable[str]) -> None:
    lines = list(found)
    if lines:
        raise AssertionError("compiled code is not as declared:\n" + "\n".join(lines))


def _compare(kernel: KernelReport, expect: Expect) -> Iterable[tuple[str, str, str]]:
    kinds, counts = kernel.counts.kinds, kernel.counts
    # Local memory that the source names shows in the PTX; what only the cubin knows of is spilled.
    touched = [*counts.widths("ld.local"), *counts.widths("st.local")]
    most = {
        "registers": (expect.registers, kernel.resources.registers),
        "bytes of shared memory": (expect.shared, kernel.smem_bytes),
        "barriers": (expect.barriers, kinds.get("barriers", 0)),
        "cluster barriers": (expect.cluster_barriers, kinds.get("cluster barriers", 0)),
        "bytes spilled": (expect.spilled, kernel.spill_bytes),
        "bytes of local arrays": (0, counts.local_bytes or max(touched, default=0)),
        "atomics": (0, kinds.get("atomics", 0)),
    }
    yield from ((figure, f"at most {limit}", str(got)) for figure, (limit, got) in most.items() if got > limit)
    exact = {
        "widths of loads": (expect.loads, [*counts.widths("ld.global"), *counts.widths("cp.async")]),
        "widths of stores": (expect.stores, counts.widths("st.global")),
    }
    for figure, (widths, found) in exact.items():
        if set(widths) != set(found):
            yield figure, _bytes(widths), _bytes(found)


def _bytes(widths: Iterable[int]) -> str:
    ordered = sorted(set(widths), reverse=True)
    return f"{' and '.join(map(str, ordered))} bytes" if ordered else "none"
