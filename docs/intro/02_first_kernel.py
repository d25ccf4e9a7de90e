# %% [markdown]
# # Step 2: a first kernel
#
# A thread for each row walks through it. You learn the three parts of a program in the CuTe DSL (a kernel, the function
# that launches it, the compiled result), why it is compiled once and not at each call, and what each call costs the
# host.
#
#     python docs/intro/02_first_kernel.py

# %%
from typing import Any

import course
import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32
from cutlass.cute.runtime import from_dlpack, make_fake_stream, make_fake_tensor

from forge_core.timing.host import host_times

# %% [markdown]
# ## The kernel
#
# `@cute.kernel` is what each thread runs. In CuTe's grammar of names `mX` is the whole tensor in memory, `gX` the part
# of it that a block or thread works on. A layout is written shape:stride, so that element (i, j) of `(M, N):(N, 1)` is
# at i * N + j; its dims are called modes. Indexing with `None` keeps a mode: `mX[row, None]` is a row, itself a tensor.
#
#     mX  (M, N):(N, 1)             thread 0   row 0   [x x x x x x ...
#     gX  (N):(1)                   thread 1   row 1   [x x x x x x ...
#                                   thread 2   row 2   [x x x x x x ...     one element a step


# %%
@cute.kernel
def naive_kernel(mX: cute.Tensor, mY: cute.Tensor):
    row = cute.arch.block_idx()[0] * 128 + cute.arch.thread_idx()[0]
    if row < mX.shape[0]:
        gX, total = mX[row, None], Float32(0)
        for i in cutlass.range(mX.shape[1]):
            total += gX[i]
        mY[row] = total


# %% [markdown]
# ## The launch
#
# `@cute.jit` is host code: it knows the shapes and decides how many blocks there are. It is compiled too.


# %%
@cute.jit
def naive(mX: cute.Tensor, mY: cute.Tensor, stream: Any):
    naive_kernel.set_name_prefix("naive", remove_cutlass_symbol=True, keep_mangled_name=False)
    blocks = cute.ceil_div(mX.shape[0], 128)
    naive_kernel(mX, mY).launch(grid=(blocks, 1, 1), block=(128, 1, 1), stream=stream)


# %% [markdown]
# ## Compile once
#
# Called as it is, `naive(x, y, stream)` would be traced, and looked up or compiled, at each call. `cute.compile` does
# that once, for tensors that need not exist yet: a *fake tensor* has a dtype, a shape and strides. `sym_int()` stands
# for a number that each call brings along, so that one compiled kernel serves all matrices (step 7 has the details).

# %%
rows, columns = cute.sym_int(), cute.sym_int()
x = make_fake_tensor(Float32, (rows, columns), (cute.sym_int64(), 1), memspace=cute.AddressSpace.gmem, assumed_align=4)
y = make_fake_tensor(Float32, (rows,), (1,), memspace=cute.AddressSpace.gmem, assumed_align=4)
compiled = course.compile(naive, x, y, make_fake_stream(use_tvm_ffi_env_stream=True))
course.inspect(compiled)

# %% [markdown]
# This counts instructions in the code, whatever is executed: the loop is unrolled, and the iterations that are left
# over have loads of their own. `ld.global.4` is a load of 4 bytes from global memory, and a *spill* a register that had
# to be kept in memory, for want of registers. The number behind the name tells apart the launches of a program.
#
# All is in order, and the kernel is slow: a multiprocessor has 4 of 64 warps, and each load is scattered over memory.
# Steps 4 and 6 show what that costs.
#
# ## What a call costs
#
# A kernel of 3 us is called every 3 us only if the host keeps up. `from_dlpack(tensor)` makes CuTe's view of a tensor,
# an object of Python, anew at each call. Code that is compiled with `--enable-tvm-ffi` takes torch tensors as they are
# and reads pointer, shape and strides natively.
#
# ## Question
#
# The kernel launches one thread a row. How many of the 132 multiprocessors of an H200 have work for a matrix of 1024
# rows?
#
# <details><summary>Answer</summary>
#
# Eight: 1024 rows are 8 blocks of 128 threads, and a block runs on one multiprocessor. A matrix of 16384 rows has 128
# blocks, which is a block each, 4 warps where 64 would fit. [Week 1's `naive`](../week1.md#ladder), too, has a thread
# a row; it takes any strides and adds runs of 128 elements separately, which bounds the rounding error and is slower
# ([file](../../packages/week1-reduce/src/forge_week1_reduce/kernels/naive.py)).
#
# </details>

# %% [markdown]
# ## On a GPU
#
# Right first, then the time of the kernel, then that of the host.

# %%
M, N = 16384, 8192
moved = 4 * M * N + 4 * M
print(f"  {M} x {N} predicted: {moved:,} bytes")
print(f"  blocks: {-(-M // 128)}, of 1024 rows {-(-1024 // 128)}")
device = course.device()
if device is not None:
    x, y = torch.randn(M, N, device=device), torch.empty(M, device=device)
    compiled(x, y)
    torch.testing.assert_close(y.double(), x.double().sum(1), rtol=1e-4, atol=1e-1)
    print("  naive")
    course.measure(lambda: compiled(x, y), moved)
    small, total = x[:1, :1].contiguous(), y[:1]
    calls = {
        "the compiled call": lambda: compiled(small, total),
        "from_dlpack of its two tensors": lambda: (from_dlpack(small), from_dlpack(total)),
        "torch.sum": lambda: torch.sum(small, 1),
    }
    for name, timing in host_times(calls).items():
        print(f"  host time of {name}: {timing.median_ms * 1e3:.1f} us")
    # The same on the timeline of torch's profiler, whose table has a line for each function of the host.
    with torch.profiler.profile() as profile:
        for _ in range(20):
            compiled(small, total)
        torch.cuda.synchronize()
    kernels = sorted({event.name for event in profile.events() if "naive" in event.name})
    print(f"  on the profiler's timeline: {', '.join(kernels)}")
course.finish(__file__)
