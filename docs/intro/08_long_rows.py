# %% [markdown]
# # Step 8: few rows, and long ones
#
# A block for each row is fine while rows outnumber multiprocessors. Eight rows of four million elements leave most of
# the GPU idle. You learn two ways to share a row among blocks (a cluster; parts and a second launch), and why neither
# ends in a floating-point atomic.
#
#     python docs/intro/08_long_rows.py

# %%
import math
import random
from pathlib import Path
from typing import Any

import course
import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32, Int32
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from cutlass.memory import SmemAllocator

from forge_core.bench.records import load
from forge_core.cute.exchange import Sharers, open_exchange, reduce_row
from forge_core.cute.monoid import Sum
from forge_core.cute.warp import reduce_lanes
from forge_core.device import SPECS

# %% [markdown]
# ## Who works?
#
# What is read decides the least time, and by Little's law the bytes in flight decide whether it is reached: an H200
# wants some 25 KB of them on each multiprocessor ([week 1](../week1.md#what-decides)), 3300 KB in all. A block of 256
# threads with four loads of 16 bytes each in flight has 16 KB: an upper limit here, since the `walk` below leaves it to
# the compiler which loads are issued before the first addition.

# %%
M, N, THREADS, PARTS = 8, 1 << 22, 256, 64
spec, moved = SPECS["H200"], 4 * M * N + 4 * M
print(f"  {M} x {N} predicted: {moved:,} bytes, at least {moved / spec.bandwidth_gbs / 1e3:.1f} us on an {spec.name}")
for name, blocks in (("a block a row", M), ("a cluster of 16 a row", 16 * M), (f"{PARTS} parts a row", PARTS * M)):
    busy = min(blocks, spec.sm_count)
    where = f"at most {busy:3} of {spec.sm_count} multiprocessors"
    print(f"  {name:22} {blocks:4} blocks on {where}, {blocks * 16:5} KB in flight")

# %% [markdown]
# ## One row, several blocks
#
# All kernels of this step walk alike: of `stride` threads that share a row, thread `first` has vectors first,
# first + stride, first + 2 stride, ... Neighboring threads, neighboring vectors, so every load is coalesced. Only
# `stride` differs: 256 for a block, 16 * 256 for a cluster, 64 * 256 for parts.

# %%
SUM = Sum(Float32)


@cute.jit
def walk(gX: cute.Tensor, first: Int32, stride: Int32):
    gV = cute.zipped_divide(gX, (4,))  # (4, vectors)
    rX, rAcc = cute.make_rmem_tensor(4, Float32), cute.make_rmem_tensor(4, Float32)
    rAcc.fill(0.0)
    for v in cutlass.range(first, cute.size(gV, mode=[1]), stride):
        cute.autovec_copy(gV[None, v], rX)
        rAcc.store(rAcc.load() + rX.load())
    return (rAcc[0] + rAcc[2]) + (rAcc[1] + rAcc[3])


# %% [markdown]
# ## A cluster
#
# Up to 16 blocks of a cluster run at the same time, near each other, and can write to each other's shared memory. Each
# warp sends its total to *every* block; each block then has all of them and adds them up by itself:
#
#     block 0   w0 w1 .. w7 --.          .--> sAcc of block 0   [ 128 totals ] -> shuffles -> the row's
#     block 1   w0 w1 .. w7 ---+-- send -+--> sAcc of block 1   [ 128 totals ] -> shuffles -> the row's
#     ...                      |         |    ...
#     block 15  w0 w1 .. w7 --'          '--> sAcc of block 15  [ 128 totals ] -> shuffles -> the row's
#
# An mbarrier, a barrier in shared memory that counts arriving bytes, tells each block when it has all, so nobody waits
# longer than it must. `Sharers` says who shares a row: how many threads of a block, of at most how many, in how many
# blocks, and which of these this one is. `open_exchange` and `reduce_row` of
# [`forge_core.cute.exchange`](../../packages/forge-core/src/forge_core/cute/exchange.py) are this drawing; with
# `blocks=1` they are the exchange of a block.


# %%
@cute.kernel
def cluster_kernel(mX: cute.Tensor, mY: cute.Tensor, blocks: cutlass.Constexpr):
    thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
    row, rank = block // blocks, block % blocks
    (exchange,) = open_exchange(SmemAllocator(), [SUM], Sharers(THREADS, THREADS, blocks, rank))
    total = walk(mX[row, None], rank * THREADS + thread, Int32(blocks * THREADS))
    (total,) = reduce_row((total,), SUM, exchange)
    if (thread == 0) & (rank == 0):
        mY[row] = total


@cute.jit
def by_cluster(mX: cute.Tensor, mY: cute.Tensor, blocks: cutlass.Constexpr, stream: Any):
    cluster_kernel.set_name_prefix(f"cluster_of_{blocks}", remove_cutlass_symbol=True, keep_mangled_name=False)
    cluster_kernel(mX, mY, blocks).launch(
        grid=(mX.shape[0] * blocks, 1, 1),
        block=(THREADS, 1, 1),
        cluster=(blocks, 1, 1) if cutlass.const_expr(blocks > 1) else None,
        stream=stream,
    )


# %% [markdown]
# ## Parts and a second launch
#
# More than 16 blocks cannot meet within an ordinary launch, but a launch does not begin before the one in front of it
# on its stream has ended. So the first leaves a total for each part in global memory, and the second adds them up, a
# warp for each row. The workspace is a tensor of the caller's.


# %%
@cute.kernel
def parts_kernel(mX: cute.Tensor, mPart: cute.Tensor):
    thread, (part, row, _) = cute.arch.thread_idx()[0], cute.arch.block_idx()
    (exchange,) = open_exchange(SmemAllocator(), [SUM], Sharers(THREADS, THREADS))
    total = walk(mX[row, None], part * THREADS + thread, mPart.shape[1] * THREADS)
    (total,) = reduce_row((total,), SUM, exchange)
    if thread == 0:
        mPart[row, part] = total


@cute.kernel
def combine_kernel(mPart: cute.Tensor, mY: cute.Tensor):
    lane, row = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
    total = Float32(0)
    for part in cutlass.range(lane, mPart.shape[1], 32):
        total += mPart[row, part]
    (total,) = reduce_lanes((total,), SUM)
    if lane == 0:
        mY[row] = total


@cute.jit
def by_parts(mX: cute.Tensor, mPart: cute.Tensor, mY: cute.Tensor, stream: Any):
    for kernel, name in ((parts_kernel, "parts"), (combine_kernel, "combine")):
        kernel.set_name_prefix(name, remove_cutlass_symbol=True, keep_mangled_name=False)
    rows, parts = mPart.shape
    parts_kernel(mX, mPart).launch(grid=(parts, rows, 1), block=(THREADS, 1, 1), stream=stream)
    combine_kernel(mPart, mY).launch(grid=(rows, 1, 1), block=(32, 1, 1), stream=stream)


# %%
rows, columns, parts = cute.sym_int(), cute.sym_int(divisibility=4), cute.sym_int()
x = make_fake_tensor(Float32, (rows, columns), (cute.sym_int64(divisibility=4), 1), assumed_align=16)
part = make_fake_tensor(Float32, (rows, parts), (cute.sym_int64(), 1), assumed_align=4)
y = make_fake_tensor(Float32, (rows,), (1,), assumed_align=4)
stream = make_fake_stream(use_tvm_ffi_env_stream=True)
one_block = course.compile(by_cluster, x, y, 1, stream)
cluster = course.compile(by_cluster, x, y, 16, stream)
split = course.compile(by_parts, x, part, y, stream)
for compiled in (one_block, cluster, split):
    course.inspect(compiled)

# %% [markdown]
# ## Why no atomics
#
# `atomicAdd(&y[row], total)` would be one launch and no workspace. But blocks arrive in whatever order they are
# scheduled, and floating-point addition is not associative. Here are 128 totals of blocks, added up in a thousand
# orders of arrival; then as both kernels above do it, where a total has its place by who computed it, not by when.

# %%
generator = random.Random(0)
totals = torch.tensor([generator.uniform(-1, 1) for _ in range(128)])
orders = torch.tensor([generator.sample(range(128), 128) for _ in range(1000)])
exact = math.fsum(totals.tolist())


def atomic(arrivals: torch.Tensor) -> torch.Tensor:
    """The fp32 sum of each row, one after the other in the order of arrival."""
    found = torch.zeros(len(arrivals))
    for k in range(arrivals.shape[1]):
        found = found + arrivals[:, k]
    return found


def tree(slots: torch.Tensor) -> torch.Tensor:
    """The fp32 sum of each row: slot i and slot i + half, until one is left."""
    while slots.shape[1] > 1:
        half = slots.shape[1] // 2
        slots = slots[:, :half] + slots[:, half:]
    return slots[:, 0]


slots = torch.empty(1000, 128).scatter_(1, orders, totals[orders])  # whoever comes writes to the slot of its own number
for name, sums in (("atomic", atomic(totals[orders])), ("tree", tree(slots))):
    different = sums.view(torch.int32).unique().numel()
    error = max(abs(one - exact) for one in sums.tolist())
    print(f"  {name:7} {different:3} different results in {len(sums)} runs, largest error {error:.1e}")

# %% [markdown]
# A result that changes from run to run cannot be tested bit by bit, hides a race behind "rounding", and makes a
# training run impossible to repeat. The tree costs nothing: the same additions, in an order that is fixed by
# construction, and its error grows with the depth of the tree instead of its size. In all of Forge's reductions a
# thread adds up its own elements in a fixed order, and threads and blocks meet in such trees.
#
# ## Question
#
# The same with int32 instead of fp32: may the blocks use atomics?
#
# <details><summary>Answer</summary>
#
# As far as bits go, yes: integer addition is associative, also where it wraps, so every order gives the same. So does
# every order of a maximum. What remains is that y has to be 0 before the first block arrives, which is another launch
# or a memset, and that all blocks of a row queue at one address.
#
# The same launch could instead *count* its blocks with an integer atomic, and the last one to finish adds up the parts
# in order. [Week 1](../week1.md#what-decides) says why Forge has no such counter in global memory.
#
# </details>

# %% [markdown]
# ## In Forge
#
# Forge's own kernels take the same two ways. `held` keeps a row in the registers of lanes, a block or a cluster;
# `split` cuts it into parts, where a cluster is too small or the rows are too few for all multiprocessors. Which one
# follows from rows, lengths and the GPU ([what decides](../week2.md#what-decides), [the engine's
# kernels](../rows.md#kernels)), and `reduce_sum.explain(x)` says why. From week 1's record:

# %%
path = max((Path(__file__).parents[1] / "records" / "h200").glob("week1-*.json.xz"))
for case in load(path).cases:
    if case.operator == "sum_rows" and case.dtype == "float32" and case.shape[0] <= 64 and case.contender("eager"):
        forge, eager = case.contender("forge"), case.contender("eager")
        print(f"  {case.name:31} {forge.variant:6} {forge.gbs:5.0f} GB/s, eager {eager.gbs:5.0f} GB/s")
print(f"  from {path.relative_to(Path(__file__).parents[2])}")

# %% [markdown]
# ## On a GPU
#
# The prediction was made above: the same bytes for all three, so the number of blocks decides. It does, but what an
# H200 printed is 0.69 and 0.74 of a copy: 2048 KB are not enough, and the 8192 KB of parts are an upper limit, of which
# their loop, with one load in its code, has a share in flight; the second launch adds its own time.

# %%
gpu = course.device()
if gpu is not None:
    x = torch.randn(M, N, device=gpu)
    y, workspace = torch.empty(M, device=gpu), torch.empty(M, PARTS, device=gpu)
    for name, call in (
        ("a block a row", lambda: one_block(x, y)),
        ("a cluster of 16 a row", lambda: cluster(x, y)),
        (f"{PARTS} parts a row", lambda: split(x, workspace, y)),
    ):
        print(f"  {name}")
        call()
        torch.testing.assert_close(y.double(), x.double().sum(1), rtol=1e-5, atol=1e-1)
        bits = y.clone()
        for _ in range(20):
            call()
            assert torch.equal(y, bits), "the same bits in every run"
        course.measure(call, moved)
course.finish(__file__)
