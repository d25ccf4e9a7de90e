"""What the kernel is compiled for, and the plan of a launch: pure functions of metadata and of the GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from forge_core.choice import Refusal, refuse, require_known
from forge_core.device import Device
from forge_core.dtypes import short_name
from forge_core.op import Plan, Variant
from forge_core.strided import Dim, canonical, flatten

#: Each kernel of the operator: the path of its builder, and its idea.
VARIANTS = {"elementwise": Variant("forge_sample_kernel.kernels:build", "a vector of 16 bytes a thread")}


@dataclass(frozen=True)
class SampleScaleConfig:
    """What the kernel is compiled for.

    Attributes:
        dtype: of x and y.
        vec: elements of a thread: 16 bytes where the layout allows it, else 1.
        rank: dims with strides of their own; 0 for contiguous memory on both sides.
        threads: of a block.
    """

    dtype: torch.dtype
    vec: int
    rank: int = 0
    threads: int = 256

    @property
    def kernel_name(self) -> str:
        """What a profiler shows."""
        return f"sample_scale_{short_name(self.dtype)}_v{self.vec}_rank{self.rank}"


def plan(device: Device, out: torch.Tensor, x: torch.Tensor, factor: float, variant: str) -> Plan:
    """What a call launches."""
    if variant != "auto":
        require_known("sample_scale", variant, VARIANTS)
    count = x.numel()
    if count >= 2**31:  # CuTe's layouts compute in 32 bits
        refuse("sample_scale", variant, Refusal("fewer than 2^31 elements", str(count)), ())
    dims = canonical(map(Dim, x.shape, x.stride(), out.stride()))
    rank, vec = len(dims), 1
    if all((dim.src, dim.dst) == (1, 1) for dim in dims):
        dims, rank = (), 0
        vec = math.gcd(16 // x.element_size(), count)
        while (x.data_ptr() | out.data_ptr()) % (vec * x.element_size()):
            vec //= 2
    return Plan(
        variant="elementwise",
        builder=VARIANTS["elementwise"].path,
        config=SampleScaleConfig(x.dtype, vec, rank),
        arguments=(float(factor), (count, *flatten(dims)[1:])),
        why=f"{vec} elements a thread, " + (f"{rank} dims with strides" if rank else "contiguous memory"),
        read=count * x.element_size(),
        written=count * x.element_size(),
    )
