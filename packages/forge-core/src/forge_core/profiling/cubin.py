"""The resources of the kernels of a cubin, and their machine code (SASS) by NVIDIA's nvdisasm.

A cubin is an ELF object.  Its section ``.nv.info`` is a list of records (form, attribute, payload), in which the first
word of a payload is the kernel's symbol; ``.nv.shared.NAME`` is as large as the kernel's static shared memory.  The
resources are those of ``cuobjdump --dump-resource-usage``.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import re
import struct
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from forge_core.errors import UnsupportedError
from forge_core.processes import find_tool, how_it_ended

# Attributes of .nv.info records, and the one form whose payload has a length of its own.
_SIZED = 4
_FRAME_SIZE = 0x11
_REGISTERS = 0x2F

#: Bytes of each block's shared memory that the driver reserves, from sm_80 on; part of the section's size.
RESERVED_SMEM = 1024

_OPCODE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)

#: The opcodes that are counted in SASS: accesses to global, shared and local memory.
MEMORY_OPCODES = ("LDG", "STG", "LDS", "LDSM", "STS", "STSM", "LDL", "STL")


@dataclass(frozen=True)
class KernelResources:
    """The resources of one kernel of a cubin."""

    name: str  # its symbol
    registers: int  # of a thread
    stack_bytes: int  # of a thread's stack frame in local memory: spilled registers and local arrays
    static_smem: int  # bytes of a block, without the driver's share


def read_cubin(cubin: bytes) -> tuple[KernelResources, ...]:
    """The kernels of a cubin, in the order of their code; ValueError if it is none."""
    try:
        elf = ELFFile(io.BytesIO(cubin))
    except ELFError as error:
        raise ValueError(f"expected a cubin (a 64-bit ELF object), got {len(cubin)} bytes that are none") from error
    sections: dict[str, Any] = {section.name: section for section in elf.iter_sections()}
    if not {".symtab", ".nv.info"} <= set(sections):
        raise ValueError("expected a cubin, got an ELF object without .nv.info")
    found: dict[int, dict[str, int]] = {_REGISTERS: {}, _FRAME_SIZE: {}}
    table, at = sections[".nv.info"].data(), 0
    while at + 4 <= len(table):
        form, attribute, length = struct.unpack_from("<BBH", table, at)
        if attribute in found:
            symbol, value = struct.unpack_from("<II", table, at + 4)
            found[attribute][sections[".symtab"].get_symbol(symbol).name] = value
        at += 4 + (length if form == _SIZED else 0)
    kernels = []
    for name in [name.removeprefix(".text.") for name in sections if name.startswith(".text.")]:
        shared = sections.get(f".nv.shared.{name}")
        static_smem = max(shared["sh_size"] - RESERVED_SMEM, 0) if shared is not None else 0
        frame = found[_FRAME_SIZE].get(name, 0)
        kernels.append(KernelResources(name, found[_REGISTERS][name], frame, static_smem))
    return tuple(kernels)


def find_nvdisasm() -> str | None:
    """The disassembler of the wheel nvidia-cuda-nvdisasm, else of a CUDA installation; None where there is none."""
    installed = importlib.metadata.distributions(name="nvidia-cuda-nvdisasm")
    places = (str(file.locate()) for wheel in installed for file in wheel.files or () if file.name == "nvdisasm")
    return next(filter(os.path.isfile, places), None) or find_tool("nvdisasm")


def disassemble(cubin: bytes) -> str:
    """The machine code of a cubin as text; raises UnsupportedError without a disassembler that can read it."""
    tool = find_nvdisasm()
    if tool is None:
        raise UnsupportedError(
            "SASS is read by NVIDIA's nvdisasm, which was found neither as a wheel nor in a CUDA installation. "
            "Install it with: pip install nvidia-cuda-nvdisasm",
            requirement="nvdisasm",
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        raise UnsupportedError(
            f"{tool} could not read the cubin ({how_it_ended(done.returncode, done.stderr)}). An nvdisasm as new as "
            "the compiler is needed: pip install -U nvidia-cuda-nvdisasm",
            requirement="a newer nvdisasm",
        )
    return done.stdout


def count_sass(text: str) -> dict[str, dict[str, int]]:
    """The static count of instructions, and of each of :data:`MEMORY_OPCODES`, in each kernel of a disassembly."""
    parts = re.split(r"^\s*\.section\s+\.text\.([\w$]+)", text, flags=re.MULTILINE)
    found: dict[str, dict[str, int]] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        opcodes = Counter(opcode.partition(".")[0] for opcode in _OPCODE.findall(body))
        found[name] = {"instructions": opcodes.total(), **{opcode: opcodes[opcode] for opcode in MEMORY_OPCODES}}
    return found
