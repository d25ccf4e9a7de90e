# %% [markdown]
# # Step 11: softmax is the same skeleton with a pair
#
# Load a row, fold it, exchange totals, map, store: that was the sum, with nothing to map. You learn how a softmax fits,
# which by its definition needs three passes: its total is a pair, (maximum, sum), and pairs merge. Then nothing of the
# skeleton changes, in your own kernel, in a row program, and in week 2.
#
#     python docs/intro/11_softmax.py

# %%
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import course
import cutlass.cute as cute
import torch
from cutlass import Boolean, Float32
from cutlass.cute.nvgpu import CopyG2ROp, CopyUniversalOp
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
from cutlass.memory import SmemAllocator

from forge_core.bench.records import load
from forge_core.cute.exchange import Sharers, open_exchange, reduce_row
from forge_core.cute.math import exp
from forge_core.cute.online import MaxSum, reciprocal
from forge_core.profiling.static import inspect_explained
from forge_core.rows import Fold, Operands, RowProgram, where
from forge_core.rows import exp as row_exp
from forge_core.rows import reciprocal as row_reciprocal
from forge_core.rows.operator import row_operator, row_output

# %% [markdown]
# ## Bytes
#
#     y = exp(x - m) / s       m = max x,   s = sum of exp(x - m)       over a row
#
#     pass 1   x -> m          pass 2   x, m -> s          pass 3   x, m, s -> y
#
# The maximum is subtracted since exp(89) is infinite in fp32. Three passes read x three times, unless a cache helps;
# what must move is one read and one write. Each rung of [week 2's ladder](../week2.md#ladder) removes one read:
#
#     naive        3 reads   the definition
#     online       2 reads   m and s in one pass: pairs merge
#     single_pass  1 read    the row stays in registers

# %%
M, N = 16384, 8192
moved = 2 * 4 * M * N
for name, reads in (("naive", 3), ("online", 2), ("single_pass", 1)):
    print(
        f"  {name:11} {M} x {N} read {reads} times: {4 * M * N * (reads + 1):,} bytes, {(reads + 1) / 2} of the least"
    )

# %% [markdown]
# ## The pair
#
# Any part of a row has a pair: its maximum, and its sum of exponentials below that maximum. Of two parts,
#
#     (a, s) + (b, t) = (m,  s exp(a - m) + t exp(b - m))        m = max(a, b)
#
# since s exp(a - m) is the same sum below m. Nothing at all has the pair (-inf, 0). That is a *monoid*, an associative
# operation with an identity, and it is all that a reduction ever asked for: shuffles, shared memory, clusters and parts
# take it as they took the sum. Check it on random pairs before you believe it.

# %%
Pair = tuple[torch.Tensor, torch.Tensor]


def combine(p: Pair, q: Pair) -> Pair:
    m = torch.maximum(p[0], q[0])
    base = torch.where(m == -torch.inf, 0.0, m)  # two empty parts: -inf - -inf would be NaN
    return m, p[1] * torch.exp(p[0] - base) + q[1] * torch.exp(q[0] - base)


def same(p: Pair, q: Pair) -> bool:
    """Equal maxima, and sums within a few roundings of fp64."""
    return torch.equal(p[0], q[0]) and torch.allclose(p[1], q[1], rtol=2.0**-48, atol=0)


generator = torch.Generator().manual_seed(0)


def pairs(count: int) -> Pair:
    """Random pairs in fp64, every tenth that of nothing."""
    m = 20 * torch.randn(count, dtype=torch.float64, generator=generator)
    s = 1 + torch.rand(count, dtype=torch.float64, generator=generator)
    m[::10], s[::10] = -torch.inf, 0.0
    return m, s


p, q, r = pairs(10_000), pairs(10_001), pairs(10_000)
q = q[0][1:], q[1][1:]  # empty pairs meet full ones
nothing = torch.full((10_000,), -torch.inf, dtype=torch.float64), torch.zeros(10_000, dtype=torch.float64)
print(f"  associative: {same(combine(combine(p, q), r), combine(p, combine(q, r)))}")
print(f"  commutative, bit by bit: {all(map(torch.equal, combine(p, q), combine(q, p)))}")
print(f"  (-inf, 0) is the identity: {same(combine(p, nothing), p)}")

# %% [markdown]
# Bit by bit, because two threads that exchange their pairs combine them in either order and must agree. (Lanes of a
# warp agree in another way: they find their common maximum first, and then add up sums below it.) Now a row: cut it
# into threads, a pair for each, and merge these in a tree. The first eight rows, with 1000 added to each element, show
# why m is subtracted.


# %%
def tree(each: Pair) -> Pair:
    """The pair of each row, from those of its threads: thread i and thread i + half, until one is left."""
    while each[0].shape[1] > 1:
        half = each[0].shape[1] // 2
        each = combine((each[0][:, :half], each[1][:, :half]), (each[0][:, half:], each[1][:, half:]))
    return each[0], each[1]


def by_pairs(x: torch.Tensor, threads: int = 256) -> torch.Tensor:
    """Softmax of each row as the kernel below computes it; x is (rows, vectors * threads * 4)."""
    own = x.reshape(len(x), -1, threads, 4)  # vector v of a row is thread v % threads's
    m = own.amax((1, 3))
    s = torch.exp(own - m[:, None, :, None]).sum((1, 3))
    m, s = tree((m, s))
    return torch.exp(x - m) / s


x = torch.randn(64, 8192, generator=generator)
x[:8] += 1000
right = x.double().softmax(1)
by_definition = torch.exp(x) / torch.exp(x).sum(1, keepdim=True)
torch.testing.assert_close(by_pairs(x), x.softmax(1), rtol=1e-5, atol=0)
for name, y in (("pairs", by_pairs(x)), ("torch.softmax", x.softmax(1)), ("no maximum", by_definition)):
    wrong = int((~torch.isclose(y.double(), right, rtol=1e-5, atol=0)).any(1).sum())
    print(f"  {name:14} {wrong} of {len(x)} rows are wrong")

# %% [markdown]
# ## The kernel
#
# Threads of a block take turns along the row, a vector of 16 bytes each, all loads on their way before the first is
# used. 8192 elements are 8 vectors for each of 256 threads:
#
#     mX    (M, N):(s, 1)                                 x; mY likewise
#     gX    (width):(1)                                   the block's row; width = threads * 4 * chunks, at least N
#     tXgX  ((4, 1), chunks):((1, 0), threads * 4)        thread t's vectors: t, t + threads, ...
#     tXpX  (1, chunks)                                   which of them are inside the row
#     tXrX  ((4, 1), chunks)                              the same in registers; -inf outside the row
#
#     load   tXgX -> tXrX             fold   tXrX -> (m, s) of the thread -> block: one barrier
#     map    tXrX -> tYrY             store  tYrY -> tYgY
#
# Compare it with the sum's kernel: the fold has a second half, the exchange another monoid, and there is a map.
# Limits: rows of whole vectors, which the layout promises and each call checks, and of at most `width` elements, which
# nothing checks here; selection is where Forge's kernels have that.

# %%
PAIR = MaxSum(Float32)


@dataclass(frozen=True)
class Softmax:
    threads: int = 256
    chunks: int = 8

    @cute.jit
    def __call__(self, mX: cute.Tensor, mY: cute.Tensor, stream: Any):
        self.kernel.set_name_prefix("softmax", remove_cutlass_symbol=True, keep_mangled_name=False)
        self.kernel(mX, mY).launch(grid=(mX.shape[0], 1, 1), block=(self.threads, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, mX: cute.Tensor, mY: cute.Tensor):
        thread, row = cute.arch.thread_idx()[0], cute.arch.block_idx()[0]
        (exchange,) = open_exchange(SmemAllocator(), [PAIR], Sharers(self.threads, self.threads))

        # Partition.
        width = self.threads * 4 * self.chunks
        gX, gY = (cute.make_tensor(m[row, None].iterator, cute.make_layout(width)) for m in (mX, mY))
        load = cute.make_copy_atom(CopyG2ROp(), Float32, num_bits_per_copy=128)
        store = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=128)
        own = cute.make_tiled_copy_tv(load, cute.make_layout(self.threads), cute.make_layout(4)).get_slice(thread)
        tXgX, tYgY, tXcX = (own.partition_S(t) for t in (gX, gY, cute.make_identity_tensor(width)))
        tXpX = cute.make_rmem_tensor((1, self.chunks), Boolean)
        for c in range(self.chunks):
            tXpX[0, c] = tXcX[(0, 0), c] < mX.shape[1]

        # Load.
        tXrX, tYrY = cute.make_rmem_tensor_like(tXgX), cute.make_rmem_tensor_like(tXgX)
        tXrX.fill(-Float32.inf)
        cute.copy(load, tXgX, tXrX, pred=tXpX)

        # Fold, exchange.
        x = tXrX.load()
        m = x.reduce(cute.ReductionOp.MAX, -Float32.inf, 0)
        s = exp(x - PAIR.base(m)).reduce(cute.ReductionOp.ADD, Float32(0), 0)
        m, s = reduce_row((m, s), PAIR, exchange)

        # Map, store.
        tYrY.store(exp(x - PAIR.base(m)) * reciprocal(s))
        cute.copy(store, tYrY, tYgY, pred=tXpX)


# %%
def fake(rows: Any, columns: Any) -> Any:
    return make_fake_tensor(Float32, (rows, columns), (cute.sym_int64(divisibility=4), 1), assumed_align=16)


rows, columns = cute.sym_int(), cute.sym_int(divisibility=4)
stream = make_fake_stream(use_tvm_ffi_env_stream=True)
compiled = course.compile(Softmax(), fake(rows, columns), fake(rows, columns), stream)
course.inspect(compiled)

# %% [markdown]
# Eight loads of 16 bytes and no other read of x; `votes` are the maxima of a warp, which an instruction finds. The
# rungs of week 2 are this story with one thing changed each:
#
# - [`naive.py`](../../packages/week2-softmax/src/forge_week2_softmax/kernels/naive.py): the three passes, an exchange
#   for the maximum and one for the sum.
# - [`online.py`](../../packages/week2-softmax/src/forge_week2_softmax/kernels/online.py): rows of any length, tile by
#   tile: the pair of each tile is merged into the thread's, and a second pass writes.
# - [`single_pass.py`](../../packages/week2-softmax/src/forge_week2_softmax/kernels/single_pass.py): the kernel above,
#   for 16-bit elements too, several short rows in a block, and registers bounded so that blocks hide each other's
#   phases.
# - [`held`](../../packages/forge-core/src/forge_core/rows/held.py), the row engine's: clusters for longer rows, rows
#   that begin anywhere, any program.

# %%
path = max((Path(__file__).parents[1] / "records" / "h200").glob("week2-*.json.xz"))
(case,) = (case for case in load(path).cases if case.name == f"softmax {M}x{N} float32")
for one in case.contenders:
    if one.name in ("forge:naive", "forge:online", "forge:single_pass", "forge:held", "eager"):
        print(f"  {one.name.removeprefix('forge:'):11} {one.gbs:5.0f} GB/s, {one.of_ceiling:.2f} of a copy")
print(f"  from {path.relative_to(Path(__file__).parents[2])}")

# %% [markdown]
# More than a copy is no mistake: a copy is a yardstick, and only the floor of step 3 may not be passed.
#
# ## The row program
#
# Without the movement, a softmax is two folds, constants and a map. `merge` names the pair, and promises that the sum
# may be taken below the maximum of a part: that lets the engine cut rows among lanes, blocks, clusters and launches.
# `outside` is what lanes behind the end of a row see, and `gradient="reference"` differentiates the reference.
# Week 2's [`program.py`](../../packages/week2-softmax/src/forge_week2_softmax/program.py) adds log_softmax, logsumexp
# and the gradients.


# %%
def base_of(m: Any) -> Any:
    return where(m == type(m)(float("-inf")), type(m)(0), m)


@dataclass(frozen=True)
class SoftmaxProgram(RowProgram):
    operands = Operands(rows=("x",), writes=("y",))
    outside, merge = float("-inf"), "max_sum"
    folds = (
        Fold("max", lambda v, row: v.x, masked=False),
        Fold("sum", lambda v, row, m: row_exp(v.x - base_of(m)), masked=False),
    )

    def constants(self, totals: tuple, row: Any) -> tuple:
        m, s = totals
        return base_of(m), row_reciprocal(s)

    def map(self, v: Any, constants: tuple) -> tuple:
        base, factor = constants
        return (row_exp(v.x - base) * factor,)


def reference(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return x.softmax(dim).contiguous()


@row_operator(
    "forge_intro::softmax(Tensor x, int dim=-1, *, str variant='auto') -> Tensor",
    program=SoftmaxProgram(),
    reference=reference,
    gradient="reference",
)
def softmax(x: torch.Tensor, dim: int = -1, *, variant: str = "auto") -> torch.Tensor:
    return row_output("softmax", SoftmaxProgram(), x=x, dim=dim)


torch.testing.assert_close(softmax(x), x.softmax(-1))  # on a CPU, by the reference
for shape, dim in (((32768, 128), -1), ((M, N), -1), ((4096, 65536), -1), ((1, 1 << 20), -1), ((1000, 64), 0)):
    call = softmax.explain(torch.empty(shape, device="meta"), dim, arch=course.arch())
    registers = [kernel.resources.registers for kernel in inspect_explained(call, arch=course.arch()).kernels]
    print(f"  {shape!s:15} over dim {dim:2}: {call.variant}, {' and '.join(map(str, registers))} registers")
    print(f"    {call.why}")

# %% [markdown]
# `grid` is one launch in which all blocks of the GPU share the rows; `column` has neighboring rows in neighboring
# threads. The vectors of a thread are what it has registers for, used or not.
#
# ## Question
#
# A thread of our kernel sums below its own maximum, and warps exchange pairs once. One could exchange the maximum
# first, then sum below the row's, and exchange the sum. What does each cost, and where is the second better?
#
# <details><summary>Answer</summary>
#
# The second has two exchanges, one waiting for the other: in a block a second barrier, in a cluster a second round of
# messages. For that it takes no exponential to merge, and if exp(x - m) stays in registers the map is a multiplication
# alone, where ours computes each exponential again. Among lanes of a warp an exchange is a few shuffles, and there
# `single_pass` and `held` take the maximum first. In a block, and more so in a cluster, the exchange costs more than
# the arithmetic, which hides behind the memory anyway.
#
# </details>

# %% [markdown]
# ## On a GPU

# %%
gpu = course.device()
if gpu is not None:
    x = torch.randn(M, N, device=gpu)
    y = torch.empty_like(x)
    calls: dict[str, Callable[[], Any]] = {
        "our kernel": lambda: compiled(x, y),
        "the row program": lambda: softmax(x),
        "torch.softmax": lambda: x.softmax(-1),
    }
    calls["our kernel"]()
    for found in (y, softmax(x)):
        torch.testing.assert_close(found, x.softmax(-1), rtol=1e-5, atol=1e-7)
    for name, each in calls.items():
        print(f"  {name}")
        course.measure(each, moved)

# %% [markdown]
# That is the whole way: `torch.sum`, its bytes, its loads, exchanges, layouts, few rows, an operator and its tests, and
# how it ships; and softmax, a sum of pairs. [Week 2](../week2.md) goes on from here, with gradients and any layout.

# %%
course.finish(__file__)
