"""The building blocks that kernels share: address arithmetic on the host, and reductions compiled without a GPU."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from forge_core.device import ARCHES

cutlass = pytest.importorskip("cutlass", reason="the CuTe DSL is Linux only")

import cutlass.cute as cute  # noqa: E402  # after the check that it is there
from cutlass import Float32, Int32, Int64, Uint32  # noqa: E402

from forge_core.cache import Traceable, compile_cached  # noqa: E402
from forge_core.cute.block import SLOTS_BYTES, reduce_block  # noqa: E402
from forge_core.cute.cluster import announce, reduce_cluster  # noqa: E402
from forge_core.cute.memory import (  # noqa: E402
    entry_offsets,
    example_arguments,
    load_element,
    name_kernel,
    store_element,
)


@pytest.mark.parametrize("number", [Uint32, Int64], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("sizes", [(), (5,), (3, 4), (2, 3, 4), (2, 1, 3, 5)], ids=str)
def test_offsets_of_every_entry(sizes, sides, number):
    steps = [[7 * (i + 1) ** 3 + side for i in range(len(sizes))] for side in range(sides)]
    count = 1
    flat = []
    for i in reversed(range(len(sizes))):
        flat += [sizes[i], *(steps[side][i] for side in range(sides))]
        count *= sizes[i]
    for entry, index in enumerate(itertools.product(*(range(size) for size in sizes))):
        got = entry_offsets(number(entry), (count, *flat), sides)
        want = [sum(i * step for i, step in zip(index, steps[side], strict=True)) for side in range(sides)]
        assert [int(offset.value) for offset in got] == want


def test_offsets_pass_2_to_the_31():
    (offset,) = entry_offsets(Uint32(3), (4, 4, 2**33), 1)
    assert int(offset.value) == 3 * 2**33


@dataclass(frozen=True)
class LargestAndCount:
    """An accumulator of two parts, as a softmax has: the largest value, and a sum beside it."""

    @property
    def types(self) -> tuple[Any, ...]:
        return (Float32, Float32)

    def identity(self) -> tuple[Any, ...]:
        return (Float32(float("-inf")), Float32(0))

    def combine(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        return (cute.arch.fmax(a[0], b[0], nan=True), a[1] + b[1])


@dataclass(frozen=True)
class PairConfig:
    threads: int
    blocks: int


class Pair:
    """dst[0:2] = (the largest, the sum) of one element of each thread of a cluster."""

    def __init__(self, config: PairConfig) -> None:
        self.config = config
        self.monoid = LargestAndCount()

    @cute.jit
    def __call__(self, src: cute.Pointer, dst: cute.Pointer, stream: Any):
        name_kernel(self.kernel, "pair")
        self.kernel(src, dst).launch(
            grid=(self.config.blocks, 1, 1),
            block=(self.config.threads, 1, 1),
            cluster=(self.config.blocks, 1, 1) if cutlass.const_expr(self.config.blocks > 1) else None,
            smem=4 * SLOTS_BYTES,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, src: cute.Pointer, dst: cute.Pointer):
        threads, blocks = self.config.threads, self.config.blocks
        if cutlass.const_expr(blocks > 1):
            announce()
        thread, _, _ = cute.arch.thread_idx()
        rank, _, _ = cute.arch.block_idx()
        value = load_element(src.toint() + Int64(Int32(rank) * threads + thread) * 4, Float32)
        shared = cute.arch.get_dyn_smem(Uint32, alignment=16).toint()
        acc = reduce_block((value, value), self.monoid, threads, shared, thread)
        if cutlass.const_expr(blocks > 1):
            acc = reduce_cluster(acc, self.monoid, blocks, shared + 2 * SLOTS_BYTES, thread, rank)
        if (thread == 0) & (rank == 0):
            store_element(acc[0], dst.toint(), Float32)
            store_element(acc[1], dst.toint() + 4, Float32)


@compile_cached
def build(config: PairConfig) -> Traceable:
    return Traceable(Pair(config), example_arguments(), name="pair")


@pytest.mark.parametrize("arch", ARCHES)
def test_an_accumulator_of_two_parts_compiles(arch):
    blocks = (1,) if arch in ("sm_80", "sm_86", "sm_89") else (1, 8)
    for count in blocks:
        ptx = build.compile(PairConfig(256, count), arch=arch).ptx
        steps = 5 + 3 + (3 if count > 1 else 0)
        assert len(re.findall(r"shfl\.sync\.bfly", ptx)) == 2 * steps
        assert len(re.findall(r"st\.shared::cluster", ptx)) == (2 if count > 1 else 0)


def test_a_warp_needs_neither_memory_nor_barrier():
    ptx = build.compile(PairConfig(32, 1), arch="sm_90a").ptx
    assert len(re.findall(r"shfl\.sync\.bfly", ptx)) == 10
    assert not re.search(r"bar(rier)?\.sync|st\.shared", ptx)


@pytest.mark.gpu
@pytest.mark.parametrize("threads", [32, 64, 256, 1024])
@pytest.mark.parametrize("blocks", [1, 2, 8])
def test_an_accumulator_of_two_parts_runs(threads, blocks):
    from forge_core.device import query

    device = query(0)
    if blocks > 1 and device.capability < (9, 0):
        pytest.skip(f"{device.name} has no thread-block clusters")
    x = torch.randperm(threads * blocks, device="cuda").float()
    out = torch.zeros(2, device="cuda")
    launch = build(PairConfig(threads, blocks), arch=device.arch)
    launch(x.data_ptr(), out.data_ptr(), torch.cuda.current_stream().cuda_stream)
    assert out.tolist() == [x.max().item(), x.sum().item()]


def test_importing_the_package_imports_no_compiler():
    code = "import sys, forge_core.cute; assert 'cutlass' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
