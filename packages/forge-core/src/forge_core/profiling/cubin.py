"""The resources of a compiled kernel, read from the cubin.

A cubin is an ELF object.  Its section ``.nv.info`` is a list of records (form, attribute, payload), in which the first
word of a payload is the kernel's symbol; ``.nv.shared.NAME`` is as large as the kernel's static shared memory.  The
figures are those of ``cuobjdump --dump-resource-usage``.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

__all__ = ["KernelResources", "read_cubin"]

# Attributes of .nv.info records, and the one form whose payload has a length of its own.
_SIZED = 4
_FRAME_SIZE = 0x11
_REGISTERS = 0x2F
_REQUIRED_THREADS = 0x10

#: Bytes of each block's shared memory that the driver keeps, from sm_80 on; part of the section's size.
RESERVED_SMEM = 1024


@dataclass(frozen=True)
class KernelResources:
    """The resources of one kernel of a cubin.

    Attributes:
        name: the kernel's symbol.
        registers: of a thread.
        stack_bytes: of a thread's stack frame in local memory: spilled registers and local arrays.
        static_smem: bytes of static shared memory of a block, without the driver's share.
        barriers: named barriers of a block.
        block: the block's size where the kernel requires one, else None.
        code_bytes: bytes of instructions.
    """

    name: str
    registers: int
    stack_bytes: int
    static_smem: int
    barriers: int
    block: tuple[int, int, int] | None
    code_bytes: int


def read_cubin(cubin: bytes) -> tuple[KernelResources, ...]:
    """The kernels of a cubin, in the order of their code.

    Args:
        cubin: the ELF object, as the compiler keeps it with ``--keep-cubin``.

    Raises:
        ValueError: it is no cubin, or it holds no kernel.
    """
    try:
        elf = ELFFile(io.BytesIO(cubin))
    except ELFError as error:
        raise ValueError(f"expected a cubin (a 64-bit ELF object), got {len(cubin)} bytes that are none") from error
    sections = {section.name: section for section in elf.iter_sections()}
    symbols: Any = sections.get(".symtab")
    info = sections.get(".nv.info")
    if symbols is None or info is None:
        raise ValueError("expected a cubin, got an ELF object without .nv.info")
    registers: dict[str, int] = {}
    frames: dict[str, int] = {}
    for attribute, payload in _records(info.data()):
        if attribute in (_REGISTERS, _FRAME_SIZE):
            symbol, value = struct.unpack_from("<II", payload)
            name = symbols.get_symbol(symbol).name
            (registers if attribute == _REGISTERS else frames)[name] = value
    found = [
        _kernel(name.removeprefix(".text."), sections, registers, frames)
        for name in sections
        if name.startswith(".text.") and f".nv.info.{name.removeprefix('.text.')}" in sections
    ]
    if not found:
        raise ValueError("the cubin holds no kernel")
    return tuple(found)


def _kernel(name: str, sections: dict[str, Any], registers: dict[str, int], frames: dict[str, int]) -> KernelResources:
    text = sections[f".text.{name}"]
    block = None
    for attribute, payload in _records(sections[f".nv.info.{name}"].data()):
        if attribute == _REQUIRED_THREADS and len(payload) >= 12:
            block = struct.unpack_from("<III", payload)
    shared = sections.get(f".nv.shared.{name}")
    static = max(shared["sh_size"] - RESERVED_SMEM, 0) if shared is not None else 0
    return KernelResources(
        name=name,
        registers=registers.get(name, text["sh_info"] >> 24),
        stack_bytes=frames.get(name, 0),
        static_smem=static,
        barriers=text["sh_flags"] >> 20 & 0x7F,
        block=block,
        code_bytes=text["sh_size"],
    )


def _records(table: bytes) -> Iterator[tuple[int, bytes]]:
    """The attribute and the payload of each record."""
    at = 0
    while at + 4 <= len(table):
        form, attribute, length = struct.unpack_from("<BBH", table, at)
        size = length if form == _SIZED else 0
        yield attribute, table[at + 4 : at + 4 + size]
        at += 4 + size
