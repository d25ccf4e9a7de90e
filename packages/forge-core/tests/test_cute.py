"""The building blocks that kernels share: address arithmetic on the host."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

cutlass = pytest.importorskip("cutlass", reason="the CuTe DSL is Linux only")

from cutlass import Int64, Uint32  # noqa: E402  # after the check that it is there

from forge_core.cute.memory import entry_offsets  # noqa: E402


@pytest.mark.parametrize("number", [Uint32, Int64], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("sizes", [(), (5,), (3, 4), (2, 3, 4), (2, 1, 3, 5)], ids=str)
def test_offsets_of_every_entry(sizes, sides, number):
    steps = [[7 * (i + 1) ** 3 + side for i in range(len(sizes))] for side in range(sides)]
    count = 1
    flat = []
    for i in reversed(range(len(sizes))):
        flat += [sizes[i], *(steps[side][i] for side in range(sides))]
        count *= sizes[i]
    for entry, index in enumerate(itertools.product(*(range(size) for size in sizes))):
        got = entry_offsets(number(entry), (count, *flat), sides)
        want = [sum(i * step for i, step in zip(index, steps[side], strict=True)) for side in range(sides)]
        assert [int(offset.value) for offset in got] == want


def test_offsets_pass_2_to_the_31():
    (offset,) = entry_offsets(Uint32(3), (4, 4, 2**33), 1)
    assert int(offset.value) == 3 * 2**33


def test_importing_the_package_imports_no_compiler():
    code = "import sys, forge_core.cute; assert 'cutlass' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
