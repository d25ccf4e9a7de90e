"""The battery that every operator passes, and the compiled code of the kernel for every architecture."""

from __future__ import annotations

import pytest
import torch
from forge_sample_kernel import sample_scale
from forge_sample_kernel.config import SampleScaleConfig
from forge_sample_kernel.proofs import PROOFS

from forge_core.device import ARCHES
from forge_core.testing import battery
from forge_core.testing.expectations import Expect, assert_as_declared, compiled_for


def declared(config: SampleScaleConfig, arch: str) -> Expect:
    width = config.vec * config.dtype.itemsize
    return Expect(registers=32, loads=(width,), stores=(width,))


@pytest.mark.parametrize("check", battery(*PROOFS.subjects))
def test_conformance(check):
    check()


@pytest.mark.gpu
@pytest.mark.sanitizer
def test_small_calls():
    """What compute-sanitizer runs, which slows a kernel down a lot."""
    rows = torch.randn(31, 7, device="cuda")
    for x in (torch.randn(5, 64, device="cuda"), rows, rows.t()):
        torch.testing.assert_close(sample_scale(x, 1.5).cpu(), x.cpu() * 1.5)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_compiles_as_declared(dtype, arch):
    for x in (torch.empty(64, 48, dtype=dtype, device="meta"), torch.empty(31, 47, dtype=dtype, device="meta").t()):
        plan = sample_scale.explain(x, arch=arch)
        assert_as_declared(
            compiled_for(plan.builder, plan.config, arch), {SampleScaleConfig: declared}, plan.config, arch
        )
