# %% [markdown]
# # Step 6: 128 bits, and enough of them
#
# Coalesced, but one small load at a time: that leaves bandwidth unused. You learn why (Little's law), the two remedies
# (16 bytes a load, several loads before the first is used), how a thread-value layout says so, and what to do with rows
# that are not a multiple of anything.
#
#     python docs/intro/06_vectors.py

# %%
import re
from pathlib import Path
from typing import Any

import course
import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32

from forge_core.bench.records import load as load_record
from forge_core.cute.copy import partition, vector_predicate
from forge_core.device import SPECS

THREADS, VEC, CHUNKS = 256, 4, 4

# %% [markdown]
# ## Little's law
#
# What is under way equals rate times delay: to receive 4.8 TB/s while each byte takes some 700 ns, 3.4 MB must have
# been asked for at any moment. Shared among 132 multiprocessors that is 25 KB each. Predict what blocks of 256 threads
# have in flight, 8 of them on a multiprocessor:

# %%
spec, DELAY = SPECS["H200"], 700e-9
needed = spec.bandwidth_gbs * 1e9 * DELAY / spec.sm_count
print(f"  needed on each multiprocessor of an {spec.name}: {needed / 1024:.0f} KB")
for width in (2, 4, 16):
    for loads in (1, 4):
        flight = 8 * THREADS * width * loads
        share = min(1, flight / needed)
        print(f"  {width:2} bytes by {loads}: {flight / 1024:4.0f} KB in flight, {share:4.0%} of the bandwidth")

# %% [markdown]
# So four loads of 4 bytes would do for fp32, and not for bf16, whose elements have 2. Week 1's `shared` and `shuffle`
# have four, and its record below agrees. Loads of 16 bytes do for both, with a quarter and an eighth of the
# instructions.
#
# Whether four loads are in flight is the compiler's choice, and yours: it may issue the next load only if nothing that
# lies in between could be what it loads, and if there are registers to hold it. So load first, into registers, and fold
# afterwards.
#
# ## The layout
#
#     tXgX  ((vec, 1), chunks):((1, vec), T * vec)      a thread's vectors of a tile: t, t + T, t + 2T, ...
#
#     lane 0    lane 1    lane 2    ...                 T threads, then the next chunk
#     |x x x x |x x x x |x x x x |                      16 bytes a lane, 512 a warp: 16 sectors a request, all used
#
# ## Tails
#
# A row of 1000 elements has 250 vectors; the *tile*, what the block loads at a time, has 1024. Lanes behind the end
# load nothing: a *predicate* on each copy. Registers of lanes that load nothing hold the identity, 0 for a sum, and the
# fold need not know. What the predicate compares are coordinates: first + thread * vec + chunk * T * vec < N.
# `partition` of `forge_core.cute` gives the copy instruction and a thread's vectors of the tile, and `vector_predicate`
# has the same answer for all elements of one.


# %%
@cute.kernel
def vector_kernel(mX: cute.Tensor, mY: cute.Tensor):
    thread, row = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
    gX, length = mX[row, None], mX.shape[1]
    rAcc = cute.make_rmem_tensor(VEC, Float32)
    rAcc.fill(0.0)
    for first in cutlass.range(0, length, THREADS * VEC * CHUNKS, unroll=1):
        load, tXgX = partition(gX, first, VEC, THREADS, CHUNKS, thread, load=True)
        tXrX = cute.make_rmem_tensor((tXgX.shape[0], CHUNKS), Float32)
        tXrX.fill(0.0)
        for c in cutlass.range_constexpr(CHUNKS):  # all loads of the tile
            inside = first + thread * VEC + c * THREADS * VEC < length
            cute.copy(load, tXgX[None, c], tXrX[None, c], pred=vector_predicate(tXgX, inside))
        for c in cutlass.range_constexpr(CHUNKS):  # then all additions
            rAcc.store(rAcc.load() + tXrX[None, c].load().reshape(VEC))
    total = cute.arch.warp_reduction_sum((rAcc[0] + rAcc[2]) + (rAcc[1] + rAcc[3]))
    sAcc = cutlass.memory.SmemAllocator().allocate_tensor(Float32, cute.make_layout(THREADS // 32), byte_alignment=16)
    if thread % 32 == 0:
        sAcc[thread // 32] = total
    cute.arch.sync_threads()
    if thread == 0:
        mY[row] = sAcc.load().reduce(cute.ReductionOp.ADD, Float32(0), 0)


@cute.jit
def vectors(mX: cute.Tensor, mY: cute.Tensor, stream: Any):
    vector_kernel.set_name_prefix("vectors", remove_cutlass_symbol=True, keep_mangled_name=False)
    vector_kernel(mX, mY).launch(grid=(mX.shape[0], 1, 1), block=(THREADS, 1, 1), smem=64, stream=stream)


# %% [markdown]
# Does each element belong to exactly one vector of one thread, whatever the length? Coordinates are integers, and a CPU
# can count them:

# %%
threads, chunks = torch.arange(THREADS)[:, None], torch.arange(CHUNKS)
for length in (8192, 1000, 4):
    tiles = torch.arange(0, length, THREADS * VEC * CHUNKS)[:, None, None]
    at = (tiles + threads * VEC + chunks * THREADS * VEC).flatten()
    inside = at < length
    read = at[inside, None] + torch.arange(VEC)
    assert torch.equal(read.flatten().sort().values, torch.arange(length))
    print(f"  rows of {length}: {int(inside.sum())} of {len(at)} vectors are loaded, each element once")

# %% [markdown]
# A vector must begin at a multiple of its 16 bytes. The fake tensor promises it: rows begin there, because the stride
# is a multiple of 4 elements and so is the address of the first.

# %%
compiled = course.compile(vectors, *course.fake_sum(VEC))
course.inspect(compiled)
order = re.findall(r"\b(ld\.global|add\S*\.f32)", compiled.__ptx__)
last_load = len(order) - order[::-1].index("ld.global")
first_addition = next(i for i, word in enumerate(order) if word.startswith("add"))
print(f"  all loads come before the first addition: {last_load <= first_addition}")

# %% [markdown]
# `print(compiled.__ptx__)` shows the code that the counts are of. [`vectorized`](../week1.md#ladder) is this kernel in
# week 1 ([file](../../packages/week1-reduce/src/forge_week1_reduce/kernels/vectorized.py)); its whole ladder at
# 16384 x 8192, as shares of a copy:

# %%
path = max((Path(__file__).parents[1] / "records" / "h200").glob("week1-*.json.xz"))
cases = [c for c in load_record(path).cases if c.operator == "sum_rows" and c.shape == [16384, 8192]]
for rung in ("naive", "shared", "shuffle", "vectorized"):
    shares = {case.dtype: case.contender(f"forge:{rung}").of_ceiling for case in cases}
    print(f"  {rung:10} " + ", ".join(f"{dtype} {share:.2f}" for dtype, share in shares.items()))
print(f"  from {path.relative_to(Path(__file__).parents[2])}")

# %% [markdown]
# ## Question
#
# Rows of 8191 fp32 elements: the first begins at a multiple of 16 bytes, the second 4 bytes before one. Which of these
# is right: (a) loads of 4 bytes, (b) a copy to an aligned buffer first, (c) something else?
#
# <details><summary>Answer</summary>
#
# (c): each row has single elements up to its first boundary, whole vectors from there on, and single elements at its
# end. Forge calls such rows *shifted* ([rows.md](../rows.md)): head and tail are at most 3 elements each, and the
# vectors between them are as fast as those of aligned rows. A copy would move three times the bytes. Four
# loads of 4 bytes are just enough in flight for fp32, and take four times the instructions.
#
# </details>

# %% [markdown]
# ## On a GPU
#
# What an H200 printed is 1.03 and 0.70 of a copy. A row of 1000 elements has 250 vectors, so most of a thread's four
# loads are predicated off, and each row ends in a barrier: week 1 chooses threads and vectors by the row's length.

# %%
course.time_sums({"vectors": compiled}, (16384, 8192), (16384, 1000))
course.finish(__file__)
