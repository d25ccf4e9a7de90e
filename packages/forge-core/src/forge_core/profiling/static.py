"""The static report: what is known of an operator's kernel without running it.

call (metadata only) -> plan -> configuration, why, integers of the launch
                          |-> host code as plain Python -> grid, block, dynamic shared memory
                          `-> compiler -> PTX   -> widths of accesses, barriers, shuffles, copies
                                      `-> cubin -> registers, stack frame, static shared memory
all of it -> occupancy by the rules; bytes over the specified bandwidth -> the floor
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any

from forge_core.device import SPECS, Device, spec_for
from forge_core.errors import CompileError, UnsupportedError
from forge_core.op.explanation import Explanation
from forge_core.profiling.compiled import Artefacts, compile_to_look_at
from forge_core.profiling.cubin import KernelResources, read_cubin
from forge_core.profiling.geometry import RecordedLaunch
from forge_core.profiling.occupancy import Occupancy, occupancy
from forge_core.profiling.ptx import PtxCounts, count_instructions

__all__ = ["FLOOR_GPUS", "KernelReport", "StaticReport", "describe", "floors_us", "inspect_explained"]

#: The GPUs whose floor the report names.
FLOOR_GPUS = ("A100", "H100", "H200", "B200")


@dataclass(frozen=True)
class KernelReport:
    """One kernel of the launch.

    Attributes:
        name: its symbol, which profilers show.
        launch: grid, block, cluster, dynamic shared memory.
        resources: what the cubin says.
        counts: what the PTX says.
        occupancy: by the occupancy rules, for the report's architecture.
    """

    name: str
    launch: RecordedLaunch
    resources: KernelResources
    counts: PtxCounts
    occupancy: Occupancy

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block, static and dynamic, without CUDA's own share."""
        return self.resources.static_smem + (self.launch.dynamic_smem or 0)

    @property
    def spill_bytes(self) -> int:
        """Bytes of a thread's stack frame that no local array of the source accounts for."""
        return max(self.resources.stack_bytes - self.counts.local_bytes, 0)


@dataclass(frozen=True)
class StaticReport:
    """What is known of a call's kernels without running them.

    Attributes:
        operator: ``"namespace::name"``.
        variant: the kernel's variant.
        config: its configuration.
        why: why this variant and configuration.
        arch: the architecture that it is compiled for.
        device: the GPU whose multiprocessors are counted: the largest known one of that architecture, or near it.
        read: bytes that must be read at least.
        written: bytes that must be written at least.
        kernels: the launch's kernels in order.
        floors_us: for each of :data:`FLOOR_GPUS`, the least time in microseconds that its specified DRAM bandwidth
            allows where no byte is in a cache; a bound, not a prediction.
        ptx: the PTX.
        cubin: the machine code.
    """

    operator: str
    variant: str
    config: Any
    why: str
    arch: str
    device: Device
    read: int
    written: int
    kernels: tuple[KernelReport, ...]
    floors_us: dict[str, float]
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; without PTX and machine code."""
        return {
            "operator": self.operator,
            "variant": self.variant,
            "config": {"type": type(self.config).__name__, **_fields(self.config)},
            "why": self.why,
            "device": self.device.name,
            "arch": self.arch,
            "bytes": {"read": self.read, "written": self.written},
            "floors_us": {gpu: round(value, 3) for gpu, value in self.floors_us.items()},
            "kernels": [
                {
                    "name": kernel.name,
                    "grid": list(kernel.launch.grid),
                    "block": list(kernel.launch.block),
                    "cluster": list(kernel.launch.cluster),
                    "registers": kernel.resources.registers,
                    "stack_bytes": kernel.resources.stack_bytes,
                    "spill_bytes": kernel.spill_bytes,
                    "smem": {"static": kernel.resources.static_smem, "dynamic": kernel.launch.dynamic_smem},
                    "occupancy": dataclasses.asdict(kernel.occupancy),
                    "accesses": kernel.counts.accesses,
                    "instructions": kernel.counts.kinds,
                }
                for kernel in self.kernels
            ],
        }


def inspect_explained(explanation: Explanation, *, arch: str) -> StaticReport:
    """The static report of a call that was explained.

    Args:
        explanation: what ``Operator.explain`` answered for ``arch``.
        arch: for example ``"sm_90a"``; the largest known GPU of it stands for its multiprocessors.

    Raises:
        UnsupportedError: the call runs no kernel, or the CuTe DSL is not installed.
        CompileError: the kernel does not compile, or its launch cannot be worked out.
    """
    if explanation.builder is None or explanation.variant is None:
        raise UnsupportedError(
            f"{explanation.operator}: this call runs no kernel: {explanation.why}", requirement="a kernel"
        )
    if explanation.written == 0:
        raise UnsupportedError(
            f"{explanation.operator}: this call launches nothing, since its result has no elements.",
            requirement="a result of at least one element",
        )
    artefacts = compile_to_look_at(
        explanation.builder,
        explanation.config,
        explanation.integers,
        arch=arch,
        workspace=explanation.workspace > 0,
    )
    device = spec_for(arch)
    return StaticReport(
        operator=explanation.operator,
        variant=explanation.variant,
        config=explanation.config,
        why=explanation.why,
        arch=arch,
        device=device,
        read=explanation.read,
        written=explanation.written,
        kernels=describe(artefacts, arch),
        floors_us=floors_us(explanation.read + explanation.written),
        ptx=artefacts.ptx,
        cubin=artefacts.cubin,
    )


def describe(artefacts: Artefacts, arch: str) -> tuple[KernelReport, ...]:
    """Each launch of a compiled configuration with the figures of its kernel.

    Args:
        artefacts: what compiling gave.
        arch: the architecture that it was compiled for.

    Raises:
        CompileError: a launch's kernel is not in the cubin.
    """
    resources = {kernel.name: kernel for kernel in read_cubin(artefacts.cubin)}
    counts = count_instructions(artefacts.ptx)
    reports = []
    for launch in artefacts.launches:
        name = symbol_of(launch, list(resources))
        kernel = resources[name]
        reports.append(
            KernelReport(
                name=name,
                launch=launch,
                resources=kernel,
                counts=counts[name],
                occupancy=occupancy(
                    capability_of(arch),
                    threads=launch.threads,
                    registers=kernel.registers,
                    smem=kernel.static_smem + (launch.dynamic_smem or 0),
                ),
            )
        )
    return tuple(reports)


def symbol_of(launch: RecordedLaunch, symbols: list[str]) -> str:
    """The symbol of a launch's kernel: the compiler appends a number to the name that the kernel is given.

    Raises:
        CompileError: no symbol, or several, could be meant.
    """
    if not launch.name and len(symbols) == 1:
        return symbols[0]
    found = [symbol for symbol in symbols if launch.name and symbol.rpartition("_")[0] == launch.name]
    if len(found) != 1:
        raise CompileError(
            f"expected one kernel named {launch.name!r}, got {', '.join(symbols)}. "
            "Give each kernel of a launch a name of its own, by set_name_prefix."
        )
    return found[0]


def capability_of(arch: str) -> tuple[int, int]:
    """The compute capability of an architecture: (9, 0) for ``"sm_90a"``.

    Raises:
        UnsupportedError: it is not written so.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    if match is None:
        raise UnsupportedError(f"{arch!r} is not an architecture such as 'sm_90a'.", requirement="a name like sm_90a")
    return int(match.group(1)), int(match.group(2))


def floors_us(nbytes: int) -> dict[str, float]:
    """For each of :data:`FLOOR_GPUS`, ``nbytes`` over the specified bandwidth, in microseconds."""
    return {gpu: nbytes / SPECS[gpu].bandwidth_gbs / 1e3 for gpu in FLOOR_GPUS}


def _fields(config: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(config):
        return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return {}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _fields(value)
    return value if isinstance(value, (int, str, bool, type(None))) else str(value)
