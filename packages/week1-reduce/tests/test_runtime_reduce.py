"""Determinism, streams, graphs, devices, threads, forks, backends, and what importing does."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.op import backend
from forge_core.settings import use_settings
from forge_core.testing.conformance import (
    check_concurrent_threads,
    check_current_device_unchanged,
    check_graph_replay,
    check_second_device,
    check_side_stream,
)

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
#: One for each kernel that auto picks: short, vectorized, cluster, split, and the columns' ways.
SHAPES = (
    ((4096, 64), -1),
    ((600, 20000), -1),
    ((64, 70000), -1),
    ((2, 2**22), -1),
    ((4096, 33), 0),
    ((70000, 128), 0),
    ((16, 2**20), 0),
    ((5000, 5001), 0),
)


def exact(got: torch.Tensor, want: torch.Tensor) -> None:
    assert torch.equal(got, want)


def make_on(device: str, shape: tuple[int, ...]) -> Any:
    # Whole numbers, so that any order of adding gives one answer.
    return lambda seed: (
        torch.randint(-9, 9, shape, device=device, generator=torch.Generator(device).manual_seed(seed)).float(),
    )


def run_python(source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.gpu
@pytest.mark.parametrize("shape, dim", SHAPES, ids=str)
def test_bitwise_determinism(shape: tuple[int, ...], dim: int) -> None:
    x = torch.randn(shape, device="cuda")
    first = week1.reduce_sum(x, dim)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    results = []
    for i in range(100):
        with torch.cuda.stream(streams[i % 4]):
            results.append(week1.reduce_sum(x, dim))
    torch.cuda.synchronize()
    assert all(torch.equal(first, result) for result in results)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = week1.reduce_sum(x, dim)
    for _ in range(100):
        out.zero_()
        graph.replay()
        assert torch.equal(out, first)


@pytest.mark.gpu
@pytest.mark.parametrize("shape, dim", SHAPES, ids=str)
def test_streams_and_graphs(shape: tuple[int, ...], dim: int) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return week1.reduce_sum(x, dim)

    def want(x: torch.Tensor) -> torch.Tensor:
        return torch.sum(x, dim)

    check_graph_replay(call, make_on("cuda", shape), want, exact)
    check_side_stream(call, make_on("cuda", shape), want, exact)
    check_current_device_unchanged(call, make_on("cuda", shape))


@pytest.mark.gpu(count=2)
def test_second_device() -> None:
    for shape in ((64, 100), (1, 2**22)):
        check_second_device(week1.reduce_sum, make_on("cuda:0", shape), lambda x: torch.sum(x, -1), exact)


@pytest.mark.parametrize("device", DEVICES)
def test_threads(device: str) -> None:
    shape = (1, 2**20) if device == "cuda" else (63, 129)  # the one that needs a workspace
    check_concurrent_threads(week1.reduce_sum, make_on(device, shape), lambda x: torch.sum(x, -1), exact)


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
    for arch, variant in (("sm_80", "split"), ("sm_90a", "cluster"), ("sm_100a", "cluster")):
        told = week1.reduce_sum.explain(x, arch=arch)
        assert (told.backend, told.variant, told.arch) == ("kernel", variant, arch)
        assert (told.read, told.written) == (x.nbytes, 128)
        assert told.why
        assert told.variant in str(told)
