"""Determinism, streams, graphs, devices, threads, forks, backends, and what importing does."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.op import backend
from forge_core.settings import use_settings

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def exact(got: torch.Tensor, want: torch.Tensor) -> None:
    assert torch.equal(got, want)


def run_python(source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="this system has no fork")
@pytest.mark.parametrize("device", DEVICES)
def test_after_a_fork(device: str) -> None:
    run_python(
        f"""
        import warnings; warnings.simplefilter("ignore", DeprecationWarning)
        import os, torch, forge_week1_reduce as week1
        assert week1.reduce_sum(torch.ones(3, 4)).tolist() == [4.0] * 3
        child = os.fork()
        if child == 0:
            x = torch.ones(3, 4, device="{device}")
            os._exit(0 if week1.reduce_sum(x).tolist() == [4.0] * 3 else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert week1.amax(torch.ones(3, 4, device="{device}"), None).item() == 1.0
        """
    )


def test_importing_touches_neither_cutlass_nor_cuda() -> None:
    out = run_python(
        """
        import sys, torch
        before = set(sys.modules)
        import forge_week1_reduce
        new = {m.split(".")[0] for m in set(sys.modules) - before}
        print(sorted(new & {"cutlass", "tvm_ffi", "cuda", "triton"}), torch.cuda.is_initialized())
        forge_week1_reduce.reduce_sum(torch.zeros(2, 3))
        print("cutlass" in sys.modules)
        """
    )
    assert out.split() == ["[]", "False", "False"]


@pytest.mark.gpu
def test_backend_ref_runs_no_kernel() -> None:
    x = torch.randn(37, 41, device="cuda")
    with backend("ref"):
        assert torch.equal(week1.reduce_sum(x), torch.sum(x, -1))
        assert week1.reduce_sum.explain(x).backend == "ref"


@pytest.mark.gpu
def test_debug_mode_gives_the_same_result() -> None:
    x = torch.randint(-9, 9, (100, 300), device="cuda").float()
    with use_settings(debug=True):
        for variant in ("auto", "naive", "vectorized", "split"):
            exact(week1.reduce_sum(x, variant=variant), x.sum(-1))


def test_explain_names_what_a_gpu_would_run() -> None:
    x = torch.zeros(64, 131072, dtype=torch.bfloat16)
    assert week1.reduce_sum.explain(x).backend == "ref"
    for arch, variant in (("sm_80", "stream"), ("sm_90a", "held"), ("sm_100a", "held")):
        told = week1.reduce_sum.explain(x, arch=arch)
        assert (told.backend, told.variant, told.arch) == ("kernel", variant, arch)
        assert (told.read, told.written) == (x.nbytes, 128)
        assert told.why
        assert told.variant in str(told)
