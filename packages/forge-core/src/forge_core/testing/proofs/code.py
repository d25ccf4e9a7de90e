"""The machine code of kernels and the geometry of their launches, compiled and compared without a GPU."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from forge_core.op.launch import Launch, load
from forge_core.testing.proofs.calls import run_digest, values
from forge_core.testing.proofs.declare import digest_of

__all__ = ["covering", "launch_digest", "normalised", "ptx_digest"]

_COMMENT = re.compile(r"//[^\n]*")
_IGNORED = re.compile(r"^\s*\.(?:version|file|loc)\b[^\n]*$", re.MULTILINE)
_DEBUG = re.compile(r"^\s*\.section\s+\.debug\w*\s*\{.*?^\s*\}", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)")


def normalised(ptx: str) -> str:
    """PTX without comments, line information, its version, and the names of its kernels.

    The version differs between the DSL's libraries for CUDA 12 and 13, which otherwise give the same code.
    """
    text = _IGNORED.sub("", _DEBUG.sub("", _COMMENT.sub("", ptx)))
    for number, name in enumerate(dict.fromkeys(_ENTRY.findall(text))):
        text = re.sub(rf"(?<![\w$]){re.escape(name)}(?=_param_\d|(?![\w$]))", f"kernel{number}", text)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def ptx_digest(builder: str, config: Any, arch: str) -> str:
    """The digest of what a configuration compiles to, and of the options that it is compiled with.

    Raises:
        UnsupportedError: the CuTe DSL is not installed.
        CompileError: it does not compile.
    """
    made = load(builder).compile(config, arch=arch)
    return hashlib.sha256(f"{made.key.options}\n{normalised(made.ptx or '')}".encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=512)
def _source(builder: str, config: Any) -> tuple[Any, int]:
    source = load(builder).__wrapped__(config)  # type: ignore[attr-defined]  # set by functools.update_wrapper
    return source.function, sum(type(a).__name__.lower().endswith("pointer") for a in source.arguments)


def launch_digest(launch: Launch) -> str:
    """What a launch is, with the grid, blocks, clusters, shared memory and arguments of each of its kernels.

    Raises:
        CompileError: they cannot be worked out.
    """
    from forge_core.profiling.geometry import record_launches

    function, pointers = _source(launch.builder, launch.config)
    kernels = record_launches(function, launch.arguments, pointers=pointers)
    told = [[k.grid, k.block, k.cluster, k.dynamic_smem, k.options, k.arguments] for k in kernels]
    return digest_of([run_digest(launch), values(told)])[:16]


def covering(configs: Sequence[tuple[str, Any]]) -> list[int]:
    """Configurations that have every value of every field between them, as few as a greedy choice finds.

    What a kernel's code branches on is a field of its configuration.  Integers from 32 on count as equal within a power
    of two: 33 to 64, 65 to 128, and so on.

    Args:
        configs: builders and configurations.

    Returns:
        The places of the chosen ones.
    """
    features = [set(_features((builder,), values(config))) for builder, config in configs]
    chosen: list[int] = []
    left = set().union(*features) if features else set()
    while left:
        best = max(range(len(features)), key=lambda i: len(features[i] & left))
        chosen.append(best)
        left -= features[best]
    return sorted(chosen)


def _features(path: tuple[Any, ...], value: Any) -> Iterable[tuple[Any, ...]]:
    if isinstance(value, list):
        yield (*path, "length", len(value))
        for i, item in enumerate(value):
            yield from _features((*path, i), item)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield (*path, value if value <= 32 else -(value - 1).bit_length() - 64)
    else:
        yield (*path, str(value))
