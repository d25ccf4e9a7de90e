"""Every kernel compiles for every architecture without a GPU, and the code has the accesses that its docstring names.

Each configuration is compiled for sm_90a; each kernel is compiled for every architecture, the element's width changing
from one architecture to the next.  The cases are independent, so ``pytest -n`` spreads them over processes.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from forge_core.device import ARCHES
from forge_core.testing.expectations import assert_as_declared, compiled_for
from forge_week0_transpose.configs import (
    NaiveConfig,
    RealignedConfig,
    RowsConfig,
    ShiftedConfig,
    SkinnyConfig,
    TiledConfig,
    VectorizedConfig,
)
from forge_week0_transpose.expected import EXPECTED

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")

MODULES = {
    NaiveConfig: "naive",
    RealignedConfig: "realigned",
    RowsConfig: "rows",
    TiledConfig: "tiled",
    VectorizedConfig: "vectorized",
    ShiftedConfig: "shifted",
    SkinnyConfig: "skinny",
}

CONFIGS: dict[str, list[Any]] = {
    "naive": [NaiveConfig(size, rank) for rank, size in enumerate((4, 1, 2, 8, 16))] + [NaiveConfig(4, 3, True, 4)],
    "rows": [
        RowsConfig(16),
        RowsConfig(16, 0, 1),
        RowsConfig(8, 1),
        RowsConfig(4, 2),
        RowsConfig(2, 1),
        RowsConfig(1, 1, 0, True),
    ],
    "realigned": [RealignedConfig(2), RealignedConfig(1, 1), RealignedConfig(4, 2), RealignedConfig(8, 0, True)],
    "tiled": [
        TiledConfig(1, 32),
        TiledConfig(2, 16),
        TiledConfig(4, 16, 1),
        TiledConfig(8, 32, 2),
        TiledConfig(16, 32),
    ],
    "vectorized": [
        VectorizedConfig(1),
        VectorizedConfig(2),
        VectorizedConfig(4),
        VectorizedConfig(4, 8, 16),
        VectorizedConfig(8, 8, 16, batch_rank=1),
        VectorizedConfig(16, batch_rank=2),
        VectorizedConfig(1, 8, 8, 4, 8),
        VectorizedConfig(2, 8, 8, 8, 4),
        VectorizedConfig(2, by_columns=True),
        VectorizedConfig(4, 8, 16, batch_rank=1, flat=True),
        VectorizedConfig(1, 8, 8, 4, 16, by_columns=True, flat=True),
    ],
    "shifted": [
        ShiftedConfig(4, True, True),
        ShiftedConfig(2, True, True),
        ShiftedConfig(1, True, True, 16, 8),
        ShiftedConfig(8, True, False, 8, 8, 1),
        ShiftedConfig(2, True, False, 16, 8, 0, 3, by_columns=True),
        ShiftedConfig(2, False, True, 32, 16),
        ShiftedConfig(4, False, True, 32, 16),
    ],
    "skinny": [
        SkinnyConfig(4, 3, True),
        SkinnyConfig(2, 8, False),
        SkinnyConfig(1, 2, True, 4, 16),
        SkinnyConfig(8, 3, False, 8, 16, 1),
    ],
}

CASES: list[tuple[Any, str]] = [(config, "sm_90a") for configs in CONFIGS.values() for config in configs] + [
    (configs[i % len(configs)], arch)
    for configs in CONFIGS.values()
    for i, arch in enumerate(ARCHES)
    if arch != "sm_90a"
]


def path(config: Any) -> str:
    return f"forge_week0_transpose.kernels.{MODULES[type(config)]}:build"


def accesses(ptx: str) -> Counter[str]:
    """How often each width of access to each memory occurs: ``{"ld.global.16": 4, ...}``."""
    found: Counter[str] = Counter()
    pattern = r"\b(ld|st)\.(global|shared|local)(?:\.nc|\.L\d::\w+)*(?:\.v(\d))?\.[bufs](\d+)\b"
    for kind, space, lanes, bits in re.findall(pattern, ptx):
        found[f"{kind}.{space}.{int(lanes or 1) * int(bits) // 8}"] += 1
    return found


def widths(found: Counter[str], kind: str) -> set[int]:
    return {int(name.rpartition(".")[2]) for name in found if name.startswith(kind)}


@pytest.mark.parametrize("config, arch", CASES, ids=[f"{c.kernel_name}-{a}" for c, a in CASES])
def test_compiles_as_it_declares(config: Any, arch: str) -> None:
    made = compiled_for(path(config), config, arch)
    assert_as_declared(made, EXPECTED, config, arch)
    ptx = made.ptx
    found = accesses(ptx)
    assert f".target {arch}" in ptx
    assert f".entry {config.kernel_name}" in ptx
    assert not widths(found, "ld.local") | widths(found, "st.local")
    assert ".local" not in ptx
    assert "cutlass" not in re.findall(r"\.entry (\w+)", ptx)[0]
    loads, stores = widths(found, "ld.global"), widths(found, "st.global")
    if isinstance(config, NaiveConfig | TiledConfig):
        assert loads == stores == {config.itemsize}
    elif isinstance(config, RowsConfig):
        assert loads == stores == {config.width} | ({config.tail} if config.tail else set())
    elif isinstance(config, RealignedConfig):
        assert loads == stores == {16, config.itemsize}
        assert (found["ld.global.16"], found["st.global.16"]) == (2, 1)
    elif isinstance(config, VectorizedConfig):
        assert (loads, stores) == ({config.src_width}, {config.dst_width})
        assert found[f"ld.global.{config.src_width}"] == config.chunk_items
        assert found[f"st.global.{config.dst_width}"] == config.stores
        assert widths(found, "st.shared") == {16}
        assert ptx.count("ld.global.L2::cache_hint") == config.chunk_items
        assert ptx.count("createpolicy.fractional.L2::evict_last") == 1
        if config.batch_rank < 2:
            assert ("div.u32" in ptx or "rem.u32" in ptx) == config.flat, "only numbers of tiles need a division"
    elif isinstance(config, ShiftedConfig):
        # Elements only at the ends of rows; everything else by whole chunks.
        assert loads == {16} | ({config.itemsize} if config.src_shift else set())
        assert stores == {16} | ({config.itemsize} if config.dst_shift else set())
        assert found["ld.global.16"] == config.chunk_items * (2 if config.src_shift else 1)
        assert found["st.global.16"] == config.chunk_items
    else:
        line, run = (loads, stores) if config.gather else (stores, loads)
        assert line == {config.line_width, config.itemsize}
        assert run == {config.run_width, config.itemsize}
        reads = config.line_width if config.gather else config.run_width
        assert ptx.count("ld.global.L2::cache_hint.v4") == (config.lines if reads == 16 else 0)
