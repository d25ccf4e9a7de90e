"""The profiled process: warms up, then makes the calls inside a profiled range.

    inputs, first calls (compile, load)      outside     hidden from a profiler that waits for the range
    profiled_range(name): the calls          inside      our kernels alone: no reference, no flush of the L2

Several calls rotate over input sets that together exceed the L2 twice, so that each finds its input in DRAM without a
kernel that flushes.  For one call, ncu empties the caches itself.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from click import UsageError

from forge_core import device as devices
from forge_core import dtypes
from forge_core.bench import Bench, Case, OperatorBench
from forge_core.bench.inputs import generator_for
from forge_core.bench.plan import Selection, discover, packages_named, plan
from forge_core.bench.schema import parse_shape
from forge_core.errors import ForgeError, UnsupportedError
from forge_core.profiling.compiled import RecordedLaunch, launches_of
from forge_core.testing.inputs import LAYOUTS

PLANTED = "planted"

#: The suite whose cases are profiled by default.
DEFAULT_SUITE = "smoke"

WARM_UPS = 2
MOST_SETS = 8

Pair = tuple[OperatorBench, Case]


@dataclass(frozen=True)
class Work:
    """One call to profile."""

    name: str  # for ranges and messages
    variant: str
    why: str  # it was selected
    launches: tuple[RecordedLaunch, ...]  # of its kernels, in order
    read: int  # bytes that it must read
    written: int
    make: Callable[[torch.device, int], tuple[Any, ...]]  # its inputs on a device, from the index of the set
    call: Callable[..., Any]  # takes them
    case: dict[str, Any]  # operator, shape, dtype, layout and variant, to repeat this work

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        fields = {name: getattr(self, name) for name in ("name", "variant", "why", "read", "written", "case")}
        launches = [dataclasses.asdict(launch) for launch in self.launches]
        return {**fields, "kernels": [launch.name for launch in self.launches], "launches": launches}


def choose(
    benches: Sequence[Bench], package: str | None, case: str | None, variant: str, *, arch: str
) -> tuple[list[Work], list[str]]:
    """The requested works, and messages on what was left out; raises what the call itself would raise.

    The package is one of ``planted`` and ``bench.plan.names_of``, None for all.  The case is an operator, a shape, a
    dtype and a layout in any order, each the operator's default if left out; None for the suite ``smoke``.  With the
    variant ``"all"``, each runs on the first of those cases, or of the other suites' cases, that it supports.
    """
    if package == PLANTED:
        return planted_works(case), []
    chosen = packages_named(benches, [] if package is None else [package])
    pairs = _pairs(chosen, case, () if variant in ("auto", "all") else (variant,))
    tries = [(variant, [pair]) for pair in pairs]
    if variant == "all" and pairs:
        wide = _wider(chosen, pairs)
        operators = dict.fromkeys(operator for operator, _ in pairs)
        tries = [(v, [pair for pair in wide if pair[0] is o]) for o in operators for v in o.variants()]
    works, left_out = [], []
    for name, candidates in tries:
        refusals = []
        for operator, found in candidates:
            try:
                works.append(_work(operator, found, name, arch))
                break
            except UnsupportedError as error:
                if case is not None and variant != "all":
                    raise
                refusals.append(f"{found.name} {name}: {error}")
        else:
            left_out.append(refusals[0])
    if not works:
        raise UsageError(f"no case can be run by variant {variant!r}: {'; '.join(left_out)}")
    return works, left_out


def _pairs(benches: Sequence[Bench], case: str | None, variants: tuple[str, ...]) -> list[Pair]:
    """The case that the words of ``case`` name, or the suite's."""
    if case is None:
        return [(p.operator, p.case) for p in plan(benches, DEFAULT_SUITE, Selection(variants=variants)).cases]
    kinds: dict[str, list[str]] = {"operator": [], "shape": [], "dtype": [], "layout": []}
    for word in case.split():
        kinds[_kind(word)].append(word)
    if len(kinds["operator"]) != 1 or any(len(words) > 1 for words in kinds.values()):
        got = ", ".join(f"{kind} {word}" for kind, words in kinds.items() for word in words)
        raise UsageError(f"--case {case!r}: expected one operator, a shape, a dtype and a layout, got {got or 'none'}")
    (operator,), *selected, layouts = map(tuple, kinds.values())
    planned = plan(benches, operator, Selection(variants, *selected)).cases[0]
    return [(planned.operator, dataclasses.replace(planned.case, layout=(*layouts, LAYOUTS[0])[0]))]


def _kind(word: str) -> str:
    if word in LAYOUTS:
        return "layout"
    for kind, parse in (("shape", parse_shape), ("dtype", dtypes.parse)):
        with suppress(ValueError):
            parse(word)
            return kind
    return "operator"


def _wider(benches: Sequence[Bench], pairs: list[Pair]) -> list[Pair]:
    """These cases, then those of all suites, nearest in size first."""
    size = pairs[0][1].nbytes
    others = [(p.operator, p.case) for p in plan(benches, "full", Selection()).cases]
    wide = pairs + sorted(others, key=lambda pair: abs(math.log(pair[1].nbytes / size)))
    # Some variants serve only unaligned or permuted inputs.
    return wide + [
        (operator, dataclasses.replace(case, layout=layout))
        for layout in LAYOUTS[1:]
        for operator, case in wide
        if len(case.shape) > 1
    ]


def _work(operator: OperatorBench, case: Case, variant: str, arch: str) -> Work:
    explanation = operator.planned(case, variant, arch=arch)
    if explanation.builder is None:
        raise UnsupportedError(f"{case.name}: no kernel runs: {explanation.why}", requirement="a kernel")

    def make(device: torch.device, number: int) -> tuple[Any, ...]:
        return operator.inputs(case, device, generator_for(device, seed=0, what=f"{case.name} set {number}"))

    return Work(
        name=f"{case.name} {explanation.variant}",
        variant=str(explanation.variant),
        why=explanation.why,
        launches=launches_of(explanation.builder, explanation.config, explanation.integers),
        read=explanation.read,
        written=explanation.written,
        make=make,
        call=operator.call(variant),
        case={
            "operator": case.operator,
            "shape": case.shape_text,
            "dtype": case.dtype_text,
            "layout": case.layout,
            "variant": variant,
        },
    )


#: For each planted fault: elements, and elements of a block, with the fault and without.
_PLANTED_SIZES: dict[str, tuple[int, int, int]] = {
    "uncoalesced": (1 << 24, 1 << 14, 1 << 14),
    "bank_conflicts": (1 << 22, 1 << 13, 1 << 13),
    "spills": (1 << 24, 64 * 1024, 64 * 256),
    "too_little_work": (1 << 20, 1 << 18, 1 << 10),
    # 1056 blocks at once: 4 times the H200's L2, or a seventh of it.
    "reread": (1 << 26, 1 << 16, 1 << 11),
}


def planted_works(only: str | None = None) -> list[Work]:
    """The planted kernels, or the ``only`` one, each fault followed by its sound twin."""
    if only not in (None, *_PLANTED_SIZES):
        raise UsageError(f"no planted fault is named {only!r}; faults: {', '.join(_PLANTED_SIZES)}")
    return [
        _planted(fault, count, slab, sound=sound)
        for fault, (count, *slabs) in _PLANTED_SIZES.items()
        for slab, sound in zip(slabs, (False, True), strict=True)
        if only in (None, fault)
    ]


def _planted(fault: str, count: int, slab: int, *, sound: bool) -> Work:
    from kernels.planted import PlantedConfig, build

    config, nbytes = PlantedConfig(fault, sound), 4 * count
    name, launches = config.kernel_name, launches_of("kernels.planted:build", config, (count, slab))

    def make(device: torch.device, number: int) -> tuple[Any, ...]:
        x = torch.randn(count, device=device)
        return x, torch.empty_like(x)

    def call(x: torch.Tensor, y: torch.Tensor) -> None:
        launch = build(config, arch=devices.query(x.device).arch)
        launch(x.data_ptr(), y.data_ptr(), count, slab, torch.cuda.current_stream().cuda_stream)

    case = {"fault": fault, "sound": sound, "count": count, "slab": slab}
    return Work(name, name, PLANTED, launches, nbytes, nbytes, make, call, case)


def sets_for(work: Work, calls: int, l2_bytes: int) -> int:
    """The number of input sets that the calls rotate over."""
    once = max(work.read + work.written, 1)
    return max(1, min(calls, MOST_SETS, 1 + 2 * l2_bytes // once))


@contextmanager
def profiled_range(name: str) -> Iterator[None]:
    """An NVTX range between cudaProfilerStart and cudaProfilerStop, synchronized at both ends.

    A profiler that waits for the range (``ncu --profile-from-start off``, ``nsys --capture-range cudaProfilerApi``)
    sees this block and nothing else.
    """
    torch.cuda.synchronize()
    with torch.cuda.profiler.profile(), torch.cuda.nvtx.range(name):
        yield
        torch.cuda.synchronize()


def run(
    works: Sequence[Work], *, calls: int, device: torch.device, l2_bytes: int, trace: str | None = None
) -> str | None:
    """Warms everything up, then makes the calls in one profiled range, those of each work in a range of its name.

    With ``trace``, they run under PyTorch's profiler instead; its trace is written there and its table returned.
    """
    prepared = []
    for work in works:
        inputs = [work.make(device, number) for number in range(sets_for(work, calls, l2_bytes))]
        for _ in range(WARM_UPS):  # the first compiles and loads the kernels
            work.call(*inputs[-1])
        prepared.append(inputs)

    def make_calls(mark: Callable[[str], AbstractContextManager[Any]]) -> None:
        for work, inputs in zip(works, prepared, strict=True):
            with mark(work.name):
                for number in range(calls):
                    work.call(*inputs[number % len(inputs)])
                torch.cuda.synchronize()

    if trace is None:
        with profiled_range("forge"):
            make_calls(torch.cuda.nvtx.range)
        return None
    from torch.profiler import ProfilerActivity, profile, record_function

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        make_calls(lambda name: record_function(f"forge: {name}"))
    profiler.export_chrome_trace(trace)
    return str(profiler.key_averages().table(sort_by="device_time_total", row_limit=40, max_name_column_width=80))


def main(
    package: str | None, case: str | None, variant: str, *, calls: int, manifest: str, trace: str | None = None
) -> None:
    """Profiles cases, and writes what they are to the manifest; the runners give the arguments as JSON."""
    if not torch.cuda.is_available():
        text = "profiling needs a CUDA GPU, and torch finds none; `forge-cute inspect` needs none"
        raise UnsupportedError(text, requirement="a CUDA GPU")
    device = torch.device("cuda", torch.cuda.current_device())
    gpu = devices.query(device)
    works, left_out = choose(discover(), package, case, variant, arch=gpu.arch)
    for line in left_out:
        sys.stderr.write(f"left out: {line}\n")
    content = {"gpu": gpu.name, "calls": calls, "works": [work.as_dict() for work in works]}
    Path(manifest).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    said = run(works, calls=calls, device=device, l2_bytes=gpu.l2_bytes, trace=trace)
    sys.stdout.write(f"{said}\n" if said else "")


if __name__ == "__main__":
    try:
        main(**json.loads(sys.argv[1]))
    except (ForgeError, UsageError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
