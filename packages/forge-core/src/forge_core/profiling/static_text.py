"""The static report as text."""

from __future__ import annotations

import dataclasses
from typing import Any

from forge_core.profiling.static import KernelReport, StaticReport

__all__ = ["report_text"]

_KINDS = ("ld.global", "st.global", "ld.shared", "st.shared", "cp.async", "ld.local", "st.local")


def report_text(report: StaticReport) -> str:
    """The report for a terminal: a block for the choice, one for each kernel, one for the bytes."""
    lines = [
        f"{report.operator}: variant {report.variant} on {report.arch} ({_gpu(report)})",
        f"  why            {report.why}",
        f"  configuration  {_config(report.config)}",
    ]
    for kernel in report.kernels:
        lines += ["", *_kernel(kernel, report)]
    total = report.read + report.written
    floors = "   ".join(f"{gpu} {_microseconds(value)}" for gpu, value in report.floors_us.items())
    lines += [
        "",
        f"  bytes          {total:,} at least: {report.read:,} read, {report.written:,} written",
        f"  floor, us      {floors}",
        "                 a floor for cold caches at the specified bandwidth, not a prediction",
    ]
    return "\n".join(lines)


def _kernel(kernel: KernelReport, report: StaticReport) -> list[str]:
    launch, resources, counts = kernel.launch, kernel.resources, kernel.counts
    held = kernel.occupancy
    waves = launch.blocks / max(held.blocks * report.device.sm_count, 1)
    spills = f"{kernel.spill_bytes} bytes a thread" if kernel.spill_bytes else "none"
    widths = [f"{kind} {_list(counts.widths(kind))}" for kind in _KINDS if counts.widths(kind)]
    kinds = [f"{count} {name if count > 1 else _one(name)}" for name, count in counts.kinds.items()]
    cluster = f", clusters of {_sizes(launch.cluster)}" if launch.cluster != (1, 1, 1) else ""
    resident = f"{held.blocks} blocks, {held.warps} warps a multiprocessor"
    allowed = ", ".join(f"{name} {count}" for name, count in held.allowed.items())
    dynamic = "left to the compiler" if launch.dynamic_smem is None else f"{launch.dynamic_smem:,} dynamic"
    return [
        f"  kernel         {kernel.name}",
        f"    grid, block  {_sizes(launch.grid)} blocks of {_sizes(launch.block)} threads{cluster}; {waves:.2f} waves",
        f"    registers    {resources.registers} a thread",
        f"    spills       {spills}",
        f"    shared       {resources.static_smem:,} bytes static, {dynamic}",
        f"    occupancy    {held.percent:.1f} % ({resident}), limited by {' and '.join(held.limiters)}",
        f"                 blocks allowed: {allowed}",
        f"    accesses     bytes a thread: {'; '.join(widths) or 'none'}",
        f"    in the code  {', '.join(kinds) or 'no barriers, shuffles or asynchronous copies'}",
    ]


def _gpu(report: StaticReport) -> str:
    near = "" if report.device.arch == report.arch else ", the nearest known"
    return f"{report.device.name}{near}"


def _microseconds(value: float) -> str:
    """Hundredths; of a small call two digits, so that no floor reads as zero."""
    return f"{value:.2f}" if value >= 1 else f"{value:.2g}" if value >= 0.0001 else "under 0.0001"


def _one(name: str) -> str:
    return name.removesuffix("ies") + "y" if name.endswith("ies") else name.removesuffix("s")


def _config(config: Any) -> str:
    if not dataclasses.is_dataclass(config):
        return str(config)
    fields = (f"{f.name}={getattr(config, f.name)!r}" for f in dataclasses.fields(config))
    return f"{type(config).__name__}({', '.join(fields)})"


def _sizes(sizes: tuple[int, ...]) -> str:
    kept = list(sizes)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return " x ".join(f"{size:,}" for size in kept)


def _list(values: list[int]) -> str:
    return ", ".join(map(str, values))
