"""What kernels take for granted is checked on the GPU under FORGE_DEBUG=1; otherwise it costs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")

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
