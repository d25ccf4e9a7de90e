"""What limits a kernel, by rules, and the figures of a profile as text.

Each rule reads a few figures of one launch and returns a sentence with them, or None; a rule whose figures the report
lacks is skipped.  Findings are ordered causes first, then symptoms (spills and strided accesses overflow the caches),
each by weight.  The diagnosis is what bounds the kernel, then the first two findings.  The thresholds lie well outside
what the sound kernels of the recorded runs show.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from forge_core.profiling.ncu import STALLS, KernelProfile, ProfileError


@dataclass(frozen=True)
class Needed:
    """The bytes that the operation must read and write at least; 0 if unknown."""

    read: int = 0
    written: int = 0


#: The weight of a finding (from 0 up) and its sentence, or None.
Found = tuple[float, str] | None


@dataclass(frozen=True)
class Rule:
    """One rule: its row of the table in docs/profiling.md, and the function that applies it."""

    name: str
    asks: str
    answers_from: str  # the threshold
    find: Callable[[KernelProfile, Needed], Found]
    cause: bool = True  # False: a symptom


#: The units that can bound a kernel, and the figures of their throughput in percent of peak.
UNITS = {"DRAM": "dram_pct", "L2": "l2_pct", "L1 and shared memory": "l1_pct", "arithmetic": "sm_pct"}

#: Percent of peak at which a unit bounds a kernel.
BOUND_FROM = 60.0

#: Ratio of DRAM's percentage to the L2's at which a kernel streams through the L2, and DRAM bounds it.
STREAMS_FROM = 0.6


def _bound(profile: KernelProfile) -> tuple[str, str]:
    """``Diagnosis.bound``, and a sentence that says so."""
    known = {unit: value for unit, name in UNITS.items() if (value := profile.get(name)) is not None}
    if not known:
        return "unknown", "The report holds no throughput, so what bounds the kernel is not known."
    unit, value = max(known.items(), key=itemgetter(1))
    dram, l2 = known.get("DRAM", 0.0), known.get("L2", 0.0)
    if value < BOUND_FROM:
        shown = ", ".join(f"{key} {number:.0f} %" for key, number in known.items())
        return "latency", f"Bound by latency: nothing is near its peak ({shown})."
    if unit in ("DRAM", "L2") and dram >= STREAMS_FROM * l2:
        # What streams through both is limited by the memory's bandwidth; the L2's own peak is a little higher.
        return "DRAM", f"Bound by the memory's bandwidth: DRAM at {dram:.0f} % of its peak, the L2 at {l2:.0f} %."
    what = "the multiprocessors' own throughput" if unit == "arithmetic" else f"the bandwidth of {unit}"
    return unit, f"Bound by {what}, at {value:.0f} % of its peak."


def waits_for(profile: KernelProfile) -> tuple[str, float]:
    """The longest of ``KernelProfile.stalls`` that is a wait; ("", 0.0) if there is none."""
    return next((stall for stall in profile.stalls() if stall[0] not in ("selected", "not_selected")), ("", 0.0))


def limited_by(profile: KernelProfile) -> str:
    """The resources that limit the occupancy, in words; "" if the report lacks them."""
    names = {"warps": "warps", "blocks": "block slots", "registers": "registers", "shared": "shared memory"}
    # With at most one barrier, ncu repeats the block slots.
    names |= {"barriers": "barriers"} if profile.get("limit_barriers") != profile.get("limit_blocks") else {}
    found = {text: value for name, text in names.items() if (value := profile.get(f"limit_{name}")) is not None}
    return " and ".join(text for text, value in found.items() if value == min(found.values()))


@partial(Rule, "spills", "do warps load and store local memory?", "2 % of the instructions")
def _spills(profile: KernelProfile, _: Needed) -> Found:
    share = 100 * (profile["local_loads"] + profile["local_stores"]) / max(profile["instructions"], 1)
    registers = profile.get("registers")
    having = f" at {registers:.0f} registers a thread" if registers is not None else ""
    sentence = (
        f"Registers spill: {share:.0f} % of the instructions load or store local memory{having}; "
        "keep fewer values alive, or allow more registers."
    )
    return (2 + share / 10, sentence) if share >= 2 else None


@partial(Rule, "uncoalesced", "how many bytes of a touched sector are used?", "less than 60 %, a tenth of all sectors")
def _uncoalesced(profile: KernelProfile, _: Needed) -> Found:
    worst = (0.0, "", 0.0, 0.0)
    for kind in ("load", "store"):
        used, sectors, requests = (profile.get(f"{kind}_{name}") for name in ("used_pct", "sectors", "requests"))
        # A request of one sector cannot touch fewer, however little of it is used.
        if used is not None and sectors and requests and used < 60 and sectors / requests >= 1.5:
            worst = max(worst, (sectors * (100 - used) / 100, kind, sectors / requests, used), key=itemgetter(0))
    wasted, kind, per_request, used = worst
    # A few strided accesses beside many contiguous ones cost nothing: weigh by their share of all sectors.
    share = wasted / max((profile.get("load_sectors") or 0) + (profile.get("store_sectors") or 0), 1)
    sentence = (
        f"Its global {kind}s are not coalesced: a warp's request touches {per_request:.1f} sectors of 32 bytes and "
        f"uses {used:.0f} % of them; let neighbouring lanes access neighbouring addresses."
    )
    return (1 + 4 * share, sentence) if share >= 0.1 else None


@partial(
    Rule,
    "bank conflicts",
    "how many passes of shared memory are due to conflicts?",
    "25 % of them, and 5 % of the time",
)
def _bank_conflicts(profile: KernelProfile, _: Needed) -> Found:
    total, ideal = profile.get("shared_wavefronts"), profile.get("shared_wavefronts_ideal")
    if total is None or ideal is None:
        total = profile["wavefronts_load"] + profile["wavefronts_store"]
        ideal = total - profile["conflicts_load"] - profile["conflicts_store"]
    share, busy = (total - ideal) / max(total, 1), profile.get("shared_pct")
    sentence = (
        f"Shared memory has bank conflicts: {100 * share:.0f} % of its passes are repeats "
        f"({total / max(ideal, 1):.1f} passes where 1 would do); pad or swizzle the tile."
    )
    return (1 + 2 * share, sentence) if share >= 0.25 and (busy is None or busy >= 5) else None


@partial(Rule, "too little work", "does every multiprocessor have a block?", "under 90 % of them")
def _too_little_work(profile: KernelProfile, _: Needed) -> Found:
    grid, sms = profile["grid"], profile["sms"]
    sentence = (
        f"Too little parallelism: {grid:.0f} blocks leave {sms - grid:.0f} of {sms:.0f} multiprocessors idle; "
        "split the work into more blocks."
    )
    return (2 + 2 * (1 - grid / sms), sentence) if grid < 0.9 * sms else None


@partial(Rule, "low occupancy", "are there warps enough to wait?", "under 30 %, nothing at 60 % of peak", cause=False)
def _low_occupancy(profile: KernelProfile, _: Needed) -> Found:
    achieved, most, limiter = profile["occupancy_pct"], profile.get("occupancy_max_pct"), limited_by(profile)
    limits = f" (at most {most:.0f} %, limited by {limiter})" if most is not None and limiter else ""
    sentence = f"Too few warps to hide latency: {achieved:.0f} % of the warp slots are in use{limits}."
    return (1.0, sentence) if achieved < 30 and _bound(profile)[0] == "latency" else None


@partial(
    Rule, "re-read", "is more read than the operation must read?", "25 % more, and a tenth of its bytes", cause=False
)
def _reread(profile: KernelProfile, needed: Needed) -> Found:
    advice = "keep what is needed again on chip, or order the work so that it is still in the L2"
    return _moves_more(profile["dram_read"], needed.read, needed, "reads", advice)


@partial(Rule, "re-written", "is more written than it must write?", "25 % more, and a tenth of its bytes", cause=False)
def _rewritten(profile: KernelProfile, needed: Needed) -> Found:
    advice = "write each byte once, in whole sectors"
    return _moves_more(profile["dram_written"], needed.written, needed, "writes", advice)


def _moves_more(moved: float, must: int, needed: Needed, verb: str, advice: str) -> Found:
    # Beside a large input, what else the GPU writes back exceeds a small output.
    if not must or moved < 1.25 * must or moved - must < 0.1 * (needed.read + needed.written):
        return None
    sentence = (
        f"It {verb} DRAM {moved / must:.1f} times what it must ({moved / 1e6:.1f} MB where {must / 1e6:.1f} MB "
        f"would do); {advice}."
    )
    return 1 + 2 * (moved / must - 1), sentence


#: All rules, in the order of docs/profiling.md.
RULES = (_spills, _uncoalesced, _bank_conflicts, _too_little_work, _low_occupancy, _reread, _rewritten)


#: The figures of a report, in order: key, label, format, and a function of a :class:`KernelProfile`.  A ratio raises
#: ZeroDivisionError where it is undefined.
FIGURES: tuple[tuple[str, str, str, Callable[[Any], float]], ...] = (
    ("duration_us", "time, us", "{:,.2f}", lambda p: p["duration"] * 1e6),
    ("memory_pct", "memory, % of peak", "{:.1f}", itemgetter("memory_pct")),
    ("sm_pct", "multiprocessors, % of peak", "{:.1f}", itemgetter("sm_pct")),
    ("dram_pct", "DRAM, % of peak", "{:.1f}", itemgetter("dram_pct")),
    ("dram_read_mb", "DRAM read, MB", "{:,.3f}", lambda p: p["dram_read"] * 1e-6),
    ("dram_written_mb", "DRAM written, MB", "{:,.3f}", lambda p: p["dram_written"] * 1e-6),
    ("l2_hit_pct", "L2 hits, %", "{:.1f}", itemgetter("l2_hit_pct")),
    ("l1_hit_pct", "L1 hits, %", "{:.1f}", itemgetter("l1_hit_pct")),
    ("load_sectors_per_request", "sectors a load request", "{:.2f}", lambda p: p["load_sectors"] / p["load_requests"]),
    ("store_sectors_per_request", "sectors a store request", "{:.2f}",
     lambda p: p["store_sectors"] / p["store_requests"]),
    ("load_used_pct", "bytes used of loaded sectors, %", "{:.1f}", itemgetter("load_used_pct")),
    ("store_used_pct", "bytes used of stored sectors, %", "{:.1f}", itemgetter("store_used_pct")),
    ("bank_conflicts", "bank conflicts", "{:,.0f}", lambda p: p["conflicts_load"] + p["conflicts_store"]),
    ("shared_passes", "passes of shared memory to the ideal", "{:.2f}",
     lambda p: p["shared_wavefronts"] / p["shared_wavefronts_ideal"]),
    ("local_loads", "loads from local memory", "{:,.0f}", itemgetter("local_loads")),
    ("local_stores", "stores to local memory", "{:,.0f}", itemgetter("local_stores")),
    ("occupancy_pct", "occupancy achieved, %", "{:.1f}", itemgetter("occupancy_pct")),
    ("occupancy_max_pct", "occupancy possible, %", "{:.1f}", itemgetter("occupancy_max_pct")),
    ("registers", "registers a thread", "{:.0f}", itemgetter("registers")),
    ("smem_static", "shared memory static, bytes", "{:,.0f}", itemgetter("smem_static")),
    ("smem_dynamic", "shared memory dynamic, bytes", "{:,.0f}", itemgetter("smem_dynamic")),
    ("grid", "blocks", "{:,.0f}", itemgetter("grid")),
    ("block", "threads a block", "{:,.0f}", itemgetter("block")),
    ("waves", "waves", "{:.2f}", itemgetter("waves")),
    ("pipe_tensor_pct", "matrix units, %", "{:.1f}", itemgetter("pipe_tensor_pct")),
    ("pipe_fma_pct", "FMA, %", "{:.1f}", itemgetter("pipe_fma_pct")),
    ("pipe_alu_pct", "ALU, %", "{:.1f}", itemgetter("pipe_alu_pct")),
    ("pipe_lsu_pct", "LSU, %", "{:.1f}", itemgetter("pipe_lsu_pct")),
)  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of one launch."""

    profile: KernelProfile
    needed: Needed | None
    bound: str  # one of UNITS; "latency": nothing is near its peak; "unknown": the report holds no throughput
    findings: dict[str, str]  # sentences by rule, causes first
    text: str  # two or three sentences

    @property
    def figures(self) -> dict[str, float]:
        """By the keys of :data:`FIGURES`, without those that the report lacks."""
        found = {}
        for key, _, _, read in FIGURES:
            with contextlib.suppress(LookupError, ZeroDivisionError):
                found[key] = read(self.profile)
        return found

    @property
    def stalls(self) -> dict[str, float]:
        """Stall reasons and their shares in percent, largest first, from 0.5 % up."""
        return {reason: share for reason, share in self.profile.stalls() if share >= 0.5}

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "kernel": self.profile.name,
            "figures": self.figures,
            "needed": None if self.needed is None else asdict(self.needed),
            "occupancy_limited_by": limited_by(self.profile),
            "stalls_pct": self.stalls,
            "bound": self.bound,
            "findings": list(self.findings),
            "diagnosis": self.text,
        }

    def report(self) -> str:
        """The figures and the diagnosis, for a terminal."""
        figures, limiter, stalls = self.figures, limited_by(self.profile), list(self.stalls.items())
        beside = {"occupancy_max_pct": f"   limited by {limiter}"} if limiter else {}
        if self.needed is not None:
            beside["dram_read_mb"] = f"   must move {self.needed.read / 1e6:,.3f}"
            beside["dram_written_mb"] = f"   must move {self.needed.written / 1e6:,.3f}"
        lines = [self.profile.name]
        for key, label, form, _ in FIGURES:
            if key in figures:
                lines.append(f"  {label:<38}{form.format(figures[key]):>16}{beside.get(key, '')}")
        if stalls:
            lines.append(f"  warps were: {', '.join(f'{reason} {share:.0f} %' for reason, share in stalls[:6])}")
        return "\n".join([*lines, f"  {self.text}"])


def diagnose(profile: KernelProfile, needed: Needed | None = None) -> Diagnosis:
    """Applies the rules to the profile of one launch."""
    ranked = []
    for rule in RULES:
        with contextlib.suppress(LookupError):
            found = rule.find(profile, needed or Needed())
            if found is not None:
                ranked.append((not rule.cause, -found[0], rule.name, found[1]))
    findings = {name: sentence for *_, name, sentence in sorted(ranked, key=itemgetter(0, 1))}
    bound, first = _bound(profile)
    sentences = [first, *findings.values()][:3]
    reason, share = waits_for(profile)
    if len(sentences) < 3 and reason:
        sentences.append(f"Its warps spend {share:.0f} % of their time waiting for {STALLS[reason]}.")
    return Diagnosis(profile, needed, bound, findings, " ".join(sentences))


def compare_text(a: Sequence[Diagnosis], b: Sequence[Diagnosis]) -> str:
    """Two profiles side by side.

    Launches are paired by name.  The others are paired by order if both profiles have as many launches, and listed at
    the end if not.

    Raises:
        ProfileError: no launches can be paired.
    """
    rest, pairs = list(b), []
    for left in a:
        same = next((right for right in rest if right.profile.name == left.profile.name), None)
        rest = [right for right in rest if right is not same]
        pairs.append((left, same))
    if len(a) == len(b):
        pairs = [(left, right or rest.pop(0)) for left, right in pairs]
    alone = [left for left, right in pairs if right is None]
    lines: list[str] = []
    for left, right in ((left, right) for left, right in pairs if right is not None):
        names = dict.fromkeys((left.profile.name, right.profile.name))
        lines += ["  |  ".join(names), f"  {'':<38}{'A':>16}{'B':>16}{'B / A':>9}"]
        figures = left.figures, right.figures
        for key, label, form, _ in FIGURES:
            x, y = (found.get(key) for found in figures)
            if x is not None or y is not None:
                shown = [form.format(value) if value is not None else "-" for value in (x, y)]
                ratio = f"{y / x:>9.2f}" if x and y is not None else ""
                lines.append(f"  {label:<38}{shown[0]:>16}{shown[1]:>16}{ratio}")
        lines += [f"  A: {left.text}", f"  B: {right.text}"]
    if not lines:
        raise ProfileError(
            "expected two profiles with a kernel in common, or with as many launches as each other, got "
            f"{len(a)} and {len(b)} launches of different kernels; name one kernel with --kernel."
        )
    sides = {"A": alone, "B": rest}
    lines += [f"only in {side}: {', '.join(e.profile.name for e in found)}" for side, found in sides.items() if found]
    return "\n".join(lines)
