# %% [markdown]
# # Step 1: the bound
#
# Before any kernel: how fast can it be at all? You learn to count the bytes that an operator must move, to turn them
# into the least time on a GPU, and to measure what a plain copy of as many bytes takes, which is the bound in practice.
#
#     python docs/intro/01_bound.py

# %%
import course
import torch

from forge_core.device import SPECS

# %% [markdown]
# ## A few words first
#
# A GPU runs threads in *warps* of 32; a thread of a warp is a *lane*. Warps make up *blocks*, and a block runs on one
# *multiprocessor*, of which an H200 has 132, each with room for 64 warps. All share one L2 cache, behind which lies the
# memory, DRAM. The steps explain each term of CUDA at its first use; the [glossary](../glossary.md) has those and
# Forge's own.
#
# ## Bytes
#
# `torch.sum(x, -1)` of a matrix of M rows and N columns reads each element once and writes one result for each row. No
# kernel can move less, whatever it does; most move exactly that, if they do well.
#
#     read     M * N * bytes of an element
#     written  M * bytes of an element
#
# An addition for each element read is next to nothing: the lanes of an H200 could make more than twenty in the time in
# which one fp32 element arrives. So time is bytes over bandwidth. Such an operator is *memory-bound*, as are all of
# this course.


# %%
def bytes_of_sum(rows: int, columns: int, dtype: torch.dtype) -> int:
    """What a sum over the last dim must move at least."""
    return (rows * columns + rows) * dtype.itemsize


for rows, columns, dtype in (
    (16384, 8192, torch.float32),
    (16384, 8192, torch.bfloat16),
    (1024, 1024, torch.float32),
    (8, 4194304, torch.float32),
):
    print(f"  {rows:5} x {columns:7} {str(dtype)[6:]:8} {bytes_of_sum(rows, columns, dtype):11,} bytes")

# %% [markdown]
# ## Seconds
#
# A data sheet says how many bytes a second the memory delivers. Predict before you read on: by which factor does the
# sum get faster from an A100 to a B200?

# %%
M, N = 16384, 8192
moved = bytes_of_sum(M, N, torch.float32)
for gpu in SPECS.values():
    print(f"  {gpu.name:26} {gpu.bandwidth_gbs:6.0f} GB/s: {moved / gpu.bandwidth_gbs / 1e3:7.2f} us at least")

# %% [markdown]
# ## The ceiling
#
# No program reaches the figure of the data sheet: memory refreshes, and its pages are opened and closed. What can be
# reached, a copy of as many bytes shows, measured in the same run on the same GPU. Forge calls it the *ceiling*, and
# gives every bandwidth as a share of it too ([measurement.md](../measurement.md)). It is a yardstick and no limit: half
# of a copy's bytes are written, and a kernel that only reads may pass it by a few per cent. Nothing passes the data
# sheet.
#
# Small tensors are another matter. A launch takes a few microseconds whatever it does, and 4 MB would stay in an L2
# cache of 60 MB: two reasons why a time of 1 us would be a mistake of the measurement. That is step 3.
#
# ## Question
#
# `y = torch.softmax(x, -1)` of the same fp32 matrix: what is its least time, in terms of that of the sum?
#
# <details><summary>Answer</summary>
#
# Twice as long. It reads each element and writes each element, 2 * M * N * 4 bytes; the sum's results are 1 in 8192 of
# its bytes. That softmax needs a maximum and a sum of each row before it can write anything does not move the bound, it
# makes the bound harder to reach: step 11.
#
# </details>

# %% [markdown]
# ## On a GPU
#
# `torch.sum` against a copy of as many bytes; next, the same for the small matrix.

# %%
for rows in (M, 1024):
    columns = N if rows == M else 1024
    print(f"  {rows} x {columns} predicted: {bytes_of_sum(rows, columns, torch.float32):,} bytes")
device = course.device()
if device is not None:
    for rows, columns in ((M, N), (1024, 1024)):
        x = torch.randn(rows, columns, device=device)
        print(f"  torch.sum of {rows} x {columns}")
        course.measure(lambda x=x: torch.sum(x, -1), bytes_of_sum(rows, columns, torch.float32))
course.finish(__file__)
