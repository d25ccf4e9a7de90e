# %% [markdown]
# # Step 5: a warp, then a block
#
# Threads that share a row must bring their parts together. You learn the two ways inside a block (a tree in shared
# memory, and shuffles with one value a warp), what a barrier is for, and how to count barriers before measuring them.
#
#     python docs/intro/05_warp_block.py

# %%
from typing import Any

import course
import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32
from cutlass.memory import SmemAllocator

from forge_core.profiling.layouts import conflicts, thread_value

THREADS = 256

# %% [markdown]
# ## A tree in shared memory
#
# Why a block and not a warp? 4096 rows of a warp each are 4096 warps, of which a GPU of 132 multiprocessors would hold
# 8448: half of its room for warps is empty. Blocks of 8 warps a row fill it.
#
# Shared memory is seen by all threads of a block, in any order. What one writes another may read only behind a
# *barrier*, at which every thread waits for all others:
#
#     sAcc     [0]  [1]  [2]  [3]  [4]  [5]  [6]  [7]       8 threads
#     half 4    +4   +5   +6   +7                           barrier
#     half 2    +2   +3                                     barrier
#     half 1    +1                                          thread 0 has the row's
#
# Predict: how many barriers does a block of 256 threads meet? `const_expr` and `range_constexpr` are evaluated while
# the kernel is compiled, so the loop below is written out; `cutlass.range` stays a loop.


# %%
@cute.jit
def walk(gX: cute.Tensor, first: cutlass.Int32, stride: int):
    total = Float32(0)
    for i in cutlass.range(first, cute.size(gX), stride):
        total += gX[i]
    return total


@cute.kernel
def tree_kernel(mX: cute.Tensor, mY: cute.Tensor):
    thread, row = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
    sAcc = SmemAllocator().allocate_tensor(Float32, cute.make_layout(THREADS), byte_alignment=16)
    sAcc[thread] = walk(mX[row, None], thread, THREADS)
    half = THREADS // 2
    while cutlass.const_expr(half > 0):
        cute.arch.sync_threads()
        if thread < half:
            sAcc[thread] = sAcc[thread] + sAcc[thread + half]
        half = half // 2
    if thread == 0:
        mY[row] = sAcc[0]


# %% [markdown]
# ## Shuffles first
#
# Lanes of a warp can hand each other registers without memory and without a barrier. Then one value a warp is left, 8
# of them, and the block needs shared memory and a barrier once:
#
#     warp 0   32 lanes -> 5 shuffles -> [w0] --.
#     warp 1   32 lanes -> 5 shuffles -> [w1] ---+--> sAcc (8) --> barrier --> 3 shuffles --> the row's
#     ...                                        |
#     warp 7   32 lanes -> 5 shuffles -> [w7] --'


# %%
@cute.kernel
def shuffle_kernel(mX: cute.Tensor, mY: cute.Tensor):
    thread, row = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
    warp, lane = thread // 32, thread % 32
    sAcc = SmemAllocator().allocate_tensor(Float32, cute.make_layout(THREADS // 32), byte_alignment=16)
    total = cute.arch.warp_reduction_sum(walk(mX[row, None], thread, THREADS))
    if lane == 0:
        sAcc[warp] = total
    cute.arch.sync_threads()
    if warp == 0:
        part = Float32(0)
        if lane < THREADS // 32:
            part = sAcc[lane]
        part = cute.arch.warp_reduction_sum(part, threads_in_group=THREADS // 32)
        if lane == 0:
            mY[row] = part


@cute.jit
def launch(mX: cute.Tensor, mY: cute.Tensor, kernel: cutlass.Constexpr, name: cutlass.Constexpr, stream: Any):
    kernel.set_name_prefix(name, remove_cutlass_symbol=True, keep_mangled_name=False)
    kernel(mX, mY).launch(grid=(mX.shape[0], 1, 1), block=(THREADS, 1, 1), smem=4 * THREADS, stream=stream)


x, y, stream = course.fake_sum()
kernels = {
    name: course.compile(launch, x, y, kernel, name, stream)
    for name, kernel in (("tree", tree_kernel), ("shuffle", shuffle_kernel))
}
for compiled in kernels.values():
    course.inspect(compiled)

# %% [markdown]
# Eight barriers, and one. One shuffle of each kernel is not in its text: it makes a number uniform for the warp. PTX
# has the load once, in a loop; the assembler behind it unrolls it by several iterations, so that their loads are in
# flight together, and adds code for the rest. `unroll=4` would have the compiler unroll four iterations before
# that, each with a test for the end of the row in front of its load: one would wait for the other. So leave a loop to
# the assembler, or keep the loads apart from what uses them (step 6).
#
# Both orders of additions, checked on the CPU with what 256 threads have of four rows:

# %%
x = torch.randn(4, 8192, generator=torch.Generator().manual_seed(0))
own = torch.stack([x[:, thread::THREADS].sum(1) for thread in range(THREADS)])
tree, warps = own, own.reshape(-1, 32, 4)
while len(tree) > 1:
    tree = tree[: len(tree) // 2] + tree[len(tree) // 2 :]
for offset in (16, 8, 4, 2, 1):
    warps = warps + warps[:, torch.arange(32) ^ offset]
shuffled = warps[:, 0]  # lane 0 of each warp
for offset in (4, 2, 1):
    shuffled = shuffled + shuffled[torch.arange(THREADS // 32) ^ offset]
for name, found in (("tree", tree[0]), ("shuffle", shuffled[0])):
    torch.testing.assert_close(found.double(), x.double().sum(1), rtol=1e-5, atol=1e-3)
    print(f"  {name}: the sums of {len(found)} rows are right")

# %% [markdown]
# ## Banks
#
# Shared memory has 32 banks of 4 bytes. Lanes that want different words of one bank wait for each other. The tree above
# adds words that lie far apart, so that lanes stay side by side. The other textbook order adds neighbors first, and
# thread t works on `sAcc[2 * s * t]`: the stride doubles as the threads that work are halved.

# %%
for s in (1, 2, 4, 8, 16, 32, 64, 128):
    lanes = min(32, THREADS // (2 * s))  # of a warp, that work
    far, near = (conflicts(*thread_value("load", (((lanes,), (1,)), ((4 * step,), (1,))), 4)) for step in (1, 2 * s))
    print(f"  {lanes:2} lanes, side by side: {far.passes} pass; {2 * s:3} words apart: {near.passes}")

# %% [markdown]
# ## Question
#
# The tree has eight barriers a row and the other has one. By how much is the sum of 16384 x 8192 faster?
#
# <details><summary>Answer</summary>
#
# Hardly ([week 1's ladder](../week1.md#ladder), `shared` and `shuffle`). A thread adds up 32 elements between two such
# exchanges, and while one block waits at its barrier seven others load. Synchronization shows where there is
# little else to do; the rows of 256 elements below are there for that. The two rungs are
# [`shared.py`](../../packages/week1-reduce/src/forge_week1_reduce/kernels/shared.py) and
# [`shuffle.py`](../../packages/week1-reduce/src/forge_week1_reduce/kernels/shuffle.py).
#
# </details>

# %% [markdown]
# ## On a GPU
#
# The same number of elements as long rows and as short ones.

# %%
course.time_sums(kernels, (16384, 8192), (524288, 256))
course.finish(__file__)
