"""What a profile says, as figures and as text, and two of them side by side."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forge_core.profiling.diagnosis import Diagnosis, Needed, diagnose, limited_by
from forge_core.profiling.readers import KernelProfile, MissingFigure, ProfileError

__all__ = ["FIGURES", "Extract", "compare_text", "extract", "extract_text", "load_needed", "select"]


def _figure(name: str, scale: float = 1.0) -> Callable[[KernelProfile], float]:
    return lambda profile: profile[name] * scale


def _ratio(above: str, below: str) -> Callable[[KernelProfile], float]:
    def read(profile: KernelProfile) -> float:
        if not profile[below]:
            raise MissingFigure(above)
        return profile[above] / profile[below]

    return read


#: The figures of an extract, in order: key, label, format, and how to read it.
FIGURES: tuple[tuple[str, str, str, Callable[[KernelProfile], float]], ...] = (
    ("duration_us", "time, us", "{:,.2f}", _figure("duration", 1e6)),
    ("memory_pct", "memory, % of peak", "{:.1f}", _figure("memory_pct")),
    ("sm_pct", "multiprocessors, % of peak", "{:.1f}", _figure("sm_pct")),
    ("dram_pct", "DRAM, % of peak", "{:.1f}", _figure("dram_pct")),
    ("dram_read_mb", "DRAM read, MB", "{:,.3f}", _figure("dram_read", 1e-6)),
    ("dram_written_mb", "DRAM written, MB", "{:,.3f}", _figure("dram_written", 1e-6)),
    ("l2_hit_pct", "L2 hits, %", "{:.1f}", _figure("l2_hit_pct")),
    ("l1_hit_pct", "L1 hits, %", "{:.1f}", _figure("l1_hit_pct")),
    ("load_sectors_per_request", "sectors a load request", "{:.2f}", _ratio("load_sectors", "load_requests")),
    ("store_sectors_per_request", "sectors a store request", "{:.2f}", _ratio("store_sectors", "store_requests")),
    ("load_used_pct", "bytes used of loaded sectors, %", "{:.1f}", _figure("load_used_pct")),
    ("store_used_pct", "bytes used of stored sectors, %", "{:.1f}", _figure("store_used_pct")),
    ("bank_conflicts", "bank conflicts", "{:,.0f}",
     lambda profile: profile["conflicts_load"] + profile["conflicts_store"]),
    ("shared_passes", "passes of shared memory to the ideal", "{:.2f}",
     _ratio("shared_wavefronts", "shared_wavefronts_ideal")),
    ("local_loads", "loads from local memory", "{:,.0f}", _figure("local_loads")),
    ("local_stores", "stores to local memory", "{:,.0f}", _figure("local_stores")),
    ("occupancy_pct", "occupancy achieved, %", "{:.1f}", _figure("occupancy_pct")),
    ("occupancy_max_pct", "occupancy possible, %", "{:.1f}", _figure("occupancy_max_pct")),
    ("registers", "registers a thread", "{:.0f}", _figure("registers")),
    ("smem_static", "shared memory static, bytes", "{:,.0f}", _figure("smem_static")),
    ("smem_dynamic", "shared memory dynamic, bytes", "{:,.0f}", _figure("smem_dynamic")),
    ("grid", "blocks", "{:,.0f}", _figure("grid")),
    ("block", "threads a block", "{:,.0f}", _figure("block")),
    ("waves", "waves", "{:.2f}", _figure("waves")),
    ("pipe_tensor_pct", "matrix units, %", "{:.1f}", _figure("pipe_tensor_pct")),
    ("pipe_fma_pct", "FMA, %", "{:.1f}", _figure("pipe_fma_pct")),
    ("pipe_alu_pct", "ALU, %", "{:.1f}", _figure("pipe_alu_pct")),
    ("pipe_lsu_pct", "LSU, %", "{:.1f}", _figure("pipe_lsu_pct")),
)  # fmt: skip


@dataclass(frozen=True)
class Extract:
    """What one launch's profile says.

    Attributes:
        profile: the launch.
        needed: the bytes that it must move, where they are known.
        figures: by the keys of :data:`FIGURES`, without those that the report does not hold.
        limiter: what limits the occupancy.
        stalls: what warps waited for, in percent, longest first.
        diagnosis: what limits it.
    """

    profile: KernelProfile
    needed: Needed | None
    figures: dict[str, float]
    limiter: str
    stalls: tuple[tuple[str, float], ...]
    diagnosis: Diagnosis

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "kernel": self.profile.name,
            "figures": self.figures,
            "needed": None if self.needed is None else asdict(self.needed),
            "occupancy_limited_by": self.limiter,
            "stalls_pct": dict(self.stalls),
            "bound": self.diagnosis.bound,
            "findings": [finding.rule for finding in self.diagnosis.findings],
            "diagnosis": self.diagnosis.text,
        }


def extract(profile: KernelProfile, needed: Needed | None = None) -> Extract:
    """The figures and the diagnosis of one launch."""
    figures = {}
    for key, _, _, read in FIGURES:
        with contextlib.suppress(MissingFigure):
            figures[key] = read(profile)
    stalls = tuple((reason, share) for reason, share in profile.stalls() if share >= 0.5)
    return Extract(profile, needed, figures, limited_by(profile), stalls, diagnose(profile, needed))


def extract_text(found: Extract) -> str:
    """An extract for a terminal."""
    lines = [found.profile.name]
    for key, label, form, _ in FIGURES:
        if key in found.figures:
            lines.append(f"  {label:<38}{form.format(found.figures[key]):>16}{_beside(key, found)}")
    shown = ", ".join(f"{reason} {share:.0f} %" for reason, share in found.stalls[:6])
    if shown:
        lines.append(f"  warps were: {shown}")
    lines.append(f"  {found.diagnosis.text}")
    return "\n".join(lines)


def _beside(key: str, found: Extract) -> str:
    if key == "occupancy_max_pct" and found.limiter:
        return f"   limited by {found.limiter}"
    if found.needed is None:
        return ""
    must = {"dram_read_mb": found.needed.read, "dram_written_mb": found.needed.written}.get(key)
    return "" if must is None else f"   must move {must / 1e6:,.3f}"


def compare_text(a: Sequence[Extract], b: Sequence[Extract]) -> str:
    """Two profiles side by side.

    Launches are paired by name.  The others are paired by order where there are as many launches in both profiles, and
    listed at the end where not.

    Raises:
        ProfileError: they hold different numbers of launches, and none of one name, so that no pairing is meant.
    """
    rest = list(b)
    partners: list[Extract | None] = []
    for left in a:
        partners.append(next((right for right in rest if right.profile.name == left.profile.name), None))
        rest = [right for right in rest if right is not partners[-1]]
    if len(a) == len(b):
        partners = [right or rest.pop(0) for right in partners]
    pairs = [(left, right) for left, right in zip(a, partners, strict=True) if right is not None]
    if not pairs:
        raise ProfileError(
            "expected two profiles with a kernel in common, or with as many launches as each other, got "
            f"{len(a)} and {len(b)} launches of different kernels; name one kernel with --kernel."
        )
    lines: list[str] = []
    for left, right in pairs:
        names = dict.fromkeys((left.profile.name, right.profile.name))
        lines += ["  |  ".join(names), f"  {'':<38}{'A':>16}{'B':>16}{'B / A':>9}"]
        for key, label, form, _ in FIGURES:
            x, y = left.figures.get(key), right.figures.get(key)
            if x is None and y is None:
                continue
            shown = [form.format(value) if value is not None else "-" for value in (x, y)]
            ratio = f"{y / x:>9.2f}" if x and y is not None else ""
            lines.append(f"  {label:<38}{shown[0]:>16}{shown[1]:>16}{ratio}")
        lines += [f"  A: {left.diagnosis.text}", f"  B: {right.diagnosis.text}"]
    alone = {"A": [left for left, right in zip(a, partners, strict=True) if right is None], "B": rest}
    lines += [f"only in {side}: {', '.join(e.profile.name for e in found)}" for side, found in alone.items() if found]
    return "\n".join(lines)


def select(profiles: Sequence[KernelProfile], kernel: str | None) -> list[KernelProfile]:
    """The launches of one kernel, or all.

    Args:
        profiles: the launches of a report.
        kernel: a part of the kernel's name; None for all.

    Raises:
        ProfileError: no launch has that name.
    """
    found = [profile for profile in profiles if kernel is None or kernel in profile.name]
    if not found:
        names = ", ".join(dict.fromkeys(profile.name for profile in profiles))
        raise ProfileError(f"expected a kernel whose name holds {kernel!r}; the report has {names}.")
    return found


def load_needed(path: Path) -> list[tuple[str, Needed]]:
    """The kernels of a workload's manifest and the bytes that each must move, in order.

    Of an operation of several kernels, the first is taken to move all its bytes.

    Raises:
        ProfileError: the file is not a manifest.
    """
    try:
        return [
            (kernel, Needed(work["read"], work["written"]) if number == 0 else Needed())
            for work in json.loads(path.read_text(encoding="utf-8"))["works"]
            for number, kernel in enumerate(work["kernels"])
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProfileError(f"{path}: expected the manifest that a profiled workload writes: {error!r}") from error
