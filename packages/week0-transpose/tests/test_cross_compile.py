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
from forge_week0_transpose import configs
from forge_week0_transpose.config import builder
from forge_week0_transpose.expected import EXPECTED

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")

CONFIGS: list[list[Any]] = [
    [configs.NaiveConfig(*figures) for figures in ((4, 1), (1, 2), (2, 3), (8, 4), (16, 5), (4, 3, True, 4))],
    [configs.RowsConfig(*figures) for figures in ((16,), (16, 0, 1), (8, 1), (4, 2), (2, 1), (1, 1, 0, True))],
    [configs.RealignedConfig(*figures) for figures in ((2,), (1, 1), (4, 2), (8, 0, True))],
    [configs.TiledConfig(*figures) for figures in ((1, 32), (2, 16), (4, 16, 1), (8, 32, 2), (16, 32))],
    [
        *(configs.VectorizedConfig(*figures) for figures in ((1,), (2,), (4,), (4, 8, 16), (1, 8, 8, 4, 8))),
        configs.VectorizedConfig(2, 8, 8, 8, 4),
        configs.VectorizedConfig(8, 8, 16, batch_rank=1),
        configs.VectorizedConfig(16, batch_rank=2),
        configs.VectorizedConfig(2, by_columns=True),
        configs.VectorizedConfig(4, 8, 16, batch_rank=1, flat=True),
        configs.VectorizedConfig(1, 8, 8, 4, 16, by_columns=True, flat=True),
        configs.VectorizedConfig(2, wide=True),
    ],
    [
        *(configs.UnalignedConfig(*figures, room=room) for *figures, room in ((4, 3), (2, 16, 8, 5), (1, 16, 8, 3))),
        configs.UnalignedConfig(8, 8, 8, batch_rank=1, dst_shift=False),
        configs.UnalignedConfig(2, 16, 8, by_columns=True, dst_shift=False, room=5),
        configs.UnalignedConfig(1, 32, 8, src_shift=False, room=3),
        configs.UnalignedConfig(2, 32, 16, src_shift=False),
        configs.UnalignedConfig(4, 32, 16, src_shift=False, wide=True),
    ],
    [configs.SkinnyConfig(*f) for f in ((4, 3, True), (2, 8, False), (1, 2, True, 4, 16), (8, 3, False, 8, 16, 1))],
    [
        *(configs.LinesConfig(size, gather) for size in (1, 2, 4) for gather in (True, False)),
        configs.LinesConfig(8, True, 1),
        configs.LinesConfig(16, False, 2, tile_bytes=2048),
    ],
]

CASES: list[tuple[Any, str]] = [(config, "sm_90a") for family in CONFIGS for config in family] + [
    (family[i % len(family)], arch) for family in CONFIGS for i, arch in enumerate(ARCHES) if arch != "sm_90a"
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
    held = ptx.count("L2::cache_hint")
    if isinstance(config, configs.RealignedConfig):
        assert (found["ld.global.16"], found["st.global.16"]) == (2, 1)
    elif isinstance(config, configs.VectorizedConfig):
        loads = config.vec * (1 + getattr(config, "src_shift", False))
        assert found[f"ld.global.{config.src_width}"] == held == loads
        assert found[f"st.global.{config.dst_width}"] == config.store_layout[0][1][1]
        assert found["st.shared.16"] == config.cols
        assert ptx.count("createpolicy.fractional.L2::evict_last") == 1
        if type(config) is configs.VectorizedConfig and config.batch_rank < 2:
            assert ("div.u32" in ptx or "rem.u32" in ptx) == config.flat, "only numbers of tiles need a division"
    elif isinstance(config, configs.LinesConfig):
        assert held == ptx.count("cp.async.ca.shared") == (3 if config.gather and config.itemsize >= 4 else 4)
        assert "div.s32" not in ptx, "numbers of elements are unsigned"
    elif isinstance(config, configs.SkinnyConfig):
        assert held == config.lines * 16 // (config.line_width if config.gather else config.run_width)
