"""Every kernel compiles for every architecture without a GPU, to the code that is declared for its configuration.

Each configuration is compiled for sm_90a; each kernel is compiled for every architecture, the element's width changing
from one architecture to the next.  The cases are independent, so ``pytest -n`` spreads them over processes.
"""

from __future__ import annotations

import importlib
import os
import random
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import forge_week0_transpose as week0
from forge_core.device import ARCHES
from forge_core.profiling.ptx import count_instructions
from forge_core.settings import use_settings
from forge_core.testing.expectations import (
    Expect,
    assert_as_declared,
    assert_choices_as_declared,
    compiled_for,
)
from forge_core.testing.inputs import matrix_to_plan
from forge_week0_transpose.config import (
    LinesConfig,
    NaiveConfig,
    RealignedConfig,
    RowsConfig,
    ShiftedConfig,
    TiledConfig,
    VectorizedConfig,
)
from forge_week0_transpose.selection import KERNELS

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")

# After the check that it is there.
from forge_week0_transpose.kernels import tensors, tiled

#: For each variant what its kernel takes for granted, and configurations that have all forms of its code.
EXAMPLES: dict[str, tuple[str, list[Any]]] = {
    "naive": (
        "an element's number is below their count",
        [
            *(NaiveConfig(size, rank) for rank, size in enumerate((4, 1, 2, 8, 16), 1)),
            NaiveConfig(4, 3, True, 4),
            NaiveConfig(4, 4, items=8),
            NaiveConfig(8, 5, items=8),
        ],
    ),
    "tiled": (
        "the tile begins inside the matrix",
        [
            TiledConfig(4, 16, 1),
            TiledConfig(1, 32),
            TiledConfig(2, 16, flat=True),
            TiledConfig(8, 32, 2),
            TiledConfig(16, 32),
            TiledConfig(4, 32, 1, wide=True),
        ],
    ),
    "shifted": (
        "shifted input rows do not overlap",
        [
            ShiftedConfig(4, room=3),
            ShiftedConfig(2, 16, 8, room=5),
            ShiftedConfig(1, 16, 8, room=3),
            ShiftedConfig(8, 8, 8, batch_rank=1, dst_shift=False),
            ShiftedConfig(2, 16, 8, by_columns=True, dst_shift=False, room=5),
            ShiftedConfig(1, 32, 8, src_shift=False, room=3),
            ShiftedConfig(2, 32, 16, src_shift=False),
            ShiftedConfig(4, 32, 16, src_shift=False, wide=True),
        ],
    ),
    "lines": (
        "the threads have all chunks of a tile",
        [
            *(LinesConfig(size, gather) for size in (1, 2, 4) for gather in (True, False)),
            *(LinesConfig(size, size < 4, 2, loads=8) for size in (1, 2, 4, 8)),
            LinesConfig(4, True, 3, loads=1),
            LinesConfig(1, False, 3, loads=2),
            LinesConfig(8, True, 1, 1),
            LinesConfig(16, False, 2, 2, loads=1),
            *(LinesConfig(size, False, 1, loads=loads, gaps=True) for size in (2, 4, 8) for loads in (2, 4, 8)),
            LinesConfig(1, False, 0, 2, loads=8, gaps=True),
            LinesConfig(16, False, 2, loads=1, gaps=True),
        ],
    ),
    "vectorized": (
        "rows lie multiples of an access's width apart",
        [
            VectorizedConfig(4),
            VectorizedConfig(1),
            VectorizedConfig(2),
            VectorizedConfig(4, 8, 16),
            VectorizedConfig(8, 8, 16, batch_rank=1),
            VectorizedConfig(16, batch_rank=2),
            VectorizedConfig(1, 8, 8, 8),
            VectorizedConfig(2, 8, 8, 8),
            VectorizedConfig(2, by_columns=True),
            VectorizedConfig(4, 8, 16, batch_rank=1, flat=True),
            VectorizedConfig(4, 8, 8, 8, by_columns=True, flat=True),
            VectorizedConfig(2, wide=True),
        ],
    ),
    "realigned": (
        "the row lies inside the source",
        [RealignedConfig(4, 1), RealignedConfig(2), RealignedConfig(1, 1), RealignedConfig(8, wide=True)],
    ),
    "rows": (
        "the chunk begins inside the row",
        [
            RowsConfig(16),
            RowsConfig(16, 0, 1),
            RowsConfig(8, 1),
            RowsConfig(4, 2),
            RowsConfig(2, 1),
            RowsConfig(1, 1, 0, True),
        ],
    ),
}

BUILDERS = {kernel.config: kernel.variant.path for kernel in KERNELS}
CONFIGS = [configs for _, configs in EXAMPLES.values()]


def elsewhere(config: Any) -> Any:
    """The configuration that GPUs other than Hopper are given: the largest tiles of bytes have a block less."""
    large = isinstance(config, ShiftedConfig) and (config.itemsize, config.row_chunks) == (1, 32)
    return replace(config, room=config.room - 1) if large else config


CASES: list[tuple[Any, str]] = [(config, "sm_90a") for configs in CONFIGS for config in configs] + [
    (elsewhere(configs[i % len(configs)]), arch)
    for configs in CONFIGS
    for i, arch in enumerate(ARCHES)
    if arch != "sm_90a"
]


#: Registers of a thread, at most; by 32 all threads of a multiprocessor can be resident.
REGISTERS: dict[type, Callable[[Any], int]] = {
    # Each element in flight has two 64-bit addresses.
    NaiveConfig: lambda c: 32 if c.items == 1 else 16 + (10 if c.wide else 8) * c.items,
    TiledConfig: lambda c: 32 if c.itemsize < 16 else 40,
    # Its chunks, twice where they are shifted, and a 64-bit address for each.  For bytes in two blocks CUDA 13's
    # assembler takes all that these leave.
    ShiftedConfig: lambda c: 128 if (c.itemsize, c.room) == (1, 2) else 60 + 4 * c.vec * (1 + c.src_shift),
    LinesConfig: lambda c: max(8 + 8 * c.loads, 32) + 8 * c.gaps,
    VectorizedConfig: lambda c: 56 + c.vec * c.src_width // 4,
    RealignedConfig: lambda c: 32,
    RowsConfig: lambda c: 32,
}


def expect(config: Any, arch: str) -> Expect:
    """A barrier between the writes and the reads of a tile, and one before a shifted input's last elements go in."""
    registers = REGISTERS[type(config)](config)
    loads, stores = ((s.width, s.edge) if s.edge else (s.width,) for s in (config.steps[0], config.steps[-1]))
    if all(step.swizzle is None for step in config.steps):
        return Expect(registers, loads=loads, stores=stores)
    return Expect(registers, config.smem_bytes, loads, stores, barriers=1 + config.steps[0].shifted)


EXPECTED = dict.fromkeys(BUILDERS, expect)


def test_every_variant_has_examples() -> None:
    assert {name: type(configs[0]) for name, (_, configs) in EXAMPLES.items()} == {k.name: k.config for k in KERNELS}


@pytest.mark.parametrize("config, arch", CASES, ids=[f"{c.kernel_name}-{a}" for c, a in CASES])
def test_compiles_as_it_declares(config: Any, arch: str) -> None:
    made = compiled_for(BUILDERS[type(config)], config, arch)
    assert_as_declared(made, EXPECTED, config, arch)
    ptx = made.ptx
    (found,) = (counts.accesses for counts in count_instructions(ptx).values())
    assert f".target {arch}" in ptx
    assert f".entry {config.kernel_name}" in ptx
    assert ".local" not in ptx
    assert "cutlass" not in re.findall(r"\.entry (\w+)", ptx)[0]
    held = ptx.count("L2::cache_hint")
    if isinstance(config, RealignedConfig):
        assert (found["ld.global.16"], found["st.global.16"]) == (2, 1)
    elif isinstance(config, VectorizedConfig):
        loads = config.vec * (1 + config.src_shift)
        assert found[f"ld.global.{config.src_width}"] == held == loads
        assert found["st.global.16"] == config.steps[3].layout[0][1][1]
        assert found["st.shared.16"] == config.cols
        assert "createpolicy" not in ptx, "the policy of loads is a constant"
        if type(config) is VectorizedConfig and config.batch_rank < 2:
            assert ("div.u32" in ptx or "rem.u32" in ptx) == config.flat, "only numbers of tiles need a division"
    elif isinstance(config, LinesConfig):
        assert held == config.loads


def a_call(choose: random.Random) -> Any:
    dtype = choose.choice((torch.int8, torch.bfloat16, torch.float32, torch.float64, torch.complex128))
    return choose.choice((week0.transpose, week0.transpose, week0.copy)), (matrix_to_plan(choose, dtype),), {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_what_is_chosen_for_any_matrix_is_as_declared(seed: int) -> None:
    assert_choices_as_declared(a_call, EXPECTED, seed=seed, count=30)


def read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.suffix == ".py" else ""


def as_bytes(message: str) -> str:
    """A string constant as PTX spells it."""
    return ", ".join(str(byte) for byte in message.encode())


@pytest.mark.parametrize("name", EXAMPLES)
def test_assertions_are_compiled_in_for_debugging_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    message, (config, *_) = EXAMPLES[name]
    path, _, attribute = BUILDERS[type(config)].partition(":")
    kernel = importlib.import_module(path)
    build = getattr(kernel, attribute)
    with use_settings(debug=True):
        debug = build.compile(config, arch="sm_90a").ptx
    plain = build.compile(config, arch="sm_90a").ptx
    for place in (kernel, tensors, tiled):
        monkeypatch.setattr(place, "check", lambda condition, message: None, raising=False)
    without = build.compile(config, arch="sm_90a").ptx
    assert "trap;" in debug
    assert as_bytes(message) in debug
    (place,) = (file for file in Path(tensors.__file__).parent.iterdir() if f'"{message}"' in read(file))
    assert as_bytes(place.name) in debug, "a failed check says where it stands"
    assert "trap" not in plain
    assert "printf" not in plain
    assert plain == without, "a check that is compiled out leaves nothing behind"


#: A launch that no hardware refuses: rows of 65 elements that lie 32 apart, so that the result is wrong.
OVERLAPPING = """
    import torch
    from forge_core.device import query
    from forge_week0_transpose.config import ShiftedConfig
    from forge_week0_transpose.kernels.shifted import build
    x = torch.zeros(64, 65, dtype=torch.int32, device="cuda")
    out = torch.empty(65, 64, dtype=torch.int32, device="cuda")
    launch = build(ShiftedConfig(4, 8, 8, dst_shift=False), arch=query(0).arch)
    stream = torch.cuda.current_stream().cuda_stream
    launch(x.data_ptr(), out.data_ptr(), 64, 65, {pitch}, 64, (1,), stream)
    torch.cuda.synchronize()
    print("finished")
"""


@pytest.mark.gpu
@pytest.mark.parametrize("pitch, debug, right", [(32, "1", False), (65, "1", True), (32, "0", True)])
def test_a_wrong_launch_fails_on_the_gpu_when_debugging_and_otherwise_nothing_looks(pitch, debug, right):
    words = [sys.executable, "-c", textwrap.dedent(OVERLAPPING.format(pitch=pitch))]
    variables = {**os.environ, "FORGE_DEBUG": debug}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=variables)
    output = done.stdout + done.stderr
    if right:
        assert (done.returncode, output) == (0, "finished\n")
    else:
        assert done.returncode != 0 and "finished" not in output
        assert "Assertion Error: shifted input rows do not overlap" in output and "shifted.py" in output
