"""What a profile says, as figures and as text, and two of them side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_core.profiling.diagnosis import Diagnosis, Needed, diagnose, limited_by
from forge_core.profiling.readers import KernelProfile, ProfileError

__all__ = ["FIGURES", "Extract", "compare_text", "extract", "extract_text", "load_needed", "select"]


def _ratio(above: str, below: str) -> Callable[[KernelProfile], float | None]:
    def value(profile: KernelProfile) -> float | None:
        a, b = profile.get(above), profile.get(below)
        return a / b if a is not None and b else None

    return value


def _figure(name: str, scale: float = 1.0) -> Callable[[KernelProfile], float | None]:
    def value(profile: KernelProfile) -> float | None:
        found = profile.get(name)
        return None if found is None else found * scale

    return value


def _conflicts(profile: KernelProfile) -> float | None:
    found = [profile.get(name) for name in ("conflicts_load", "conflicts_store")]
    return None if None in found else sum(value or 0 for value in found)


#: The figures of an extract, in order: key, label, format, and where it comes from.
FIGURES: tuple[tuple[str, str, str, Callable[[KernelProfile], float | None]], ...] = (
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
    ("bank_conflicts", "bank conflicts", "{:,.0f}", _conflicts),
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
        figures: by the keys of :data:`FIGURES`; those that the report does not hold are left out.
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
            "needed": None if self.needed is None else {"read": self.needed.read, "written": self.needed.written},
            "occupancy_limited_by": self.limiter,
            "stalls_pct": dict(self.stalls),
            "bound": self.diagnosis.bound,
            "findings": [finding.rule for finding in self.diagnosis.findings],
            "diagnosis": self.diagnosis.text,
        }


def extract(profile: KernelProfile, needed: Needed | None = None) -> Extract:
    """The figures and the diagnosis of one launch."""
    figures = {key: value for key, _, _, read in FIGURES if (value := read(profile)) is not None}
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
    """Two profiles side by side: launches are paired by name and order, the others by order alone.

    Of profiles that hold different numbers of launches, those without a partner of their name are listed at the end.

    Raises:
        ProfileError: they hold different numbers of launches, and none of one name, so that no pairing is meant.
    """
    pairs = _paired(a, b)
    if len(a) != len(b):
        pairs = [(left, right) for left, right in pairs if left.profile.name == right.profile.name]
        if not pairs:
            raise ProfileError(
                "expected two profiles with a kernel in common, or with as many launches as each other, got "
                f"{len(a)} and {len(b)} launches of different kernels; name one kernel with --kernel."
            )
    lines: list[str] = []
    for left, right in pairs:
        same = left.profile.name == right.profile.name
        title = left.profile.name if same else f"{left.profile.name}  |  {right.profile.name}"
        lines += [title, f"  {'':<38}{'A':>16}{'B':>16}{'B / A':>9}"]
        for key, label, form, _ in FIGURES:
            x, y = left.figures.get(key), right.figures.get(key)
            if x is None and y is None:
                continue
            shown = [form.format(value) if value is not None else "-" for value in (x, y)]
            ratio = f"{y / x:>9.2f}" if x and y is not None else f"{'':>9}"
            lines.append(f"  {label:<38}{shown[0]:>16}{shown[1]:>16}{ratio}".rstrip())
        lines += [f"  A: {left.diagnosis.text}", f"  B: {right.diagnosis.text}"]
    for side, found, of_pair in (("A", a, 0), ("B", b, 1)):
        shown_of = [id(pair[of_pair]) for pair in pairs]
        alone = [each.profile.name for each in found if id(each) not in shown_of]
        lines += [f"only in {side}: {', '.join(alone)}"] if alone else []
    return "\n".join(lines)


def _paired(a: Sequence[Extract], b: Sequence[Extract]) -> list[tuple[Extract, Extract]]:
    rest = list(b)
    partners: dict[int, Extract] = {}
    for index, left in enumerate(a):
        match = next((right for right in rest if right.profile.name == left.profile.name), None)
        if match is not None:
            rest.remove(match)
            partners[index] = match
    return [(left, partners[i] if i in partners else rest.pop(0)) for i, left in enumerate(a) if i in partners or rest]


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
    """The kernels of a workload's manifest and the bytes that the operation of each must move.

    A launch of several kernels moves the operation's bytes with the first; the others have none of their own.

    Raises:
        ProfileError: the file is not a manifest.
    """
    try:
        works = json.loads(path.read_text(encoding="utf-8"))["works"]
        return [
            (kernel, Needed(work["read"] if first else 0, work["written"] if first else 0))
            for work in works
            for kernel, first in zip(work["kernels"], [True] + [False] * len(work["kernels"]), strict=False)
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProfileError(f"{path}: expected the manifest that a profiled workload writes: {error!r}") from error
