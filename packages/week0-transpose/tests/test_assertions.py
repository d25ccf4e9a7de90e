"""What kernels take for granted is checked on the GPU under FORGE_DEBUG=1, and costs nothing otherwise."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from forge_core.settings import use_settings
from forge_week0_transpose.configs import (
    NaiveConfig,
    RealignedConfig,
    RowsConfig,
    SkinnyConfig,
    TiledConfig,
    UnalignedConfig,
    VectorizedConfig,
)

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")

KERNELS: list[tuple[str, Any, str]] = [
    ("naive:build", NaiveConfig(2, 2), "an element's number is below their count"),
    ("rows:build", RowsConfig(16, 1), "the chunk begins inside the row"),
    ("rows:build_realigned", RealignedConfig(4, 1), "the row lies inside the source"),
    ("tiled:build", TiledConfig(4, 16, 1), "the tile begins inside the matrix"),
    ("vectorized:build", VectorizedConfig(4, 8, 16, batch_rank=1), "rows lie multiples of an access's width apart"),
    ("unaligned:build", UnalignedConfig(4, 8, 8), "shifted input rows do not overlap"),
    ("skinny:build", SkinnyConfig(4, 3, True), "a tile begins at a multiple of an access's width"),
]


def as_bytes(message: str) -> str:
    """A string constant as PTX spells it."""
    return ", ".join(str(byte) for byte in message.encode())


@pytest.mark.parametrize("name, config, message", KERNELS, ids=[name for name, _, _ in KERNELS])
def test_assertions_are_compiled_in_for_debugging_alone(
    name: str, config: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module, _, attribute = name.partition(":")
    kernel, tensors = (importlib.import_module(f"forge_week0_transpose.kernels.{m}") for m in (module, "tensors"))
    build = getattr(kernel, attribute)
    with use_settings(debug=True):
        debug = build.compile(config, arch="sm_90a").ptx
    plain = build.compile(config, arch="sm_90a").ptx
    for place in (kernel, tensors):
        monkeypatch.setattr(place, "check", lambda condition, message: None)
    without = build.compile(config, arch="sm_90a").ptx
    assert "trap;" in debug
    assert as_bytes(message) in debug
    assert as_bytes(f"{module}.py") in debug, "a failed check says where it stands"
    assert "trap" not in plain
    assert "printf" not in plain
    assert plain == without, "a check that is compiled out leaves nothing behind"


#: A launch that no hardware refuses: rows of 65 elements that lie 32 apart, so that the result is wrong.
OVERLAPPING = """
    import torch
    from forge_core.device import query
    from forge_week0_transpose.configs import UnalignedConfig
    from forge_week0_transpose.kernels.unaligned import build
    x = torch.zeros(64, 65, dtype=torch.int32, device="cuda")
    out = torch.empty(65, 64, dtype=torch.int32, device="cuda")
    launch = build(UnalignedConfig(4, 8, 8, dst_shift=False), arch=query(0).arch)
    stream = torch.cuda.current_stream().cuda_stream
    launch(x.data_ptr(), out.data_ptr(), 64, 65, {pitch}, 64, (1,), stream)
    torch.cuda.synchronize()
    print("finished")
"""


def outcome(pitch: int, debug: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OVERLAPPING.format(pitch=pitch))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FORGE_DEBUG": debug},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.gpu
def test_a_wrong_launch_fails_on_the_gpu() -> None:
    status, output = outcome(32, "1")
    assert status != 0
    assert "Assertion Error: shifted input rows do not overlap" in output
    assert "unaligned.py" in output
    assert "finished" not in output


@pytest.mark.gpu
def test_a_right_launch_passes_the_assertions() -> None:
    assert outcome(65, "1") == (0, "finished\n")


@pytest.mark.gpu
def test_without_debugging_nothing_looks() -> None:
    assert outcome(32, "0") == (0, "finished\n")
