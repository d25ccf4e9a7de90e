"""What limits a kernel, by rules that are written down.

Each rule looks at a few figures of one profile and answers with a sentence that holds the figures, or with nothing.
The first four name causes, the others what a cause may lead to (spills and strided accesses overflow the caches), so
causes come first; then what explains more.  The diagnosis is what bounds the kernel, then the two first findings.  A
rule whose figures are not in the report does not answer.

    rule              asks                                                      answers from
    spills            do warps load and store local memory?                     2 % of the instructions
    uncoalesced       how many bytes of a touched sector are used?              less than 60 %, a tenth of all sectors
    bank conflicts    how many passes of shared memory are due to conflicts?    25 % of them, and 5 % of the time
    too little work   does every multiprocessor have a block?                   under 90 % of them
    low occupancy     are there warps enough to wait?                           under 30 %, nothing at 60 % of peak
    re-read           is more read than the operation must read?                25 % more, and a tenth of its bytes
    re-written        is more written than it must write?                       25 % more, and a tenth of its bytes

The thresholds lie well outside what the sound kernels of the recorded runs show; tests hold both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forge_core.profiling.counters import STALLS
from forge_core.profiling.readers import KernelProfile

__all__ = ["RULES", "Diagnosis", "Finding", "Needed", "Rule", "diagnose"]

SECTOR = 32


@dataclass(frozen=True)
class Needed:
    """The bytes that the operation must move at least.

    Attributes:
        read: bytes read.
        written: bytes written.
    """

    read: int
    written: int


@dataclass(frozen=True)
class Finding:
    """What one rule found.

    Attributes:
        rule: the rule's name.
        weight: how much it explains, from 0 up.
        sentence: what was found, with its figures.
        cause: whether it is a cause, rather than what one may lead to.
    """

    rule: str
    weight: float
    sentence: str
    cause: bool = True


@dataclass(frozen=True)
class Rule:
    """One rule: its name, and what it asks of a profile."""

    name: str
    find: Callable[[KernelProfile, Needed | None], Finding | None]


@dataclass(frozen=True)
class Diagnosis:
    """What limits a kernel.

    Attributes:
        bound: "DRAM", "L2", "L1 and shared memory", "arithmetic", or "latency" where nothing is near its peak.
        findings: what the rules found, causes first.
        text: two or three sentences.
    """

    bound: str
    findings: tuple[Finding, ...]
    text: str


# From this share of its peak on, a unit is what bounds a kernel.
BOUND_FROM = 60.0

# A kernel whose share of DRAM's peak is this much of its share of the L2's streams: DRAM is what it waits for.
STREAMS_FROM = 0.6


def diagnose(profile: KernelProfile, needed: Needed | None = None) -> Diagnosis:
    """What limits a kernel, in two or three sentences.

    Args:
        profile: one launch.
        needed: the bytes that the operation must move at least, where they are known.
    """
    found = [finding for rule in RULES if (finding := rule.find(profile, needed)) is not None]
    found.sort(key=lambda finding: (not finding.cause, -finding.weight))
    bound, first = _bound(profile)
    sentences = [first, *(finding.sentence for finding in found[:2])]
    if len(sentences) < 3:
        waiting = _waiting(profile)
        sentences += [waiting] if waiting else []
    return Diagnosis(bound, tuple(found), " ".join(sentences))


def _bound(profile: KernelProfile) -> tuple[str, str]:
    units = {
        "DRAM": profile.get("dram_pct"),
        "L2": profile.get("l2_pct"),
        "L1 and shared memory": profile.get("l1_pct"),
        "arithmetic": profile.get("sm_pct"),
    }
    known = {name: value for name, value in units.items() if value is not None}
    if not known:
        return "unknown", "The report holds no throughput, so what bounds the kernel is not known."
    name = max(known, key=lambda key: known[key])
    value = known[name]
    dram, l2 = known.get("DRAM", 0.0), known.get("L2", 0.0)
    if value >= BOUND_FROM and name in ("DRAM", "L2") and dram >= STREAMS_FROM * l2:
        # What streams through both is limited by the memory's bandwidth; the L2's own peak is a little higher.
        return "DRAM", f"Bound by the memory's bandwidth: DRAM at {dram:.0f} % of its peak, the L2 at {l2:.0f} %."
    if value >= BOUND_FROM:
        what = "the multiprocessors' own throughput" if name == "arithmetic" else f"the bandwidth of {name}"
        return name, f"Bound by {what}, at {value:.0f} % of its peak."
    shown = ", ".join(f"{key} {number:.0f} %" for key, number in known.items())
    return "latency", f"Bound by latency: nothing is near its peak ({shown})."


def _waiting(profile: KernelProfile) -> str:
    for reason, share in profile.stalls():
        if reason not in ("selected", "not_selected"):
            return f"Its warps spend {share:.0f} % of their time waiting for {STALLS[reason]}."
    return ""


def _spills(profile: KernelProfile, needed: Needed | None) -> Finding | None:
    loads, stores, all_of = (profile.get(name) for name in ("local_loads", "local_stores", "instructions"))
    if loads is None or stores is None or not all_of:
        return None
    share = 100 * (loads + stores) / all_of
    if share < 2:
        return None
    registers = profile.get("registers")
    having = f" at {registers:.0f} registers a thread" if registers is not None else ""
    return Finding(
        "spills",
        2 + share / 10,
        f"Registers spill: {share:.0f} % of the instructions load or store local memory{having}; "
        "keep fewer values alive, or allow more registers.",
    )


def _uncoalesced(profile: KernelProfile, needed: Needed | None) -> Finding | None:
    worst: tuple[float, str, float] | None = None
    for kind, plural in (("load", "loads"), ("store", "stores")):
        used, sectors, requests = (profile.get(f"{kind}_{name}") for name in ("used_pct", "sectors", "requests"))
        # A request that touches one sector cannot touch fewer, however little of it is used.
        if used is None or not sectors or not requests or used >= 60 or sectors / requests < 1.5:
            continue
        if worst is None or sectors * (100 - used) > worst[0]:
            worst = (sectors * (100 - used), plural, used)
    if worst is None:
        return None
    _, plural, used = worst
    kind = plural[:-1]
    sectors = (profile.get(f"{kind}_sectors") or 0) / (profile.get(f"{kind}_requests") or 1)
    # A few strided accesses beside many contiguous ones cost nothing: what counts is their part of all sectors.
    everything = (profile.get("load_sectors") or 0) + (profile.get("store_sectors") or 0)
    part = worst[0] / 100 / everything
    if part < 0.1:
        return None
    return Finding(
        "uncoalesced",
        1 + 4 * part,
        f"Its global {plural} are not coalesced: a warp's request touches {sectors:.1f} sectors of {SECTOR} bytes and "
        f"uses {used:.0f} % of them; let neighbouring lanes access neighbouring addresses.",
    )


def _bank_conflicts(profile: KernelProfile, needed: Needed | None) -> Finding | None:
    total, ideal = profile.get("shared_wavefronts"), profile.get("shared_wavefronts_ideal")
    if total is None or ideal is None:
        parts = [profile.get(name) for name in ("wavefronts_load", "wavefronts_store")]
        lost = [profile.get(name) for name in ("conflicts_load", "conflicts_store")]
        if None in parts or None in lost:
            return None
        total = sum(value or 0 for value in parts)
        ideal = total - sum(value or 0 for value in lost)
    busy = profile.get("shared_pct")
    if not total or (total - ideal) / total < 0.25 or (busy is not None and busy < 5):
        return None
    share = (total - ideal) / total
    ways = total / max(ideal, 1)
    return Finding(
        "bank conflicts",
        1 + 2 * share,
        f"Shared memory has bank conflicts: {100 * share:.0f} % of its passes are repeats ({ways:.1f} passes where 1 "
        "would do); pad or swizzle the tile.",
    )


def _too_little_work(profile: KernelProfile, needed: Needed | None) -> Finding | None:
    grid, sms = profile.get("grid"), profile.get("sms")
    if grid is None or not sms or grid >= 0.9 * sms:
        return None
    return Finding(
        "too little work",
        2 + 2 * (1 - grid / sms),
        f"Too little parallelism: {grid:.0f} blocks leave {sms - grid:.0f} of {sms:.0f} multiprocessors idle; "
        "split the work into more blocks.",
    )


def _low_occupancy(profile: KernelProfile, needed: Needed | None) -> Finding | None:
    achieved, most = profile.get("occupancy_pct"), profile.get("occupancy_max_pct")
    units = [profile.get(name) for name in ("dram_pct", "l2_pct", "l1_pct", "sm_pct")]
    if achieved is None or achieved >= 30 or max((u for u in units if u is not None), default=100.0) >= BOUND_FROM:
        return None
    limiter = limited_by(profile)
    limits = f" (at most {most:.0f} %, limited by {limiter})" if most is not None and limiter else ""
    return Finding(
        "low occupancy",
        1.0,
        f"Too few warps to hide latency: {achieved:.0f} % of the warp slots are in use{limits}.",
        cause=False,
    )


def limited_by(profile: KernelProfile) -> str:
    """What keeps a multiprocessor from holding more blocks, in words; empty where the report does not say."""
    names = {"limit_warps": "warps", "limit_blocks": "block slots", "limit_registers": "registers",
             "limit_shared": "shared memory", "limit_barriers": "barriers"}  # fmt: skip
    found = {text: value for name, text in names.items() if (value := profile.get(name)) is not None}
    if found.get("barriers") == found.get("block slots"):
        found.pop("barriers", None)  # a kernel with one barrier or none: what is counted is the block slots again
    least = min(found.values(), default=None)
    return " and ".join(text for text, value in found.items() if value == least)


def _more(side: str) -> Callable[[KernelProfile, Needed | None], Finding | None]:
    read = side == "read"

    def find(profile: KernelProfile, needed: Needed | None) -> Finding | None:
        moved = profile.get("dram_read" if read else "dram_written")
        must = (needed.read if read else needed.written) if needed is not None else 0
        if moved is None or needed is None or not must or moved < 1.25 * must:
            return None
        # Beside a large input, a small output drowns in what else the GPU writes back.
        if moved - must < 0.1 * (needed.read + needed.written):
            return None
        verb = "reads" if read else "writes"
        advice = (
            "keep what is needed again on chip, or order the work so that it is still in the L2"
            if read
            else "write each byte once, in whole sectors"
        )
        return Finding(
            "re-read" if read else "re-written",
            1 + 2 * (moved / must - 1),
            f"It {verb} DRAM {moved / must:.1f} times what it must ({moved / 1e6:.1f} MB where {must / 1e6:.1f} MB "
            f"would do); {advice}.",
            cause=False,
        )

    return find


#: The rules, in the order of the table above.
RULES: tuple[Rule, ...] = (
    Rule("spills", _spills),
    Rule("uncoalesced", _uncoalesced),
    Rule("bank conflicts", _bank_conflicts),
    Rule("too little work", _too_little_work),
    Rule("low occupancy", _low_occupancy),
    Rule("re-read", _more("read")),
    Rule("re-written", _more("written")),
)
