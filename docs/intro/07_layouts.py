# %% [markdown]
# # Step 7: layouts that are static, dynamic and symbolic
#
# A layout is a function from coordinates to offsets. What of it is compiled into the kernel, and what is an argument of
# each call? You learn what goes wrong when a kernel knows too much, how to compile for shapes that nobody has seen yet
# (fake tensors, `sym_int`), and how a kernel reaches PyTorch's current stream.
#
#     python docs/intro/07_layouts.py

# %%
from typing import Any

import course
import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32, Int32
from cutlass.cute.runtime import from_dlpack, make_fake_stream, make_fake_tensor

from forge_core.cute.monoid import Sum
from forge_core.cute.warp import reduce_lanes

# %% [markdown]
# ## One function, two layouts
#
# `(4,6):(6,1)` is a shape and its strides: coordinate (i, j) is at offset 6 i + j. Each number in it is *static*, part
# of the compiled code, or *dynamic*, read from the tensor of the call; the compiler prints the latter as `?`.
#
# A function of CuTe without a kernel runs on the CPU, on CPU tensors. This one does what a kernel's threads would do:
# it walks over all coordinates of `mX`, and instead of loading from an offset it writes the offset down.


# %%
@cute.jit
def offsets(mX: cute.Tensor, mI: cute.Tensor):
    print(f"  traced for mX {mX.layout}")
    for i in cutlass.range(mX.shape[0]):
        for j in cutlass.range(mX.shape[1]):
            mI[i, j] = Int32(cute.crd2idx((i, j), mX.layout))


def walk(compiled: Any, mX: Any) -> list[list[int]]:
    """The offsets that a compiled walk over `mX` visits, row by row."""
    seen = torch.full((8, 8), -1, dtype=torch.int32)
    compiled(mX, from_dlpack(seen))
    return [row for row in ([offset for offset in line if offset >= 0] for line in seen.tolist()) if row]


# %% [markdown]
# `from_dlpack` takes a layout as it finds it: static. `mark_layout_dynamic` leaves shapes and strides to the call, but
# for the stride 1 of the contiguous dim; `?{i64}` is a number of 64 bits. Compile both for a tensor of (4, 6), then
# call them with one of (3, 4), which has 12 elements.

# %%
first, other, seen = torch.zeros(4, 6), torch.zeros(3, 4), torch.zeros(8, 8, dtype=torch.int32)
static = cute.compile(offsets, from_dlpack(first), from_dlpack(seen))
dynamic = cute.compile(offsets, from_dlpack(first).mark_layout_dynamic(), from_dlpack(seen))
for name, compiled, tensor in (
    ("static", static, from_dlpack(other)),
    ("dynamic", dynamic, from_dlpack(other).mark_layout_dynamic()),
):
    visited = walk(compiled, tensor)
    outside = sum(offset >= other.numel() for row in visited for offset in row)
    print(f"  {name} code, called with (3, 4): {outside} of {sum(map(len, visited))} offsets are outside of x")
    print("\n".join("    " + " ".join(f"{offset:3}" for offset in row) for row in visited))

# %% [markdown]
# The static code walks over the shape that it was compiled for:
#
#     compiled (4,6):(6,1)                  called with (3,4):(4,1)
#      0  1  2  3  4  5                      0  1  2  3
#      6  7  8  9 10 11                      4  5  6  7
#     12 13 14 15 16 17   <- not ours        8  9 10 11
#     18 19 20 21 22 23   <- not ours
#
# On a GPU the last two rows are an illegal access, if nobody owns that memory. More often somebody does: the allocator
# hands out large pieces, the load succeeds, and the sum of row 1 is that of the wrong elements. No message at all.

# %% [markdown]
# ## Symbolic: a layout to compile for, without a tensor
#
# A *fake tensor* has a dtype, a shape, strides and an alignment, and no memory: a kernel can be compiled before there
# is anything to call it on, and where there is no GPU. `cute.sym_int()` is a number of the call with a name. The same
# object used twice ties two dims together, and `divisibility=` is a promise. Both are checked at each call, by compiled
# code, before the kernel is launched: a mistake is an exception that shows the signature, not a wrong sum.


# %%
@cute.jit
def first_of_rows(mX: cute.Tensor, mY: cute.Tensor):
    for i in cutlass.range(mX.shape[0]):
        mY[i] = mX[i, 0]


def fake(shape: tuple, stride: tuple, align: int = 4, memory: Any = cute.AddressSpace.generic) -> Any:
    """An fp32 tensor to compile for; `align`: bytes that its address is a multiple of."""
    return make_fake_tensor(Float32, shape, stride, memspace=memory, assumed_align=align)


m, n = cute.sym_int(), cute.sym_int(divisibility=4)
fakes = fake((m, n), (cute.sym_int64(divisibility=4), 1), align=16), fake((m,), (1,))
tied = cute.compile(first_of_rows, *fakes, options="--enable-tvm-ffi")
for x, y in (
    (torch.zeros(8, 1024), torch.zeros(8)),
    (torch.zeros(8, 1024), torch.zeros(7)),
    (torch.zeros(8, 1023), torch.zeros(8)),
    (torch.zeros(8, 1028)[:, 1:1025], torch.zeros(8)),
    (torch.zeros(8, 2048)[:, ::2], torch.zeros(8)),
    (torch.zeros(8, 1024, dtype=torch.bfloat16), torch.zeros(8)),
):
    told = "accepted"
    try:
        tied(x, y)
    except (TypeError, ValueError) as error:
        told = str(error).partition(" when calling")[0] + str(error).rpartition("`")[2]
    print(f"  {tuple(x.shape)!s:10}:{x.stride()!s:10} {str(x.dtype)[6:]:8} -> {tuple(y.shape)}: {told}")

# %% [markdown]
# ## What a promise buys
#
# One warp sums one row, four neighboring elements a lane. The kernel is the same text for all three layouts below; it
# takes rows of whole vectors for granted, which the second layout does not promise. Predict: how wide is a load of
# each?


# %%
@cute.kernel
def kernel(mX: cute.Tensor, mY: cute.Tensor):
    lane, row = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
    gX = cute.zipped_divide(mX[row, None], (4,))  # (4, vectors)
    rX = cute.make_rmem_tensor(4, Float32)
    total = Float32(0)
    for i in cutlass.range(lane, cute.size(gX, mode=[1]), 32):
        cute.autovec_copy(gX[None, i], rX)
        total += rX.load().reduce(cute.ReductionOp.ADD, Float32(0), 0)
    (total,) = reduce_lanes((total,), Sum(Float32))
    if lane == 0:
        mY[row] = total


@cute.jit
def row_sum(mX: cute.Tensor, mY: cute.Tensor, stream: Any):
    kernel.set_name_prefix("row_sum", remove_cutlass_symbol=True, keep_mangled_name=False)
    kernel(mX, mY).launch(grid=(mX.shape[0], 1, 1), block=(32, 1, 1), stream=stream)


def compiled_for(rows: Any, columns: Any, stride: Any, align: int) -> Any:
    """The row sum for a shape, a row stride and an alignment; `rows` is one object in both tensors."""
    gmem = cute.AddressSpace.gmem
    x, y = fake((rows, columns), (stride, 1), align, gmem), fake((rows,), (1,), 4, gmem)
    return course.compile(row_sum, x, y, make_fake_stream(use_tvm_ffi_env_stream=True))


four, far = cute.sym_int(divisibility=4), cute.sym_int64(divisibility=4)
kernels = {
    "static": compiled_for(4096, 1024, 1024, align=16),
    "symbolic": compiled_for(cute.sym_int(), cute.sym_int(), cute.sym_int64(), align=4),
    "symbolic, promised": compiled_for(cute.sym_int(), four, far, align=16),
}
for name, compiled in kernels.items():
    print(f"  {name}")
    course.inspect(compiled)

# %% [markdown]
# Without the promise a vector is four loads of 4 bytes, since nothing says that it begins at a multiple of 16. The
# static kernel knows how many iterations it takes, and has a loop with one load; the others are unrolled, and those
# that are left over have loads of their own: what is counted is code, and no speed. The static kernel refuses each
# other shape: with `--enable-tvm-ffi` static sizes are checked at each call, as they were not above.
#
# Strides are `sym_int64`: offsets of a matrix of more than 2^31 elements do not fit 32 bits, and a 32-bit stride would
# overflow without a word. Forge's kernels go one step further and take strides and lengths as plain arguments
# ([week 1's `rows.py`](../../packages/week1-reduce/src/forge_week1_reduce/kernels/rows.py) makes the tensors from
# them), so that one compiled kernel serves all shapes; alignment stays static, since it decides the width of an access.
#
# ## Streams
#
# `--enable-tvm-ffi` makes the compiled function take torch tensors as they are. The stream
# is not among its arguments: `make_fake_stream(use_tvm_ffi_env_stream=True)` has the compiled code ask PyTorch for the
# current one at each call, and `stream=stream` hands it to the launch. Leave out the latter and the kernel goes to the
# legacy default stream: right in every small test, too early or too late on a side stream, and missing in a CUDA graph.

# %% [markdown]
# ## Question
#
# A colleague writes `cute.sym_int()` twice, once for the rows of x and once for the elements of y. It compiles, and all
# tests pass. What has been lost?
#
# <details><summary>Answer</summary>
#
# The tie. Two symbols are two numbers, even under one name, so x of (8, 1024) with y of (7,) is accepted and the eighth
# row is written behind the end of y. The tests pass since they call it right. Below is that call: nothing complains.
#
# </details>

# %%
untied = cute.compile(
    first_of_rows,
    fake((cute.sym_int(), cute.sym_int()), (cute.sym_int64(), 1)),
    fake((cute.sym_int(),), (1,)),
    options="--enable-tvm-ffi",
)
room = torch.zeros(8)
untied(torch.ones(8, 1024), room[:7])
print(f"  two symbols: y has 7 elements, and the one behind it became {room[7].item()}")

# %% [markdown]
# ## On a GPU
#
# 16384 x 8192 fp32: 4 bytes read for each element, 4 written for each row. All that the promise changes is the width of
# a load, which the bytes do not show and the time may.

# %%
rows, columns = 16384, 8192
moved = 4 * rows * columns + 4 * rows
print(f"  {rows} x {columns} predicted: {moved:,} bytes")
gpu = course.device()
if gpu is not None:
    x = torch.randn(rows, columns, device=gpu)
    for name in ("symbolic", "symbolic, promised"):
        y, compiled = torch.empty(rows, device=gpu), kernels[name]
        compiled(x, y)
        torch.testing.assert_close(y, x.sum(1), rtol=1e-5, atol=1e-2)
        print(f"  {name}")
        course.measure(lambda f=compiled, y=y: f(x, y), moved)
    graph, y = torch.cuda.CUDAGraph(), torch.zeros(rows, device=gpu)
    with torch.cuda.graph(graph):  # captures what is launched on the current stream
        kernels["symbolic"](x, y)
    graph.replay()
    torch.testing.assert_close(y, x.sum(1), rtol=1e-5, atol=1e-2)
course.finish(__file__)
