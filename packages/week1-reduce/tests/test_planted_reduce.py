"""The tests are tested: kernels with planted faults are refused by the assertions that the right ones pass."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.testing import assert_near_float64, tree_bound

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def policy(got, x):
    floor = tree_bound(x.double().abs().sum(-1), x.shape[-1], torch.float32)
    assert_near_float64(got, x.double().sum(-1), torch.sum(x, -1), floor=floor)


def last_element_lost(x):
    return week1.reduce_sum(x[..., :-1].contiguous())


def one_row_twice(x):
    got = week1.reduce_sum(x)
    got[-1] = got[0]
    return got


def a_warp_left_out(x):
    chunks = x.clone()
    chunks.view(x.shape[0], -1, 32, 4)[:, :, 8:16] = 0
    return week1.reduce_sum(chunks)


def accumulated_in_bf16(x):
    total = torch.zeros(x.shape[0], dtype=torch.bfloat16, device=x.device)
    for part in x.split(64, -1):
        total = total + part.sum(-1).bfloat16()
    return total.to(x.dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wrong", [last_element_lost, one_row_twice, a_warp_left_out, accumulated_in_bf16])
def test_planted_faults_are_refused(wrong, device):
    x = torch.randn(16, 4096, device=device)
    policy(week1.reduce_sum(x), x)
    with pytest.raises(AssertionError, match="allowed"):
        policy(wrong(x), x)


def without_the_last_steps(acc, monoid, exchange):
    """A block's reduction that stops at the first warp's total."""
    from forge_core.cute.warp import reduce_lanes

    return reduce_lanes(acc, monoid)


def test_the_planted_kernels_have_their_faults(monkeypatch):
    # On any machine: what a GPU is to refuse below is really another kernel.
    import cutlass.cute as cute

    from forge_week1_reduce.kernels import vectorized

    config = week1.reduce_sum.explain(
        torch.empty(4096, 65536, device="meta"), variant="vectorized", arch="sm_90a"
    ).config

    def counts():
        ptx = vectorized.build.compile(config, arch="sm_90a").ptx
        return len(re.findall(r"bar(rier)?\.sync", ptx)), len(re.findall(r"shfl\.sync\.bfly", ptx))

    assert counts() == (1, 5 + 3)
    with monkeypatch.context() as patch:
        patch.setattr(cute.arch, "sync_threads", lambda: None)
        assert counts() == (0, 5 + 3)
    with monkeypatch.context() as patch:
        patch.setattr(vectorized, "reduce_row", without_the_last_steps)
        assert counts() == (0, 5)
    assert counts() == (1, 5 + 3)


def launch(builder, config, x):
    """Compiles a configuration past the cache and runs it on the rows of ``x``."""
    out = torch.empty(x.shape[0], device=x.device)
    compiled = builder.compile(config, arch=week1.reduce_sum.explain(x).arch)
    stream = torch.cuda.current_stream().cuda_stream
    compiled.launch(x.data_ptr(), out.data_ptr(), *x.shape, x.stride(0), 1, 1, stream)
    torch.cuda.synchronize()
    return out


@pytest.mark.gpu
@pytest.mark.parametrize("fault", ["no barrier", "a warp alone"])
def test_a_kernel_with_a_planted_fault_is_refused(monkeypatch, fault):
    import cutlass.cute as cute

    from forge_week1_reduce.kernels import vectorized

    x = torch.randn(4096, 65536, device="cuda") + 1
    config = replace(week1.reduce_sum.explain(x, variant="vectorized").config, threads=1024)
    policy(launch(vectorized.build, config, x), x)
    if fault == "no barrier":
        monkeypatch.setattr(cute.arch, "sync_threads", lambda: None)
    else:
        monkeypatch.setattr(vectorized, "reduce_row", without_the_last_steps)
    with pytest.raises(AssertionError, match="allowed"):
        policy(launch(vectorized.build, config, x), x)
