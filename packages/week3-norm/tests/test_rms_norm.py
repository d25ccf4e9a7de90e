"""The battery that every operator passes, and the compiled code of every kernel for every architecture."""

from __future__ import annotations

import pytest
import torch

from forge_core.device import ARCHES
from forge_core.errors import UnsupportedError
from forge_core.testing import battery
from forge_core.testing.expectations import assert_as_declared, compiled_for
from forge_core.testing.rows_expected import EXPECTED
from forge_week3_norm import rms_norm
from forge_week3_norm.proofs import PROOFS


@pytest.mark.parametrize("check", battery(*PROOFS.subjects))
def test_conformance(check):
    check()


@pytest.mark.gpu
@pytest.mark.sanitizer
@pytest.mark.parametrize("variant", ["auto", *rms_norm.variants()])
def test_small_calls(variant):
    """What compute-sanitizer runs, which slows a kernel down a lot."""
    for shape, dim in (((5, 64), -1), ((3, 301), -1), ((40, 6), 0), ((1, 40000), -1)):
        x = torch.randn(shape, device="cuda")
        try:
            y = rms_norm(x, dim, variant=variant)
        except UnsupportedError:  # this variant is for others of these shapes
            assert variant != "auto"
            continue
        torch.testing.assert_close(y.cpu(), rms_norm(x.cpu(), dim), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    "dtype, shape, dim",
    [(torch.bfloat16, (4096, 1024), -1), (torch.float32, (64, 50257), -1), (torch.bfloat16, (4096, 512), 0)],
)
def test_kernels_compile_as_declared(dtype, shape, dim, arch):
    plan = rms_norm.explain(torch.empty(shape, dtype=dtype, device="meta"), dim, arch=arch)
    assert_as_declared(compiled_for(plan.builder, plan.config, arch), EXPECTED, plan.config, arch)
