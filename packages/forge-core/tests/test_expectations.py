"""The checker of compiled code names every figure that is not as declared, and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from forge_core.profiling.compiled import Artefacts, RecordedLaunch
from forge_core.profiling.cubin import KernelResources
from forge_core.profiling.occupancy import occupancy
from forge_core.profiling.ptx import PtxCounts
from forge_core.profiling.static import KernelReport
from forge_core.testing import expectations
from forge_core.testing.expectations import Expect, assert_as_declared, violations


@dataclass(frozen=True)
class Config:
    tile: int = 16


RIGHT = Expect(40, 512, loads=(16, 4), stores=(4,), barriers=1)


def kernel(
    *, registers=40, stack=0, static=0, dynamic=512, accesses=None, kinds=None, local=0, name="k_0"
) -> KernelReport:
    accesses = {"ld.global.16": 2, "ld.global.4": 1, "st.global.4": 1} if accesses is None else accesses
    kinds = {"barriers": 1} if kinds is None else kinds
    return KernelReport(
        name,
        RecordedLaunch("k", (1, 1, 1), (128, 1, 1), (1, 1, 1), dynamic),
        KernelResources(name, registers, stack, static),
        PtxCounts(accesses, kinds, local),
        occupancy((9, 0), threads=128, registers=registers, smem=static + dynamic),
    )


@pytest.fixture
def found(monkeypatch):
    """The violations of a launch of these kernels."""

    def run(*kernels, declared=RIGHT):
        monkeypatch.setattr(expectations, "describe", lambda artefacts, arch: kernels)
        return violations(Artefacts("", b"", ()), {Config: lambda config, arch: declared}, Config(), "sm_90a")

    return run


def test_what_is_as_declared_passes(found):
    assert found(kernel()) == []
    assert found(kernel(registers=24, dynamic=0, kinds={})) == [], "at most, and less is as good"


@pytest.mark.parametrize(
    "wrong, figure, got",
    [
        ({"registers": 41}, "registers", "41"),
        ({"static": 8}, "bytes of shared memory", "520"),
        ({"stack": 8}, "bytes spilled", "8"),
        ({"stack": 32, "local": 32}, "bytes of local arrays", "32"),
        ({"kinds": {"barriers": 2}}, "barriers", "2"),
        ({"kinds": {"barriers": 1, "cluster barriers": 2}}, "cluster barriers", "2"),
        ({"kinds": {"barriers": 1, "atomics": 1}}, "atomics", "1"),
        ({"accesses": {"ld.global.8": 4, "ld.global.4": 1, "st.global.4": 1}}, "widths of loads", "8 and 4 bytes"),
        ({"accesses": {"ld.global.16": 2, "st.global.4": 1}}, "widths of loads", "16 bytes"),
        ({"accesses": {"cp.async.8": 1, "ld.global.16": 2, "ld.global.4": 1, "st.global.4": 1}}, "widths of loads", ""),
        ({"accesses": {"ld.global.16": 2, "ld.global.4": 1}}, "widths of stores", "none"),
    ],
)
def test_each_figure_is_held(found, wrong, figure, got):
    (violation,) = found(kernel(**wrong))
    assert re.search(f": {re.escape(figure)}: declared .*, got [^;]*{re.escape(got)}", violation)


def test_spills_are_held_to_what_is_declared(found):
    declared = replace(RIGHT, spilled=8)
    assert found(kernel(stack=8), declared=declared) == []
    (violation,) = found(kernel(stack=16), declared=declared)
    assert ": bytes spilled: declared at most 8, got 16;" in violation


def test_a_violation_names_kernel_architecture_configuration_and_figure(found):
    (violation,) = found(kernel(), kernel(stack=24, name="second_0"), declared=(RIGHT, RIGHT))
    assert violation == "second_0 for sm_90a: bytes spilled: declared at most 0, got 24; Config(tile=16)"
    with pytest.raises(AssertionError, match="second_0 for sm_90a: bytes spilled"):
        assert_as_declared(Artefacts("", b"", ()), {Config: lambda config, arch: (RIGHT, RIGHT)}, Config(), "sm_90a")


def test_nothing_goes_unchecked(found):
    with pytest.raises(ValueError, match="declares 1 kernels, and 2 are launched"):
        found(kernel(), kernel())
    with pytest.raises(LookupError, match="Config has no declaration"):
        violations(Artefacts("", b"", ()), {}, Config(), "sm_90a")
