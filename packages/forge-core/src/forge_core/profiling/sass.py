"""Disassembly of a cubin by NVIDIA's nvdisasm."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from forge_core.errors import UnsupportedError
from forge_core.profiling.cuda_tools import find_tool

__all__ = ["count_sass", "disassemble", "find_nvdisasm"]

_OPCODE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)

#: What is counted: the name, and its opcodes.
KINDS: dict[str, tuple[str, ...]] = {
    "local loads": ("LDL",),
    "local stores": ("STL",),
    "global loads": ("LDG",),
    "global stores": ("STG",),
    "shared loads": ("LDS", "LDSM"),
    "shared stores": ("STS", "STSM"),
}


def find_nvdisasm() -> str | None:
    """The disassembler of the wheel nvidia-cuda-nvdisasm, else of a CUDA installation; None where there is none."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    places = (Path(str(file.locate())) for file in files if file.name in ("nvdisasm", "nvdisasm.exe"))
    return next((str(place) for place in places if place.is_file()), None) or find_tool("nvdisasm")


def disassemble(cubin: bytes, tool: str | None = None) -> str:
    """The machine code of a cubin as text.

    Args:
        cubin: the ELF object.
        tool: the disassembler; by default what :func:`find_nvdisasm` finds.

    Raises:
        UnsupportedError: there is no disassembler, or it cannot read this cubin.
    """
    tool = tool or find_nvdisasm()
    if tool is None:
        raise UnsupportedError(
            "SASS is read by NVIDIA's nvdisasm, which was found neither as a wheel nor in a CUDA installation. "
            "Install it with: pip install nvidia-cuda-nvdisasm",
            requirement="nvdisasm",
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([tool, "-c", str(file)], capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        said = (done.stderr.strip() or "nothing was printed").splitlines()[-1]
        raise UnsupportedError(
            f"{tool} could not read the cubin (exit status {done.returncode}): {said}. An nvdisasm as new as the "
            "compiler is needed: pip install -U nvidia-cuda-nvdisasm",
            requirement="a newer nvdisasm",
        )
    return done.stdout


def count_sass(text: str) -> dict[str, dict[str, int]]:
    """The static count of each of :data:`KINDS` in each kernel of a disassembly, by the kernel's name."""
    parts = re.split(r"^\s*\.section\s+\.text\.([\w$]+)", text, flags=re.MULTILINE)
    found: dict[str, dict[str, int]] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        opcodes = Counter(opcode.partition(".")[0] for opcode in _OPCODE.findall(body))
        found[name] = {kind: sum(opcodes[o] for o in names) for kind, names in KINDS.items()}
        found[name]["instructions"] = sum(opcodes.values())
    return found
