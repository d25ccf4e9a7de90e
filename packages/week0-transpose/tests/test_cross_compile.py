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
from forge_week0_transpose.config import builder
from forge_week0_transpose.configs import (
    NaiveConfig,
    RealignedConfig,
    RowsConfig,
    SkinnyConfig,
    TiledConfig,
    UnalignedConfig,
    VectorizedConfig,
)
from forge_week0_transpose.expected import EXPECTED

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")

CONFIGS: list[list[Any]] = [
    [*(NaiveConfig(size, rank) for rank, size in enumerate((4, 1, 2, 8, 16), 1)), NaiveConfig(4, 3, True, 4)],
    [
        RowsConfig(16),
        RowsConfig(16, 0, 1),
        RowsConfig(8, 1),
        RowsConfig(4, 2),
        RowsConfig(2, 1),
        RowsConfig(1, 1, 0, True),
    ],
    [RealignedConfig(2), RealignedConfig(1, 1), RealignedConfig(4, 2), RealignedConfig(8, 0, True)],
    [TiledConfig(1, 32), TiledConfig(2, 16), TiledConfig(4, 16, 1), TiledConfig(8, 32, 2), TiledConfig(16, 32)],
    [
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
        VectorizedConfig(2, wide=True),
    ],
    [
        UnalignedConfig(4, room=3),
        UnalignedConfig(2, 16, 8, room=5),
        UnalignedConfig(1, 16, 8, room=3),
        UnalignedConfig(8, 8, 8, batch_rank=1, dst_shift=False),
        UnalignedConfig(2, 16, 8, by_columns=True, dst_shift=False, room=5),
        UnalignedConfig(1, 32, 8, src_shift=False, room=3),
        UnalignedConfig(2, 32, 16, src_shift=False),
        UnalignedConfig(4, 32, 16, src_shift=False, wide=True),
    ],
    [
        SkinnyConfig(4, 3, True),
        SkinnyConfig(2, 8, False),
        SkinnyConfig(1, 2, True, 4, 16),
        SkinnyConfig(8, 3, False, 8, 16, 1),
    ],
]

CASES: list[tuple[Any, str]] = [(config, "sm_90a") for configs in CONFIGS for config in configs] + [
    (configs[i % len(configs)], arch) for configs in CONFIGS for i, arch in enumerate(ARCHES) if arch != "sm_90a"
]


def accesses(ptx: str) -> Counter[str]:
    """How often each width of access to each memory occurs: ``{"ld.global.16": 4, ...}``."""
    found: Counter[str] = Counter()
    pattern = r"\b(ld|st)\.(global|shared|local)(?:\.nc|\.L\d::\w+)*(?:\.v(\d))?\.[bufs](\d+)\b"
    for kind, space, lanes, bits in re.findall(pattern, ptx):
        found[f"{kind}.{space}.{int(lanes or 1) * int(bits) // 8}"] += 1
    return found


@pytest.mark.parametrize("config, arch", CASES, ids=[f"{c.kernel_name}-{a}" for c, a in CASES])
def test_compiles_as_it_declares(config: Any, arch: str) -> None:
    made = compiled_for(builder(config), config, arch)
    assert_as_declared(made, EXPECTED, config, arch)
    ptx = made.ptx
    found = accesses(ptx)
    assert f".target {arch}" in ptx
    assert f".entry {config.kernel_name}" in ptx
    assert ".local" not in ptx
    assert "cutlass" not in re.findall(r"\.entry (\w+)", ptx)[0]
    held = ptx.count("ld.global.L2::cache_hint")
    if isinstance(config, RealignedConfig):
        assert (found["ld.global.16"], found["st.global.16"]) == (2, 1)
    elif isinstance(config, VectorizedConfig):
        loads = config.vec * (1 + getattr(config, "src_shift", False))
        assert found[f"ld.global.{config.src_width}"] == held == loads
        assert found[f"st.global.{config.dst_width}"] == config.store_layout[0][1][1]
        assert found["st.shared.16"] == config.cols
        assert ptx.count("createpolicy.fractional.L2::evict_last") == 1
        if type(config) is VectorizedConfig and config.batch_rank < 2:
            assert ("div.u32" in ptx or "rem.u32" in ptx) == config.flat, "only numbers of tiles need a division"
    elif isinstance(config, SkinnyConfig):
        assert held == config.lines * 16 // (config.line_width if config.gather else config.run_width)
