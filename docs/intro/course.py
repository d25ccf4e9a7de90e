"""What the steps of the course share: the GPU, compiling, what the compiler made of a kernel, timing, recorded output.

A step that is run on an H200 with ``--record`` keeps what it prints from its first call of :func:`device` on in
``h200/<step>.txt``; without a GPU :func:`finish` prints that.
"""

from __future__ import annotations

import importlib.metadata
import io
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from forge_core.device import query
from forge_core.profiling.cubin import read_cubin
from forge_core.profiling.ptx import count_instructions
from forge_core.timing.interleave import Contender, Policy, time_interleaved
from forge_core.timing.l2 import l2_policy
from forge_core.timing.timers import TIMERS

__all__ = ["RECORDED", "arch", "compile", "device", "fake_sum", "finish", "inspect", "measure", "time_sums"]

#: Where recorded output is.
RECORDED = Path(__file__).with_name("h200")

_recorded = io.StringIO()


class _Both(io.TextIOBase):
    """Writes to the terminal and to what is recorded."""

    def write(self, text: str) -> int:
        """Writes a text to both."""
        _recorded.write(text)
        return sys.__stdout__.write(text) if sys.__stdout__ else 0


def device() -> torch.device | None:
    """The current CUDA device, or None where there is none; with ``--record``, what is printed from here on is kept."""
    gpu = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    if "--record" in sys.argv and not isinstance(sys.stdout, _Both):
        name = "no CUDA GPU" if gpu is None else torch.cuda.get_device_name(gpu)
        if "H200" not in name:
            raise SystemExit(f"--record: expected an NVIDIA H200, got {name}")
        sys.stdout = _Both()
    return gpu


def arch() -> str:
    """The architecture to compile for: the GPU's, or an H200's."""
    return query(torch.cuda.current_device()).arch if torch.cuda.is_available() else "sm_90a"


def compile(function: Any, *arguments: Any) -> Any:  # noqa: A001 - `course.compile` beside `cute.compile`
    """Compiles a function of CuTe for :func:`arch`; the result has its PTX and its cubin."""
    import cutlass.cute as cute

    with tempfile.TemporaryDirectory() as folder:
        options = f"--enable-tvm-ffi --gpu-arch {arch()} --keep-ptx --keep-cubin --dump-dir={folder}"
        return cute.compile(function, *arguments, options=options)


def fake_sum(vec: int = 1) -> tuple[Any, Any, Any]:
    """What a sum of rows is compiled for: x (M, N) and y (M), fake tensors of fp32 as in step 2, and a stream.

    Args:
        vec: elements of a vector; rows begin at multiples of it, and are whole multiples long.
    """
    from cutlass import AddressSpace, Float32, cute
    from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

    rows, columns, stride = cute.sym_int(), cute.sym_int(divisibility=vec), cute.sym_int64(divisibility=vec)
    gmem = AddressSpace.gmem
    x = make_fake_tensor(Float32, (rows, columns), (stride, 1), memspace=gmem, assumed_align=4 * vec)
    y = make_fake_tensor(Float32, (rows,), (1,), memspace=gmem, assumed_align=4)
    return x, y, make_fake_stream(use_tvm_ffi_env_stream=True)


def inspect(compiled: Any) -> None:
    """Prints registers, spills, accesses and synchronization of each kernel of what :func:`compile` returned."""
    counts = count_instructions(compiled.__ptx__)
    for kernel in read_cubin(bytes(compiled.__cubin__)):
        count = counts[kernel.name]
        spilled = max(kernel.stack_bytes - count.local_bytes, 0)
        found = ", ".join(f"{number} {name}" for name, number in (*count.accesses.items(), *count.kinds.items()))
        print(f"  {kernel.name}: {kernel.registers} registers, {spilled} bytes spilled; {found}")


def measure(call: Callable[[], object], bytes_moved: int) -> float:
    """Times a call, interleaved with a copy of as many bytes, each with a cold L2; prints and returns microseconds.

    Args:
        call: launches on the current stream; what it reads was not written by a call just before.
        bytes_moved: bytes that it must move at least; the copy reads one half and writes the other.
    """
    gpu = torch.device("cuda", torch.cuda.current_device())
    l2 = query(gpu).l2_bytes
    source = torch.randint(0, 256, (max(1, bytes_moved // 2),), dtype=torch.uint8, device=gpu)
    target = torch.empty_like(source)
    contenders = {
        "call": Contender(call, [()]),
        "copy": Contender(lambda: target.copy_(source), [()]),
    }
    policy, before = Policy(warmup_ms=50.0), l2_policy("cold", gpu, l2).before
    timed = time_interleaved(contenders, timer=TIMERS["events"](gpu), policy=policy, before=before).timings
    taken, copied = (1e3 * timed[name].median_ms for name in ("call", "copy"))
    print(f"    {taken:.1f} us, {bytes_moved / taken / 1e3:.0f} GB/s, {copied / taken:.2f} of the speed of a copy")
    return taken


def time_sums(kernels: dict[str, Callable[..., object]], *shapes: tuple[int, int]) -> None:
    """Predicts the bytes of sums over rows of fp32; on a GPU checks and measures each kernel, as in step 2."""
    for rows, columns in shapes:
        print(f"  {rows} x {columns} predicted: {4 * (rows * columns + rows):,} bytes")
    gpu = device()
    for rows, columns in shapes if gpu is not None else ():
        x, y = torch.randn(rows, columns, device=gpu), torch.empty(rows, device=gpu)
        for name, kernel in kernels.items():
            y.zero_()
            kernel(x, y)
            torch.testing.assert_close(y.double(), x.double().sum(1), rtol=1e-4, atol=1e-1)
            print(f"  {name}, {rows} x {columns}")
            measure(partial(kernel, x, y), 4 * (rows * columns + rows))


def finish(file: str) -> None:
    """Ends a step: keeps its output where that was asked for, or prints what is recorded where there is no GPU."""
    step = Path(file).stem
    record = RECORDED / f"{step}.txt"
    if isinstance(sys.stdout, _Both):
        versions = f"torch {torch.__version__}, CuTe DSL {importlib.metadata.version('nvidia-cutlass-dsl')}"
        RECORDED.mkdir(exist_ok=True)
        record.write_text(f"{torch.cuda.get_device_name()}, {versions}\n{_recorded.getvalue()}", encoding="utf-8")
    elif torch.cuda.is_available():
        return
    elif record.is_file():
        title, _, text = record.read_text(encoding="utf-8").partition("\n")
        print(f"recorded on {title}:\n{text}", end="")
    else:
        print(f"no output of an H200 is recorded yet; there: python docs/intro/{step}.py --record")
