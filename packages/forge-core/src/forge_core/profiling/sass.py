"""Machine code as text, by NVIDIA's nvdisasm: what a kernel became after the assembler."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from forge_core.errors import UnsupportedError

__all__ = ["count_sass", "disassemble", "find_nvdisasm"]

_OPCODE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)

#: What is counted in machine code: the name, and the opcodes that it stands for.
KINDS: dict[str, tuple[str, ...]] = {
    "local loads": ("LDL",),
    "local stores": ("STL",),
    "global loads": ("LDG",),
    "global stores": ("STG",),
    "shared loads": ("LDS", "LDSM"),
    "shared stores": ("STS", "STSM"),
}


@functools.cache
def find_nvdisasm() -> Path | None:
    """The disassembler of the wheel nvidia-cuda-nvdisasm, of CUDA_HOME, or of the PATH; None where there is none."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    candidates = [Path(str(file.locate())) for file in files if file.name in ("nvdisasm", "nvdisasm.exe")]
    homes = [os.environ[variable] for variable in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(variable)]
    candidates += [Path(home) / "bin" / "nvdisasm" for home in homes]
    on_path = shutil.which("nvdisasm")
    candidates += [Path(on_path)] if on_path else []
    return next((path for path in candidates if path.is_file()), None)


def disassemble(cubin: bytes, tool: Path | None = None) -> str:
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
            "SASS is read by NVIDIA's nvdisasm, which was found neither as a wheel nor by CUDA_HOME nor on the PATH. "
            "Install it with: pip install nvidia-cuda-nvdisasm",
            requirement="nvdisasm",
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([str(tool), "-c", str(file)], capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        said = (done.stderr.strip() or "nothing was printed").splitlines()[-1]
        raise UnsupportedError(
            f"{tool} could not read the cubin (exit status {done.returncode}): {said}. An nvdisasm as new as the "
            "compiler is needed: pip install -U nvidia-cuda-nvdisasm",
            requirement="a newer nvdisasm",
        )
    return done.stdout


def count_sass(text: str) -> dict[str, dict[str, int]]:
    """How often each of :data:`KINDS` stands in each kernel of a disassembly, by the kernel's name."""
    parts = re.split(r"^\s*\.section\s+\.text\.([\w$]+)", text, flags=re.MULTILINE)
    found: dict[str, dict[str, int]] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        opcodes = Counter(opcode.partition(".")[0] for opcode in _OPCODE.findall(body))
        found[name] = {kind: sum(opcodes[o] for o in names) for kind, names in KINDS.items()}
        found[name]["instructions"] = sum(opcodes.values())
    return found
