"""Static counts of memory accesses and synchronization in PTX: a loop's body counts once."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_ENTRY = re.compile(r"^\.(?:visible|weak)\s+\.entry\s+([\w$]+)\s*\(", re.MULTILINE)
# The opcode of an instruction, after an optional predicate.
_OPCODE = re.compile(r"^\s*(?:@!?%?\w+\s+)?([a-z]\w*(?:\.[\w:]+)*)[\s;]", re.MULTILINE)
# shared::cta is a block's own shared memory, shared::cluster may be another block's.
_ACCESS = re.compile(r"(ld|st)\b.*?\.(?:shared::(cluster)|(global|shared|local))\b.*?(?:\.v([248]))?\.[bufs]f?(\d+)")
_MATRICES = re.compile(r"(ldmatrix|stmatrix)\b(?:.*\.x(\d)\b)?.*\.shared")
_LOCAL = re.compile(r"^\s*\.local\s+\.align\s+\d+\s+\.b8\s+\w+\[(\d+)\]", re.MULTILINE)
_COPY_BYTES = re.compile(r"cp\.async\.c[ag]\.shared\.global\S*\s+\[[^\]]*\],\s*\[[^\]]*\],\s*(\d+)")

#: Kinds of instructions that are counted beside loads and stores, with the prefixes of their opcodes.
KINDS: dict[str, tuple[str, ...]] = {
    "barriers": tuple(f"{name}.{kind}" for name in ("bar", "barrier") for kind in ("sync", "arrive", "red", "cta.")),
    "warp barriers": ("bar.warp.",),
    "cluster barriers": ("barrier.cluster.",),
    "mbarrier operations": ("mbarrier.",),
    "shuffles": ("shfl.",),
    "votes": ("vote.", "match.", "redux."),
    "async copies": ("cp.async.ca.", "cp.async.cg."),
    "bulk copies": ("cp.async.bulk.", "cp.reduce.async.bulk."),
    "atomics": ("atom.", "red."),
    "matrix instructions": ("mma.", "wmma.", "wgmma.mma", "tcgen05.mma"),
}


@dataclass(frozen=True)
class PtxCounts:
    """The counts of one kernel's PTX."""

    #: By kind, state space and bytes a thread: ``{"ld.global.16": 4}``; a copy to shared memory is ``cp.async.16``.
    accesses: dict[str, int]
    kinds: dict[str, int]  # by the names of KINDS, without zeros
    local_bytes: int  # of local arrays that the source declares; the rest of a stack frame is spills

    def widths(self, access: str) -> list[int]:
        """The widths in bytes of a thread's accesses of one kind, for example ``"ld.global"``, widest first."""
        found = {int(name.rpartition(".")[2]) for name in self.accesses if name.rpartition(".")[0] == access}
        return sorted(found, reverse=True)


def count_instructions(ptx: str) -> dict[str, PtxCounts]:
    """The counts of each kernel of a PTX module, by name; raises ValueError if the text holds no kernel."""
    _, *parts = _ENTRY.split(ptx)
    if not parts:
        raise ValueError("expected PTX with an .entry, found none")
    counts = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        opcodes = _OPCODE.findall(body)
        accesses = Counter(filter(None, map(_access, opcodes)))
        accesses.update(f"cp.async.{size}" for size in _COPY_BYTES.findall(body))
        kinds = Counter(kind for opcode in opcodes for kind, prefixes in KINDS.items() if opcode.startswith(prefixes))
        counts[name] = PtxCounts(dict(sorted(accesses.items())), dict(kinds), sum(map(int, _LOCAL.findall(body))))
    return counts


def _access(opcode: str) -> str:
    """``"ld.global.16"`` for ``ld.global.nc.v4.b32``; "" for anything but global, shared and local accesses."""
    if found := _MATRICES.match(opcode):
        return f"{found[1]}.shared.{4 * int(found[2] or 1)}"
    if found := _ACCESS.fullmatch(opcode):
        kind, cluster, space, lanes, bits = found.groups()
        return f"{kind}.{cluster or space}.{int(lanes or 1) * int(bits) // 8}"
    return ""
