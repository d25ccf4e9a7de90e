"""What limits a kernel, by written rules.

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

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter

from forge_core.profiling.counters import STALLS
from forge_core.profiling.readers import KernelProfile, MissingFigure

__all__ = ["RULES", "Diagnosis", "Finding", "Needed", "Rule", "diagnose", "limited_by", "waits_for"]


@dataclass(frozen=True)
class Needed:
    """The bytes that the operation must read and write at least; 0 where not known."""

    read: int = 0
    written: int = 0


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: as in the table of the module's docstring.
        find: the weight of a finding (how much it explains, from 0 up) and its sentence; None where there is none.
        cause: whether it names a cause, rather than what one may lead to.
    """

    name: str
    find: Callable[[KernelProfile, Needed], tuple[float, str] | None]
    cause: bool = True


@dataclass(frozen=True)
class Finding:
    """What a rule found: its name, and a sentence with the figures."""

    rule: str
    sentence: str


@dataclass(frozen=True)
class Diagnosis:
    """What limits a kernel.

    Attributes:
        bound: "DRAM", "L2", "L1 and shared memory", "arithmetic", "latency" where nothing is near its peak, or
            "unknown" where the report holds no throughput.
        findings: what the rules found, causes first.
        text: two or three sentences.
    """

    bound: str
    findings: tuple[Finding, ...]
    text: str


#: The units that can bound a kernel, and their throughput in percent of the peak.
UNITS = {"DRAM": "dram_pct", "L2": "l2_pct", "L1 and shared memory": "l1_pct", "arithmetic": "sm_pct"}

#: Percent of its peak from which on a unit bounds a kernel.
BOUND_FROM = 60.0

#: From this ratio of DRAM's percentage to the L2's on, a kernel streams through the L2, and DRAM is what bounds it.
STREAMS_FROM = 0.6


def diagnose(profile: KernelProfile, needed: Needed | None = None) -> Diagnosis:
    """What limits a kernel, in two or three sentences.

    Args:
        profile: one launch.
        needed: the bytes that the operation must move at least, where they are known.
    """
    ranked = []
    for rule in RULES:
        try:
            found = rule.find(profile, needed or Needed())
        except MissingFigure:
            continue
        if found is not None:
            weight, sentence = found
            ranked.append((not rule.cause, -weight, Finding(rule.name, sentence)))
    findings = tuple(finding for *_, finding in sorted(ranked, key=itemgetter(0, 1)))
    bound, first = _bound(profile)
    sentences = [first, *(finding.sentence for finding in findings[:2])]
    reason, share = waits_for(profile.stalls())
    if len(sentences) < 3 and reason:
        sentences.append(f"Its warps spend {share:.0f} % of their time waiting for {STALLS[reason]}.")
    return Diagnosis(bound, findings, " ".join(sentences))


def _bound(profile: KernelProfile) -> tuple[str, str]:
    known = {unit: value for unit, name in UNITS.items() if (value := profile.get(name)) is not None}
    if not known:
        return "unknown", "The report holds no throughput, so what bounds the kernel is not known."
    unit, value = max(known.items(), key=lambda item: item[1])
    dram, l2 = known.get("DRAM", 0.0), known.get("L2", 0.0)
    if value < BOUND_FROM:
        shown = ", ".join(f"{key} {number:.0f} %" for key, number in known.items())
        return "latency", f"Bound by latency: nothing is near its peak ({shown})."
    if unit in ("DRAM", "L2") and dram >= STREAMS_FROM * l2:
        # What streams through both is limited by the memory's bandwidth; the L2's own peak is a little higher.
        return "DRAM", f"Bound by the memory's bandwidth: DRAM at {dram:.0f} % of its peak, the L2 at {l2:.0f} %."
    what = "the multiprocessors' own throughput" if unit == "arithmetic" else f"the bandwidth of {unit}"
    return unit, f"Bound by {what}, at {value:.0f} % of its peak."


def waits_for(stalls: Iterable[tuple[str, float]]) -> tuple[str, float]:
    """The longest stall that is a wait, as ``KernelProfile.stalls`` has it; an empty word where there is none."""
    return next((stall for stall in stalls if stall[0] not in ("selected", "not_selected")), ("", 0.0))


def limited_by(profile: KernelProfile) -> str:
    """The resources that limit the occupancy, in words; empty where the report does not say."""
    names = {"limit_warps": "warps", "limit_blocks": "block slots", "limit_registers": "registers",
             "limit_shared": "shared memory", "limit_barriers": "barriers"}  # fmt: skip
    found = {text: value for name, text in names.items() if (value := profile.get(name)) is not None}
    if found.get("barriers") == found.get("block slots"):
        found.pop("barriers", None)  # a kernel with one barrier or none: what is counted is the block slots again
    least = min(found.values(), default=None)
    return " and ".join(text for text, value in found.items() if value == least)


def _spills(profile: KernelProfile, _: Needed) -> tuple[float, str] | None:
    share = 100 * (profile["local_loads"] + profile["local_stores"]) / max(profile["instructions"], 1)
    if share < 2:
        return None
    registers = profile.get("registers")
    having = f" at {registers:.0f} registers a thread" if registers is not None else ""
    return (
        2 + share / 10,
        (
            f"Registers spill: {share:.0f} % of the instructions load or store local memory{having}; "
            "keep fewer values alive, or allow more registers."
        ),
    )


def _uncoalesced(profile: KernelProfile, _: Needed) -> tuple[float, str] | None:
    worst = (0.0, "", 0.0, 0.0)
    for kind in ("load", "store"):
        used, sectors, requests = (profile.get(f"{kind}_{name}") for name in ("used_pct", "sectors", "requests"))
        # A request that touches one sector cannot touch fewer, however little of it is used.
        if used is not None and sectors and requests and used < 60 and sectors / requests >= 1.5:
            worst = max(worst, (sectors * (100 - used) / 100, kind, sectors / requests, used), key=itemgetter(0))
    wasted, kind, per_request, used = worst
    # A few strided accesses beside many contiguous ones cost nothing: what counts is their part of all sectors.
    everything = (profile.get("load_sectors") or 0) + (profile.get("store_sectors") or 0)
    if not wasted or wasted / everything < 0.1:
        return None
    return (
        1 + 4 * wasted / everything,
        (
            f"Its global {kind}s are not coalesced: a warp's request touches {per_request:.1f} sectors of 32 bytes and "
            f"uses {used:.0f} % of them; let neighbouring lanes access neighbouring addresses."
        ),
    )


def _bank_conflicts(profile: KernelProfile, _: Needed) -> tuple[float, str] | None:
    total, ideal = profile.get("shared_wavefronts"), profile.get("shared_wavefronts_ideal")
    if total is None or ideal is None:
        total = profile["wavefronts_load"] + profile["wavefronts_store"]
        ideal = total - profile["conflicts_load"] - profile["conflicts_store"]
    share, busy = (total - ideal) / max(total, 1), profile.get("shared_pct")
    if share < 0.25 or (busy is not None and busy < 5):
        return None
    return (
        1 + 2 * share,
        (
            f"Shared memory has bank conflicts: {100 * share:.0f} % of its passes are repeats "
            f"({total / max(ideal, 1):.1f} passes where 1 would do); pad or swizzle the tile."
        ),
    )


def _too_little_work(profile: KernelProfile, _: Needed) -> tuple[float, str] | None:
    grid, sms = profile["grid"], profile["sms"]
    if grid >= 0.9 * sms:
        return None
    return (
        2 + 2 * (1 - grid / sms),
        (
            f"Too little parallelism: {grid:.0f} blocks leave {sms - grid:.0f} of {sms:.0f} multiprocessors idle; "
            "split the work into more blocks."
        ),
    )


def _low_occupancy(profile: KernelProfile, _: Needed) -> tuple[float, str] | None:
    achieved, most = profile["occupancy_pct"], profile.get("occupancy_max_pct")
    units = [value for name in UNITS.values() if (value := profile.get(name)) is not None]
    if achieved >= 30 or max(units, default=100.0) >= BOUND_FROM:
        return None
    limiter = limited_by(profile)
    limits = f" (at most {most:.0f} %, limited by {limiter})" if most is not None and limiter else ""
    return 1.0, f"Too few warps to hide latency: {achieved:.0f} % of the warp slots are in use{limits}."


def _moves_more(moved: float, must: int, needed: Needed, verb: str, advice: str) -> tuple[float, str] | None:
    # Beside a large input, a small output drowns in what else the GPU writes back.
    if not must or moved < 1.25 * must or moved - must < 0.1 * (needed.read + needed.written):
        return None
    return (
        1 + 2 * (moved / must - 1),
        (
            f"It {verb} DRAM {moved / must:.1f} times what it must ({moved / 1e6:.1f} MB where {must / 1e6:.1f} MB "
            f"would do); {advice}."
        ),
    )


def _reread(profile: KernelProfile, needed: Needed) -> tuple[float, str] | None:
    advice = "keep what is needed again on chip, or order the work so that it is still in the L2"
    return _moves_more(profile["dram_read"], needed.read, needed, "reads", advice)


def _rewritten(profile: KernelProfile, needed: Needed) -> tuple[float, str] | None:
    advice = "write each byte once, in whole sectors"
    return _moves_more(profile["dram_written"], needed.written, needed, "writes", advice)


#: The rules, in the order of the table above.
RULES: tuple[Rule, ...] = (
    Rule("spills", _spills),
    Rule("uncoalesced", _uncoalesced),
    Rule("bank conflicts", _bank_conflicts),
    Rule("too little work", _too_little_work),
    Rule("low occupancy", _low_occupancy, cause=False),
    Rule("re-read", _reread, cause=False),
    Rule("re-written", _rewritten, cause=False),
)
