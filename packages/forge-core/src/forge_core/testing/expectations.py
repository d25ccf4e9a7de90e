"""What a kernel's compiled code must look like, declared beside the kernel and checked without a GPU.

    table of a package                  EXPECTED = {RowConfig: row, ...}    configuration, architecture -> Expect
    compiler   -> PTX, cubin, launch    forge_core.profiling
    check      -> one Violation for each figure that is not as declared: kernel, architecture, configuration, figure

A declaration is a promise and no measurement: ``registers`` is what a multiprocessor must have for as many blocks as
the kernel counts on, ``shared`` what the configuration needs, ``loads`` and ``stores`` the widths of the design.  A
change that brings in a spill, makes an access narrower or adds a barrier is refused wherever kernels can be compiled.

A package of its own declares its kernels likewise::

    def row(config: RowConfig, arch: str) -> Expect:
        return Expect(registers=40, shared=256, loads=(16,), stores=(4,), barriers=1)

    EXPECTED = {RowConfig: row}
    assert_as_declared(compiled_for(build, config, "sm_90a"), EXPECTED, config, "sm_90a")
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge_core.device import ARCHES
from forge_core.profiling.compiled import Artefacts, compile_to_look_at
from forge_core.profiling.static import KernelReport, describe

__all__ = [
    "Declarations",
    "Expect",
    "Violation",
    "assert_as_declared",
    "assert_choices_as_declared",
    "compiled_for",
    "registers_of",
    "violations",
]

#: An operator, and the arguments and options of a call of it.
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Expect:
    """One kernel of a launch, as its declaration has it.

    Attributes:
        registers: of a thread, at most.
        shared: bytes of shared memory of a block, static and dynamic, at most; without CUDA's own share.
        loads: the widths of its loads from global memory in bytes a thread: each occurs, and no other.
        stores: the same of its stores.
        barriers: of a block, at most, as they stand in the code; a loop's body counts once.
        cluster_barriers: arrivals and waits of a cluster, at most, likewise.
        spills: bytes of a thread's registers that the compiler keeps in local memory, at most.
        local: bytes of arrays in local memory that the source asks for, at most.
        atomics: atomic operations, at most: their order, and so a sum's last bits, would change from run to run.
    """

    registers: int
    shared: int = 0
    loads: tuple[int, ...] = (16,)
    stores: tuple[int, ...] = (16,)
    barriers: int = 0
    cluster_barriers: int = 0
    spills: int = 0
    local: int = 0
    atomics: int = 0


def registers_of(threads: int) -> int:
    """Registers that each thread may have where so many are to be resident on a multiprocessor.

    A multiprocessor has 65536; a thread gets them in steps of 8, and 255 at most.
    """
    return min(65536 // threads // 8 * 8, 255)


#: For each type of configuration, what its kernels must look like: one :class:`Expect` for each kernel in the order of
#: their launches, or a single one.
Declarations = Mapping[type, Callable[[Any, str], "Expect | tuple[Expect, ...]"]]


@dataclass(frozen=True)
class Violation:
    """One figure that is not as declared.

    Attributes:
        kernel: the kernel's symbol.
        arch: what it was compiled for.
        config: its configuration.
        figure: which figure.
        declared: what the declaration says.
        got: what the compiled code says.
    """

    kernel: str
    arch: str
    config: Any
    figure: str
    declared: str
    got: str

    def __str__(self) -> str:
        return f"{self.kernel} for {self.arch}: {self.figure}: declared {self.declared}, got {self.got}; {self.config}"


def compiled_for(builder: str, config: Any, arch: str) -> Artefacts:
    """Compiles a configuration, with the integers that its builder traces it with.

    Args:
        builder: ``"module:attribute"`` of the ``@compile_cached`` builder.
        config: its configuration.
        arch: for example ``"sm_90a"``.

    Raises:
        UnsupportedError: the CuTe DSL is not installed.
        CompileError: the kernel does not compile, or its launch cannot be worked out.
    """
    return compile_to_look_at(builder, config, None, arch=arch)


def violations(artefacts: Artefacts, declarations: Declarations, config: Any, arch: str) -> list[Violation]:
    """Every figure of a compiled configuration that is not as declared.

    Args:
        artefacts: what compiling it gave.
        declarations: the package's table.
        config: the configuration.
        arch: what it was compiled for.

    Raises:
        LookupError: the table has no declaration for such a configuration.
        ValueError: it declares another number of kernels than are launched.
        CompileError: a launch's kernel is not in the cubin.
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
        Violation(kernel.name, arch, config, *found)
        for kernel, expect in zip(kernels, expected, strict=True)
        for found in _compare(kernel, expect)
    ]


def assert_as_declared(artefacts: Artefacts, declarations: Declarations, config: Any, arch: str) -> None:
    """Fails with every violation; the arguments are those of :func:`violations`.

    Raises:
        AssertionError: a figure is not as declared.
    """
    found = violations(artefacts, declarations, config, arch)
    if found:
        raise AssertionError("compiled code is not as declared:\n" + "\n".join(f"  {each}" for each in found))


def assert_choices_as_declared(
    draw: Callable[[random.Random], Call], declarations: Declarations, *, seed: int, count: int
) -> None:
    """What operators choose for calls drawn at random compiles to what is declared, for any architecture.

    Args:
        draw: gives a call of an operator of ``forge_core.op``; its tensors may be on ``meta``.
        declarations: the package's table.
        seed: of what is drawn; the same seed gives the same calls.
        count: kernels to compile, different ones.

    Raises:
        AssertionError: a figure is not as declared, or so many kernels do not come up in 20 times as many calls.
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
    if found:
        raise AssertionError("compiled code is not as declared:\n" + "\n".join(found))
    if len(seen) < count:
        raise AssertionError(f"expected {count} different kernels, and {len(seen)} came up")


def _compare(kernel: KernelReport, expect: Expect) -> Iterable[tuple[str, str, str]]:
    kinds, counts = kernel.counts.kinds, kernel.counts
    # Local memory that the source names shows in the PTX; what only the cubin knows of is spilled.
    touched = [*counts.widths("ld.local"), *counts.widths("st.local")]
    figures = (
        ("registers", expect.registers, kernel.resources.registers),
        ("bytes of shared memory", expect.shared, kernel.smem_bytes),
        ("barriers", expect.barriers, kinds.get("barriers", 0)),
        ("cluster barriers", expect.cluster_barriers, kinds.get("cluster barriers", 0)),
        ("bytes spilled", expect.spills, kernel.spill_bytes),
        ("bytes of local arrays", expect.local, counts.local_bytes or max(touched, default=0)),
        ("atomics", expect.atomics, kinds.get("atomics", 0)),
    )
    for name, most, got in figures:
        if got > most:
            yield name, f"at most {most}", str(got)
    copies = counts.widths("cp.async")
    sides = (
        ("widths of loads", expect.loads, {*counts.widths("ld.global"), *copies}),
        ("widths of stores", expect.stores, set(counts.widths("st.global"))),
    )
    for name, wanted, found in sides:
        if set(wanted) != found:
            yield name, _bytes(wanted), _bytes(found)


def _bytes(widths: Iterable[int]) -> str:
    ordered: Sequence[int] = sorted(set(widths), reverse=True)
    return f"{' and '.join(map(str, ordered))} bytes" if ordered else "none"
