"""The static report: a kernel's launch, resources, accesses and theoretical occupancy, without running it.

call (metadata only) -> plan -> configuration, why, integers of the launch
                          |-> host code as plain Python -> grid, block, dynamic shared memory
                          `-> compiler -> PTX   -> widths of accesses, barriers, shuffles, copies
                                      `-> cubin -> registers, stack frame, static shared memory
all of it -> theoretical occupancy; bytes over the specified bandwidth -> minimum time
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import msgspec

from forge_core.device import SPECS, Device, capability_of, spec_for
from forge_core.errors import CompileError, UnsupportedError
from forge_core.op import Explanation
from forge_core.profiling.compiled import Artefacts, RecordedLaunch, compile_to_look_at
from forge_core.profiling.cubin import KernelResources, read_cubin
from forge_core.profiling.occupancy import Occupancy, occupancy
from forge_core.profiling.ptx import PtxCounts, count_instructions

#: The GPUs whose minimum time is reported.
FLOOR_GPUS = ("A100", "H100", "H200", "B200")

#: The accesses whose widths are reported.
ACCESSES = ("ld.global", "st.global", "ld.shared", "st.shared", "cp.async", "ld.local", "st.local")


@dataclass(frozen=True)
class KernelReport:
    """One kernel of a launch: figures from the host code, the cubin and the PTX."""

    name: str
    launch: RecordedLaunch
    resources: KernelResources
    counts: PtxCounts
    occupancy: Occupancy

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block, static and dynamic, without the driver's share."""
        return self.resources.static_smem + (self.launch.dynamic_smem or 0)

    @property
    def spill_bytes(self) -> int:
        """Bytes of a thread's stack frame beyond the local arrays of the source."""
        return max(self.resources.stack_bytes - self.counts.local_bytes, 0)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "grid": list(self.launch.grid),
            "block": list(self.launch.block),
            "cluster": list(self.launch.cluster),
            "registers": self.resources.registers,
            "stack_bytes": self.resources.stack_bytes,
            "spill_bytes": self.spill_bytes,
            "smem": {"static": self.resources.static_smem, "dynamic": self.launch.dynamic_smem},
            "occupancy": dataclasses.asdict(self.occupancy),
            "accesses": self.counts.accesses,
            "instructions": self.counts.kinds,
        }

    def text(self, device: Device) -> str:
        """The kernel for a terminal; waves are those of ``device``."""
        launch, resources, counts, held = self.launch, self.resources, self.counts, self.occupancy
        cluster = f", clusters of {_sizes(launch.cluster)}" if launch.cluster != (1, 1, 1) else ""
        waves = math.prod(launch.grid) / max(held.blocks * device.sm_count, 1)
        dynamic = "left to the compiler" if launch.dynamic_smem is None else f"{launch.dynamic_smem:,} dynamic"
        allowed = ", ".join(f"{name} {count}" for name, count in held.allowed.items())
        widths = [f"{kind} {', '.join(map(str, counts.widths(kind)))}" for kind in ACCESSES if counts.widths(kind)]
        kinds = [f"{name} {count}" for name, count in counts.kinds.items()]
        return f"""\
  kernel         {self.name}
    grid, block  {_sizes(launch.grid)} blocks of {_sizes(launch.block)} threads{cluster}; {waves:.2f} waves
    registers    {resources.registers} a thread
    spills       {f"{self.spill_bytes} bytes a thread" if self.spill_bytes else "none"}
    shared       {resources.static_smem:,} bytes static, {dynamic}
    occupancy    {held.percent:.1f} % ({held.blocks} blocks, {held.warps} warps a multiprocessor), \
limited by {" and ".join(held.limiters)}
                 blocks allowed: {allowed}
    accesses     bytes a thread: {"; ".join(widths) or "none"}
    in the code  {", ".join(kinds) or "no barriers, shuffles or asynchronous copies"}
"""


@dataclass(frozen=True)
class StaticReport:
    """The static report of a call; kernels in launch order."""

    call: Explanation
    arch: str
    artefacts: Artefacts
    kernels: tuple[KernelReport, ...]

    @property
    def device(self) -> Device:
        """The GPU that waves are counted for: the largest known one of the architecture, or the nearest."""
        return spec_for(self.arch)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; without PTX and machine code."""
        call = self.call
        return {
            "operator": call.operator,
            "variant": call.variant,
            "config": {"type": type(call.config).__name__, **msgspec.to_builtins(call.config, enc_hook=str)},
            "why": call.why,
            "device": self.device.name,
            "arch": self.arch,
            "bytes": {"read": call.read, "written": call.written},
            "floors_us": {gpu: round(value, 3) for gpu, value in floors_us(call.read + call.written).items()},
            "kernels": [kernel.as_dict() for kernel in self.kernels],
        }

    def text(self) -> str:
        """The report for a terminal."""
        call, near = self.call, "" if self.device.arch == self.arch else ", the nearest known"
        nbytes, kernels = call.read + call.written, "\n".join(kernel.text(self.device) for kernel in self.kernels)
        floors = "   ".join(f"{gpu} {_microseconds(value)}" for gpu, value in floors_us(nbytes).items())
        return f"""\
{call.operator}: variant {call.variant} on {self.arch} ({self.device.name}{near})
  why            {call.why}
  configuration  {call.config}

{kernels}
  bytes          {nbytes:,} at least: {call.read:,} read, {call.written:,} written
  floor, us      {floors}
                 a floor for cold caches at the specified bandwidth, not a prediction"""


def inspect_explained(explanation: Explanation, *, arch: str) -> StaticReport:
    """The static report of a call that ``Operator.explain`` explained for ``arch``.

    Raises:
        UnsupportedError: the call runs no kernel, or the CuTe DSL is not installed.
        CompileError: the kernel does not compile, or its launch cannot be worked out.
    """
    if explanation.builder is None:
        raise UnsupportedError(
            f"{explanation.operator}: this call runs no kernel: {explanation.why}", requirement="a kernel"
        )
    if explanation.written == 0:
        raise UnsupportedError(
            f"{explanation.operator}: this call launches nothing, since its result has no elements.",
            requirement="a result of at least one element",
        )
    artefacts = compile_to_look_at(explanation.builder, explanation.config, explanation.integers, arch=arch)
    return StaticReport(explanation, arch, artefacts, describe(artefacts, arch))


def describe(artefacts: Artefacts, arch: str) -> tuple[KernelReport, ...]:
    """The report of each kernel of a compiled configuration, in launch order.

    Raises:
        CompileError: a launch's kernel is not in the cubin.
        UnsupportedError: the architecture's limits are not known.
    """
    resources = {kernel.name: kernel for kernel in read_cubin(artefacts.cubin)}
    counts = count_instructions(artefacts.ptx)
    reports = []
    for launch in artefacts.launches:
        name = symbol_of(launch, list(resources))
        registers, smem = resources[name].registers, resources[name].static_smem + (launch.dynamic_smem or 0)
        held = occupancy(capability_of(arch), threads=math.prod(launch.block), registers=registers, smem=smem)
        reports.append(KernelReport(name, launch, resources[name], counts[name], held))
    return tuple(reports)


def symbol_of(launch: RecordedLaunch, symbols: list[str]) -> str:
    """The one symbol of a launch's kernel: its name and a number that the compiler appends; else CompileError."""
    if not launch.name and len(symbols) == 1:
        return symbols[0]
    found = [symbol for symbol in symbols if launch.name and symbol.rpartition("_")[0] == launch.name]
    if len(found) != 1:
        raise CompileError(
            f"expected one kernel named {launch.name!r}, got {', '.join(symbols)}. "
            "Give each kernel of a launch a name of its own, by set_name_prefix."
        )
    return found[0]


def floors_us(nbytes: int) -> dict[str, float]:
    """``nbytes`` over the DRAM bandwidth of each of :data:`FLOOR_GPUS` in microseconds: a lower bound, caches cold."""
    return {gpu: nbytes / SPECS[gpu].bandwidth_gbs / 1e3 for gpu in FLOOR_GPUS}


def _microseconds(value: float) -> str:
    """Hundredths; two digits below 1, so that no floor reads as zero."""
    return f"{value:.2f}" if value >= 1 else f"{value:.2g}" if value >= 0.0001 else "under 0.0001"


def _sizes(sizes: tuple[int, int, int]) -> str:
    """``"128 x 4"`` for (128, 4, 1)."""
    shown = " x ".join(f"{size:,}" for size in sizes)
    return shown.removesuffix(" x 1").removesuffix(" x 1")
