"""The process that a profiler watches: warms up, then makes the calls inside a range, and nothing else inside it.

    inputs, first calls (compile, load)      outside     no profiler that was told to wait sees them
    profiled_range(name): the calls          inside      our kernels alone: no reference, no flush of the L2

Several calls go round over input sets that together exceed the L2 twice, so that each finds its input in DRAM, as a
flush would have it, without a kernel that flushes.  One call under ncu needs none of that: ncu empties the caches
itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from forge_core import device as devices
from forge_core.bench.plan import discover
from forge_core.errors import ForgeError
from forge_core.profiling.ranges import CudaMarks, profiled_range

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from works import PLANTED, Work, choose

WARM_UPS = 2
MOST_SETS = 8


def sets_for(work: Work, calls: int, l2_bytes: int) -> int:
    """How many input sets the calls go round over."""
    once = max(work.read + work.written, 1)
    return max(1, min(calls, MOST_SETS, 1 + 2 * l2_bytes // once))


def prepare(works: Sequence[Work], *, calls: int, device: torch.device, l2_bytes: int) -> list[list[tuple[Any, ...]]]:
    """The input sets of each work, after its first calls, which compile and load what it runs."""
    prepared = []
    for work in works:
        inputs = [work.make(device, number) for number in range(sets_for(work, calls, l2_bytes))]
        for _ in range(WARM_UPS):
            work.call(*inputs[-1])
        prepared.append(inputs)
    return prepared


def run(
    works: Sequence[Work], *, calls: int, device: torch.device, l2_bytes: int, marks: CudaMarks | None = None
) -> None:
    """Warms everything up, then profiles: one profiled stretch, in which each work has a range of its name."""
    marks = marks or CudaMarks()
    prepared = prepare(works, calls=calls, device=device, l2_bytes=l2_bytes)
    with profiled_range("forge", marks):
        for work, inputs in zip(works, prepared, strict=True):
            marks.push(work.name)
            for number in range(calls):
                work.call(*inputs[number % len(inputs)])
            marks.synchronize()
            marks.pop()


def with_torch_profiler(works: Sequence[Work], *, calls: int, device: torch.device, l2_bytes: int, trace: Path) -> str:
    """As :func:`run` under PyTorch's profiler; writes the trace and returns its table."""
    from torch.profiler import ProfilerActivity, profile, record_function

    prepared = prepare(works, calls=calls, device=device, l2_bytes=l2_bytes)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        for work, inputs in zip(works, prepared, strict=True):
            with record_function(f"forge: {work.name}"):
                for number in range(calls):
                    work.call(*inputs[number % len(inputs)])
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(trace))
    return str(profiler.key_averages().table(sort_by="device_time_total", row_limit=40, max_name_column_width=80))


def main(argv: Sequence[str] | None = None) -> int:
    """The program; the runners start it."""
    parser = argparse.ArgumentParser(prog="workload.py", description=__doc__)
    parser.add_argument("package", nargs="?", help=f"week0, week0-transpose, ..., {PLANTED}; without it, all")
    parser.add_argument("--case", help="operator, shape, dtype and layout, for example 'transpose 4096x4096 bfloat16'")
    parser.add_argument("--variant", default="auto", help="auto, a variant's name, or all")
    parser.add_argument("--calls", type=int, default=1, help="profiled calls of each")
    parser.add_argument("--manifest", type=Path, help="where to write what is profiled, as JSON")
    parser.add_argument("--torch-profiler", type=Path, help="run under PyTorch's profiler and write its trace here")
    options = parser.parse_args(argv)
    try:
        if not torch.cuda.is_available():
            sys.stderr.write("profiling needs a CUDA GPU, and torch finds none; `forge-cute inspect` needs none\n")
            return 2
        device = torch.device("cuda", torch.cuda.current_device())
        gpu = devices.query(device)
        works, left_out = choose(discover(), options.package, options.case, options.variant, arch=gpu.arch)
        for line in left_out:
            sys.stderr.write(f"left out: {line}\n")
        if options.manifest is not None:
            content = {"gpu": gpu.name, "calls": options.calls, "works": [work.as_dict() for work in works]}
            options.manifest.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        if options.torch_profiler is not None:
            table = with_torch_profiler(
                works, calls=options.calls, device=device, l2_bytes=gpu.l2_bytes, trace=options.torch_profiler
            )
            sys.stdout.write(table + "\n")
        else:
            run(works, calls=options.calls, device=device, l2_bytes=gpu.l2_bytes)
    except ForgeError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
