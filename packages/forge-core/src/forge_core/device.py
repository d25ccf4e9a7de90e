"""The properties of a GPU that select a configuration and bound a time.

A :class:`Device` is plain data, so that selection can be tested for an H200 on a machine without one.  ``SPECS`` has
the data of common GPUs; :func:`query` reads those of an installed one.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge_core.errors import UnsupportedError

if TYPE_CHECKING:  # imported at the first query: settings and the doctor work without torch
    import torch


#: The oldest supported compute capability; the CuTe DSL rejects sm_75.
MIN_CAPABILITY = (8, 0)

#: The architectures that every variant is cross-compiled for in the tests.
ARCHES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a")

# Supported, but not compiled for in the tests.
_OTHER_ARCHES = ("sm_87", "sm_107a", "sm_121a")

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class Device:
    """A GPU."""

    name: str  # the vendor's
    capability: tuple[int, int]  # compute capability as (major, minor)
    sm_count: int  # streaming multiprocessors
    smem_per_block: int  # shared memory of a block at most, in bytes, opt-in included
    smem_per_sm: int  # shared memory of a multiprocessor, in bytes
    l2_bytes: int
    bandwidth_gbs: float  # of DRAM by specification, in GB/s (1e9 bytes a second)

    def __hash__(self) -> int:
        return hash(self.name)  # planning looks devices up, and a string keeps its hash

    @property
    def sm_threads(self) -> int:
        """Resident threads of a multiprocessor at most."""
        return 2048 if self.capability in ((8, 0), (9, 0)) or self.capability[0] == 10 else 1536

    @functools.cached_property
    def arch(self) -> str:
        """The target to compile for, for example ``"sm_90a"``."""
        return arch_of(self.capability)


def arch_of(capability: tuple[int, int]) -> str:
    """The compile target of a compute capability.

    From Hopper on, the target has the suffix ``a``, which enables architecture-specific instructions (bulk tensor
    copies, the newer matrix units); an object need only run on the GPU that it was built for.

    Raises:
        UnsupportedError: older than sm_80.
    """
    major, minor = capability
    if capability < MIN_CAPABILITY:
        raise UnsupportedError(
            f"sm_{major}{minor} is not supported: sm_80 or newer is needed.", requirement="sm_80 or newer"
        )
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


# From the vendor's data sheets and the CUDA programming guide's table of compute capabilities.
SPECS: dict[str, Device] = {
    "A100": Device("NVIDIA A100-SXM4-80GB", (8, 0), 108, 163 * KIB, 164 * KIB, 40 * MIB, 2039.0),
    "RTX 3090": Device("NVIDIA GeForce RTX 3090", (8, 6), 82, 99 * KIB, 100 * KIB, 6 * MIB, 936.0),
    "RTX 4090": Device("NVIDIA GeForce RTX 4090", (8, 9), 128, 99 * KIB, 100 * KIB, 72 * MIB, 1008.0),
    "H100": Device("NVIDIA H100 80GB HBM3", (9, 0), 132, 227 * KIB, 228 * KIB, 50 * MIB, 3352.0),
    "H200": Device("NVIDIA H200", (9, 0), 132, 227 * KIB, 228 * KIB, 60 * MIB, 4800.0),
    "B200": Device("NVIDIA B200", (10, 0), 148, 227 * KIB, 228 * KIB, 126 * MIB, 8000.0),
    "RTX 5090": Device("NVIDIA GeForce RTX 5090", (12, 0), 170, 99 * KIB, 100 * KIB, 96 * MIB, 1792.0),
}


@functools.cache
def query(device: torch.device | int) -> Device:
    """Reads the properties of a CUDA device, once a process.

    Raises:
        UnsupportedError: the GPU is older than sm_80.
    """
    import torch

    index = device if isinstance(device, int) else device.index
    properties = torch.cuda.get_device_properties(torch.cuda.current_device() if index is None else index)
    capability = (properties.major, properties.minor)
    arch_of(capability)  # raises if it is too old
    return Device(
        name=properties.name,
        capability=capability,
        sm_count=properties.multi_processor_count,
        smem_per_block=properties.shared_memory_per_block_optin,  # type: ignore[attr-defined]  # missing in the stub
        smem_per_sm=properties.shared_memory_per_multiprocessor,
        l2_bytes=properties.L2_cache_size,
        bandwidth_gbs=_specified_bandwidth(properties.name, capability),
    )


def gpu_count() -> int:
    """The number of GPUs that torch can use; creates no CUDA context."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def archs_here() -> tuple[str, ...]:
    """The targets of the GPUs that torch can use."""
    return tuple(sorted({query(index).arch for index in range(gpu_count())}))


def _specified_bandwidth(name: str, capability: tuple[int, int]) -> float:
    """The data sheet's bandwidth of a known GPU; otherwise the highest of its generation.

    An upper bound is safe, because it serves to reject times that are too short.
    """
    for key, spec in SPECS.items():
        if re.search(rf"\b{re.escape(key)}\b", name):
            return spec.bandwidth_gbs
    same = [spec.bandwidth_gbs for spec in SPECS.values() if spec.capability[0] == capability[0]]
    return max(same or [spec.bandwidth_gbs for spec in SPECS.values()])


class Arch(str):
    """An architecture to compile for, such as ``"sm_90a"``, with the GPU whose properties select the kernel.

    As strings, those of H100 and H200 compare equal.
    """

    __slots__ = ("device",)
    device: Device  #: the named GPU; for an architecture, the known one of it, or else of its generation

    @classmethod
    def parse(cls, text: str) -> Arch:
        """Reads an architecture, or the name of a GPU in ``SPECS``; case-insensitive.

        Raises:
            UnsupportedError: the text is neither, or the architecture is older than sm_80 or unknown.
        """
        word = text.strip().lower()
        device = next((spec for name, spec in SPECS.items() if name.lower() == word), None)
        arch = cls(word if device is None else device.arch)
        arch.device = _figures_of(word) if device is None else device
        return arch


def capability_of(arch: str) -> tuple[int, int]:
    """The compute capability of an architecture with any suffix: (9, 0) of ``"sm_90a"``.

    Raises:
        UnsupportedError: not an architecture.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    if match is None:
        raise UnsupportedError(
            f"{arch!r} is not an architecture such as 'sm_90a', nor a known GPU: {', '.join(SPECS)}.",
            requirement="a name like sm_90a",
        )
    return int(match[1]), int(match[2])


def _figures_of(arch: str) -> Device:
    capability, known = capability_of(arch), (*ARCHES, *_OTHER_ARCHES)
    # Family-specific targets, with f, begin at sm_100.
    suffixes = ("", "a" if capability[0] >= 9 else "", "f" if capability[0] >= 10 else "")
    if arch_of(capability) not in known or arch.lstrip("sm_0123456789") not in suffixes:
        raise UnsupportedError(
            f"{arch} is not known to Forge; known architectures: {', '.join(known)}; GPUs: {', '.join(SPECS)}.",
            requirement="a known architecture",
        )
    exact = [spec for spec in SPECS.values() if spec.capability == capability]
    near = exact or [spec for spec in SPECS.values() if spec.capability[0] == capability[0]]
    return max(near, key=lambda spec: spec.bandwidth_gbs)


def spec_for(arch: str) -> Device:
    """The GPU whose properties are assumed for an architecture; see :meth:`Arch.parse`, also for the errors."""
    return (arch if isinstance(arch, Arch) else Arch.parse(arch)).device
