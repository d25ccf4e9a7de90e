"""Errors against float64, by the rule of forge_core.testing.tolerances; and faults that it has to refuse."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.errors import UnsupportedError
from forge_week1_reduce.proofs import PROOFS

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KINDS = ("normal", "positive", "cancelling", "mixed")
SUBJECTS = {subject.name: subject for subject in PROOFS.subjects}

#: Up to 2^26 on a GPU; the CPU takes what two cores do in a moment.
COUNTS = (1, 2, 3, 5, 8, 31, 100, 257, 1000, 4097, 2**14 + 1, 2**17, 10**6 + 3)
LARGE = (2**22, 2**24 + 7, 2**26)


def numbers(kind, rows, count, dtype, device):
    generator = torch.Generator(device=device).manual_seed(count)
    randn = partial(torch.randn, device=device, dtype=torch.float64, generator=generator)
    x = randn(rows, count)
    if kind == "positive":
        x = x.abs() + 0.1
    if kind == "cancelling":  # the sum is nearly nothing beside what is added
        half = count // 2
        x = x * 100
        x[:, count - half :] = -x[:, :half] + 1e-3 * randn(rows, half)
    if kind == "mixed":  # magnitudes over many powers of two
        scale = torch.randint(-12, 12, (rows, count), device=device, generator=generator)
        x = x * torch.exp2(scale.double())
    return x.to(dtype)


def judge(got, name, x, dim=-1, what=""):
    SUBJECTS[name].judge(got, (x, dim), {}, f"{name} {what} {tuple(x.shape)} {x.dtype} dim {dim}")


def check(x, dim, variant="auto"):
    for name in ("reduce_sum", "mean"):
        judge(SUBJECTS[name].operator(x, dim, variant=variant), name, x, dim, variant)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_and_means(dtype, kind, device):
    for count in COUNTS:
        x = numbers(kind, 3, count, dtype, device)
        check(x, -1)
        check(x.t().contiguous(), 0)


@pytest.mark.gpu
@pytest.mark.large(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_longest_rows(dtype, kind):
    for count in LARGE:
        x = numbers(kind, 1 if count >= 2**26 else 2, count, dtype, "cuda")
        check(x, -1)
        check(x.t().contiguous(), 0)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", week1.reduce_sum.variants())
def test_each_variant(variant, kind):
    done = 0
    for count in (1, 100, 1000, 4097, 2**17):
        x = numbers(kind, 5, count, torch.float32, "cuda")
        for y, dim in ((x, -1), (x.t().contiguous(), 0)):
            try:
                check(y, dim, variant)
            except UnsupportedError:
                continue
            done += 1
    assert done >= 2


# ------------------------------------------------------------------------------------------------------------ planted


def last_element_lost(x):
    return week1.reduce_sum(x[..., :-1].contiguous())


def accumulated_in_bf16(x):
    total = torch.zeros(x.shape[0], dtype=torch.bfloat16, device=x.device)
    for part in x.split(64, -1):
        total = total + part.sum(-1).bfloat16()
    return total.to(x.dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wrong", [last_element_lost, accumulated_in_bf16])
def test_planted_faults_are_refused(wrong, device):
    x = numbers("normal", 16, 4096, torch.float32, device)
    judge(week1.reduce_sum(x), "reduce_sum", x)
    with pytest.raises(AssertionError, match="allowed"):
        judge(wrong(x), "reduce_sum", x)


def without_the_last_steps(acc, monoid, exchange):
    """A block's reduction that stops at the first warp's total."""
    from forge_core.cute.warp import reduce_lanes

    return reduce_lanes(acc, monoid)


def plant(patch, fault):
    import cutlass.cute as cute

    from forge_week1_reduce.kernels import vectorized

    if fault == "no barrier":
        patch.setattr(cute.arch, "sync_threads", lambda: None)
    else:
        patch.setattr(vectorized, "reduce_row", without_the_last_steps)


def vectorized_for(x, arch=None):
    """The kernel's builder, and the configuration for the rows of ``x``."""
    from forge_week1_reduce.kernels import vectorized

    return vectorized.build, week1.reduce_sum.explain(x, variant="vectorized", arch=arch).config


@pytest.mark.parametrize("fault, counts", [("no barrier", (0, 5 + 3)), ("a warp alone", (0, 5))])
def test_the_planted_kernels_have_their_faults(fault, counts, monkeypatch):
    # On any machine: what a GPU is to refuse below is really another kernel.
    build, config = vectorized_for(torch.empty(4096, 65536, device="meta"), "sm_90a")

    def found():
        ptx = build.compile(config, arch="sm_90a").ptx
        return len(re.findall(r"bar(rier)?\.sync", ptx)), len(re.findall(r"shfl\.sync\.bfly", ptx))

    assert found() == (1, 5 + 3)
    with monkeypatch.context() as patch:
        plant(patch, fault)
        assert found() == counts
    assert found() == (1, 5 + 3)


@pytest.mark.gpu
@pytest.mark.parametrize("fault", ["no barrier", "a warp alone"])
def test_a_kernel_with_a_planted_fault_is_refused(monkeypatch, fault):
    x = torch.randn(4096, 65536, device="cuda") + 1
    build, config = vectorized_for(x)
    arch = week1.reduce_sum.explain(x).arch

    def launch():
        """Compiles the configuration past the cache and runs it on the rows of ``x``."""
        out = torch.empty(x.shape[0], device=x.device)
        compiled = build.compile(replace(config, threads=1024), arch=arch)
        stream = torch.cuda.current_stream().cuda_stream
        compiled.launch(x.data_ptr(), out.data_ptr(), *x.shape, x.stride(0), 1, 1, stream)
        torch.cuda.synchronize()
        return out

    judge(launch(), "reduce_sum", x)
    plant(monkeypatch, fault)
    with pytest.raises(AssertionError, match="allowed"):
        judge(launch(), "reduce_sum", x)
