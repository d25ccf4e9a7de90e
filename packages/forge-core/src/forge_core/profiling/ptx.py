"""Static counts of memory accesses and synchronization in PTX: a loop's body counts once."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_ENTRY = re.compile(r"^\.(?:visible|weak)\s+\.entry\s+([\w$]+)\s*\(", re.MULTILINE)
# The opcode of an instruction, after an optional predicate.
_OPCODE = re.compile(r"^\s*(?:@!?%?\w+\s+)?([a-z]\w*(?:\.[\w:]+)*)[\s;]", re.MULTILINE)
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
    """The counts of each kernel of a PTX module, by name.

    Raises:
        ValueError: the text holds no kernel.
    """
    _, *parts = _ENTRY.split(ptx)
    if not parts:
        raise ValueError("expected PTX with an .entry, found none")
    return {name: _count(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def _count(body: str) -> PtxCounts:
    opcodes = _OPCODE.findall(body)
    accesses = Counter(filter(None, map(_access, opcodes)))
    accesses.update(f"cp.async.{size}" for size in _COPY_BYTES.findall(body))
    kinds = Counter(kind for opcode in opcodes for kind, prefixes in KINDS.items() if opcode.startswith(prefixes))
    local = sum(int(size) for size in _LOCAL.findall(body))
    return PtxCounts(dict(sorted(accesses.items())), dict(kinds), local)


def _access(opcode: str) -> str:
    """``"ld.global.16"`` for ``ld.global.nc.v4.b32``; "" for anything but global, shared and local accesses."""
    kind, *words = opcode.split(".")
    space = next((word for word in words if word.partition("::")[0] in ("global", "shared", "local")), None)
    if kind not in ("ld", "st", "ldmatrix", "stmatrix") or space is None:
        return ""
    if kind in ("ldmatrix", "stmatrix"):
        count = next((int(word[1:]) for word in words if re.fullmatch(r"x\d", word)), 1)
        return f"{kind}.shared.{4 * count}"
    element = re.fullmatch(r"[bufs](?:f)?(\d+)", words[-1])
    if element is None:
        return ""
    lanes = next((int(word[1:]) for word in words if re.fullmatch(r"v[248]", word)), 1)
    # shared::cta is a block's own shared memory, shared::cluster may be another block's.
    name = "cluster" if space == "shared::cluster" else space.partition("::")[0]
    return f"{kind}.{name}.{lanes * int(element.group(1)) // 8}"
