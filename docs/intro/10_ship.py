# %% [markdown]
# # Step 10: prove, profile, ship
#
# The kernel is fast and its tests pass, on your machine, this afternoon. You learn what keeps that true: what a GPU
# validation record binds to, how to read a profile, and how compiled kernels reach a machine that must not compile.
#
#     python docs/intro/10_ship.py

# %%
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import course
import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32, Int32
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from forge_core.cache import builder_at
from forge_core.files import read_unpacked
from forge_core.profiling.diagnosis import Needed, diagnose
from forge_core.profiling.ncu import read_profile
from forge_core.proofs.evidence import normalised
from forge_core.proofs.record import load
from forge_week1_reduce import reduce_sum

RECORDS = Path(__file__).parents[1] / "records" / "h200"

# %% [markdown]
# ## Prove: bound to what ran, not to its text
#
# GPU tests, sanitizers and repeated calls of every kernel take a GPU and patience. They need not be repeated for a
# comment, and must be for a reordered addition. So a record binds to *what ran*: the plan of each call (configuration,
# grid, shared memory, integers) and the PTX of each kernel. Both are recomputed without a GPU by
# `nox -s proofs` and compared ([proofs.md](../proofs.md#what-a-proof-binds-to)).
#
# A *builder* makes a kernel for a *configuration*, a dataclass of what it is compiled for. `normalised` drops from PTX
# what may differ: comments, line numbers, versions and names. Three versions of one kernel: as it was; tidied up; with
# its three additions in another order.


# %%
@cute.kernel
def as_it_was(mX: cute.Tensor, mY: cute.Tensor):
    thread = cute.arch.block_idx()[0] * 128 + cute.arch.thread_idx()[0]
    rX = cute.make_rmem_tensor(4, Float32)
    cute.autovec_copy(mX[None, thread], rX)
    mY[thread] = ((rX[0] + rX[1]) + rX[2]) + rX[3]


def element_of(threads: int) -> Int32:
    return cute.arch.block_idx()[0] * threads + cute.arch.thread_idx()[0]


@cute.kernel
def tidied_up(mX: cute.Tensor, mY: cute.Tensor):
    place = element_of(threads=128)
    gX, gY = mX[None, place], mY
    rX = cute.make_rmem_tensor(4, Float32)
    cute.autovec_copy(gX, rX)
    total = rX[0]
    for k in cutlass.range_constexpr(1, 4):  # unrolled: the same additions in the same order
        total = total + rX[k]
    gY[place] = total


@cute.kernel
def reordered(mX: cute.Tensor, mY: cute.Tensor):
    thread = cute.arch.block_idx()[0] * 128 + cute.arch.thread_idx()[0]
    rX = cute.make_rmem_tensor(4, Float32)
    cute.autovec_copy(mX[None, thread], rX)
    mY[thread] = (rX[0] + rX[1]) + (rX[2] + rX[3])


@cute.jit
def launch(mX: cute.Tensor, mY: cute.Tensor, kernel: cutlass.Constexpr, stream: Any):
    kernel(mX, mY).launch(grid=(mX.shape[1] // 128, 1, 1), block=(128, 1, 1), stream=stream)


columns = cute.sym_int(divisibility=128)
x = make_fake_tensor(Float32, (4, columns), (1, 4), assumed_align=16)
y = make_fake_tensor(Float32, (columns,), (1,), assumed_align=4)
stream = make_fake_stream(use_tvm_ffi_env_stream=True)
versions = {kernel: course.compile(launch, x, y, kernel, stream) for kernel in (as_it_was, tidied_up, reordered)}
first = normalised(versions[as_it_was].__ptx__)
for kernel, compiled in versions.items():
    print(f"  {kernel.__name__:10} {'the same PTX' if normalised(compiled.__ptx__) == first else 'other PTX'}")

# %% [markdown]
# What the record says of the kernel that sums rows for `reduce_sum`:

# %%
record = load(RECORDS / "proof.json.xz")
proof = record.proof("forge_week1::reduce_sum/held")
assert proof is not None
print(f"  {proof.name} on an {record.gpu}: {proof.repeats} calls with the same bits")
print(f"  error: {', '.join(f'{dtype} within its bound' for dtype, error in proof.errors.items() if error.share <= 1)}")
print(f"  {'; '.join(f'{tool}: {verdict}' for tool, verdict in proof.sanitizers.items())}")

# %% [markdown]
# ## Profile: what limits it
#
# Nsight Compute counts; [the rules of the diagnosis](../profiling.md#the-rules-of-the-diagnosis) turn the counters into
# two or three sentences. Ask in this order: does it move more than it must, is it near some peak, and if not, what does
# it wait for? Predict the answers for week 1's first rung (a thread a row, lanes a whole row apart) and for its last.


# %%
def profiles(name: str) -> dict[str, Any]:
    """The diagnosis of each variant's first launch in a recorded profile."""
    folder = RECORDS / "profiling"
    works = json.loads(read_unpacked(folder / f"{name}.manifest.json.xz"))["works"]
    launches, found = iter(read_profile(folder / f"{name}.csv.xz")), {}
    for work in works:
        mine = [next(launches) for _ in work["launches"]]
        found[work["variant"]] = diagnose(mine[0], Needed(work["read"], work["written"]))
    return found


for variant, told in profiles("week1").items():
    if variant in ("naive", "shared", "vectorized", "held"):
        shown = told.figures
        print(f"  {variant}: {shown['duration_us']:.1f} us, DRAM at {shown['dram_pct']:.0f} % of its peak", end="")
        print(f", {shown['load_sectors_per_request']:.0f} sectors a load, {shown['occupancy_pct']:.0f} % occupied")
        for sentence in told.text.split(". "):
            print(f"    {sentence.rstrip('.')}.")
print("  from docs/records/h200/profiling: sums of the rows of 4096 x 8192 bf16")

# %% [markdown]
# Two figures want an explanation. That of the L1 counts only multiprocessors that have work: the 32 busy ones of
# `naive` are at 85 % of theirs, while DRAM is counted over the whole GPU. And `shared` counts as bound by the memory
# because the L2, at 65 %, is beyond the 60 % from which a unit is said to limit; that DRAM is at 52 % says how much is
# left to gain.
#
# Of the two that are near the peak, `held` is nearest, with the fewest warps: occupancy, the share of the warp slots in
# use, is a means to have bytes in flight, and eight loads of 16 bytes a thread are another. "Waiting for global memory"
# is no finding either: a kernel at the memory's bandwidth has nothing else to do. The same command profiles yours: `nox
# -s profile -- ncu week1`.

# %% [markdown]
# ## Ship: no compiler on the other side
#
# A kernel is compiled once for each key: builder, configuration, architecture, toolchain, and the SHA-256 of all
# sources that it is made of ([cache.md](../cache.md#the-key)). A *bundle* is a folder of compiled kernels with their
# keys, built where no GPU is needed. On the other side, `FORGE_JIT=0` turns "not there" into an error instead of a
# compilation.

# %%
ARCH = course.arch()
call = reduce_sum.explain(torch.empty(16384, 8192, device="meta"), -1, arch=ARCH)
key = builder_at(call.builder).key(call.config, arch=ARCH)
print(f"  reduce_sum of 16384 x 8192 fp32: {call.variant}, {call.builder}")

OTHER_SIDE = f"""
import sys, torch
from forge_core.cache import builder_at
from forge_core.errors import MissingKernelError
from forge_week1_reduce import reduce_sum

call = reduce_sum.explain(torch.empty(16384, 8192, device="meta"), -1, arch="{ARCH}")
try:
    found = builder_at(call.builder).get(call.config, arch="{ARCH}")
    print(found.key.digest, f"found in the {{found.origin}}, compiler imported: {{'cutlass' in sys.modules}}")
except MissingKernelError as error:
    print(error.key, f"{{type(error).__name__}}; it names the command: {{' '.join(error.command.split()[:5])}} ...")
"""


def other_side(folder: str, bundles: str) -> None:
    """A fresh process with an empty cache that must not compile; whether it finds the key of this one, and where."""
    variables = {"FORGE_JIT": "0", "FORGE_CACHE_DIR": f"{folder}/cache", "FORGE_BUNDLES": bundles}
    done = subprocess.run(
        [sys.executable, "-c", OTHER_SIDE], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    digest, _, told = done.stdout.strip().partition(" ")
    print(f"  {'with the bundle' if bundles else 'without'}: {told}; the same key: {digest == key.digest}")


with tempfile.TemporaryDirectory() as folder:
    build = f"cache build --arch {ARCH} --out {folder}/bundle --kernel {key.name} --config".split()
    subprocess.run([sys.executable, "-m", "forge_core.cli", *build, key.config], check=True, stdout=subprocess.DEVNULL)
    told = json.loads(Path(folder, "bundle", "bundle.json").read_text(encoding="utf-8"))
    print(f"  the bundle: {told['kernels']} kernel, for {', '.join(told['archs'])}")
    other_side(folder, "")
    other_side(folder, f"{folder}/bundle")

# %% [markdown]
# For a suite it is `forge-cute cache build --arch sm_90a --suite week1 --out kernels/`, and a package can carry the
# folder: [compiling ahead of time](../cache.md#compiling-ahead-of-time).
#
# ## Question
#
# Somebody renames a variable in the file of a kernel. Is its GPU validation record still valid? Does the bundle that
# was shipped yesterday still serve the new checkout?
#
# <details><summary>Answer</summary>
#
# The record is: plans and PTX are the same, as above. The bundle is not: the key contains the SHA-256 of the sources,
# so the kernel is missing. The two err on different sides on purpose. A lookup must never serve a wrong kernel, has no
# time to compile in order to compare, and a compilation too many costs little. A proof is expensive, and its check may
# take a while, so it compares what was compiled.
#
# </details>

# %%
gpu = course.device()
if gpu is not None:
    x = torch.randn(16384, 8192, device=gpu)
    torch.testing.assert_close(reduce_sum(x, -1), x.sum(-1), rtol=1e-5, atol=1e-2)
    course.measure(lambda: reduce_sum(x, -1), call.read + call.written)
course.finish(__file__)
