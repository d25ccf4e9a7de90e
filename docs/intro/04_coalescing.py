# %% [markdown]
# # Step 4: coalescing
#
# The kernel of step 2 moves the right bytes and asks for them in the wrong way. You learn what memory makes of a warp's
# load, how to see it before there is a GPU, and how to number threads so that nothing is wasted.
#
#     python docs/intro/04_coalescing.py

# %%
from pathlib import Path
from typing import Any

import course
import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32

from forge_core.bench.records import load
from forge_core.profiling.layouts import coalescing, thread_value

# %% [markdown]
# ## A request and its sectors
#
# The 32 lanes of a warp load together: one *request*. Memory answers in *sectors* of 32 bytes. A request for 32 fp32
# elements needs 128 bytes, which is 4 sectors, if they are neighbors, and up to 32 sectors if each is somewhere else.
#
# Which lane reads which byte is a thread-value layout, ((threads), (values)):((strides)), in bytes here. For rows of
# 8192 elements, the first 4 loads of a thread:
#
#     naive     ((32),(4)):((32768),(4))      lane t reads row t: lanes lie a whole row apart
#     a warp    ((32),(4)):((4),(128))        lanes are neighbors, and the next load begins 32 elements on
#
# Read: in `naive`, load v of lane t begins at byte t * 32768 + v * 4. Predict the sectors of a request of each, and the
# share of their bytes that is used.

# %%
for name, lane, value in (("naive", 32768, 4), ("a warp a row", 4, 128), ("every second element", 8, 256)):
    found = coalescing(*thread_value("load", (((32,), (4,)), ((lane,), (value,))), 4))
    print(
        f"  {name:21} {found.sectors_per_request:4.0f} sectors a request, {found.used_pct:5.1f} % of their bytes used"
    )

# %% [markdown]
# `forge-cute layout` draws the same, of any layout or of a kernel:
#
#     forge-cute layout kernel sum_rows --shape 4096x8192 --dtype float32 --variant naive --out naive.svg
#     forge-cute layout copy --threads 1x32 --values 1x4 --dtype float32 --out copy.svg
#
# Are the other bytes of a sector lost? They wait in the L1 for the thread's next loads: at 4 warps a multiprocessor 128
# sectors, 4 KB, which fit. But for each request the L1 looks up 32 lines where one would do: the profile of week 1's
# `naive` in [step 10](10_ship.py) shows what is busy.
#
# ## A warp a row
#
# Neighboring lanes, neighboring elements: lane t adds up elements t, t + 32, t + 64, ... Then 32 lanes have a part of
# the row each, and the parts must meet. `warp_reduction_sum` exchanges registers between lanes by shuffles, in 5 steps:
#
#     step      16, 8, 4, 2, 1                   after the first, lanes t and t + 16 have the same; after all, all 32


# %%
@cute.kernel
def warp_kernel(mX: cute.Tensor, mY: cute.Tensor):
    thread, block = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
    lane, row = thread % 32, block * 4 + thread // 32
    if row < mX.shape[0]:
        gX, total = mX[row, None], Float32(0)
        for i in cutlass.range(lane, mX.shape[1], 32):
            total += gX[i]
        total = cute.arch.warp_reduction_sum(total)
        if lane == 0:
            mY[row] = total


@cute.jit
def warp_a_row(mX: cute.Tensor, mY: cute.Tensor, stream: Any):
    warp_kernel.set_name_prefix("warp_a_row", remove_cutlass_symbol=True, keep_mangled_name=False)
    blocks = cute.ceil_div(mX.shape[0], 4)
    warp_kernel(mX, mY).launch(grid=(blocks, 1, 1), block=(128, 1, 1), stream=stream)


compiled = course.compile(warp_a_row, *course.fake_sum())  # the fake tensors and the stream of step 2
course.inspect(compiled)

# %% [markdown]
# The exchange needs no GPU to be checked. At each step lane t adds what lane t ^ offset has. Afterwards all lanes have
# the sum of the row, in the same bits: of a pair that exchanges, both add the same two numbers.

# %%
x = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))
lanes, parts = torch.arange(32), torch.stack([x[:, lane::32].sum(1) for lane in range(32)])
for offset in (16, 8, 4, 2, 1):
    parts = parts + parts[lanes ^ offset]
torch.testing.assert_close(parts[0].double(), x.double().sum(1), rtol=1e-5, atol=1e-4)
print(f"  after 5 steps all lanes have the same bits: {torch.equal(parts, parts[:1].expand_as(parts))}")

# %% [markdown]
# ## What it brings
#
# Week 1 has a *ladder* of kernels, each rung faster than the one below. Its first two differ by neighboring lanes, by a
# block for each row, and by four loads before the branch; the kernel above has the first of these only. From week 1's
# record, sums over rows of 16384 x 8192:

# %%
path = max((Path(__file__).parents[1] / "records" / "h200").glob("week1-*.json.xz"))
for case in load(path).cases:
    if case.operator == "sum_rows" and case.shape == [16384, 8192]:
        for variant in ("naive", "shared"):
            found = case.contender(f"forge:{variant}")
            assert found is not None
            print(f"  {case.dtype:8} {variant:6} {found.gbs:5.0f} GB/s, {found.of_ceiling:.2f} of a copy")
print(f"  from {path.relative_to(Path(__file__).parents[2])}")

# %% [markdown]
# In bf16 an element is half as wide, so as many loads ask for half the bytes at a time: step 6.
#
# To try: share a row among 8 lanes instead of 32. How many sectors has a request then, and how many shuffles are left?
# (4, one of each of four rows; and 3.) Change the kernel and run the step again.
#
# ## Question
#
# The same matrix, but the sum is over its first dim: y[j] is the sum of column j. Which of the two kernels reads
# coalesced now, if "row" is what it adds up?
#
# <details><summary>Answer</summary>
#
# `naive`: thread t adds up column t, and at each step neighboring threads read neighboring elements of one row of the
# matrix. The warp would walk down a column, 32 sectors a request. So the order of memory decides who shares what, not
# the word in the operator's name: Forge's engine asks for strides, never for the last dim
# ([rows.md](../rows.md#kernels)).
#
# </details>

# %% [markdown]
# ## On a GPU

# %%
course.time_sums({"a warp a row": compiled}, (16384, 8192))
course.finish(__file__)
