from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch

from forge_core import device
from forge_core.device import ARCHES, SPECS, Arch, arch_of, spec_for
from forge_core.errors import UnsupportedError


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((10, 3), "sm_103a"),
        ((12, 0), "sm_120a"),
    ],
)
def test_the_arch_of_a_capability(capability, arch):
    assert arch_of(capability) == arch
    assert arch in ARCHES


@pytest.mark.parametrize("capability", [(7, 5), (7, 0), (6, 1)])
def test_what_is_too_old_is_refused_plainly(capability):
    name = f"sm_{capability[0]}{capability[1]}"
    with pytest.raises(UnsupportedError, match=rf"^{name} is not supported: sm_80 or newer is needed\.$"):
        arch_of(capability)


@pytest.mark.parametrize("name", SPECS)
def test_the_figures_of_a_known_gpu_are_plausible(name):
    spec = SPECS[name]
    assert name.split()[-1] in spec.name
    assert spec.arch in ARCHES
    # 1 KiB of a block's shared memory belongs to the system.
    assert spec.smem_per_block == spec.smem_per_sm - 1024
    assert 48 * 1024 < spec.smem_per_block <= 227 * 1024
    assert 4 * 2**20 <= spec.l2_bytes <= 128 * 2**20
    assert 500 < spec.bandwidth_gbs < 10_000


def test_an_arch_picks_the_gpu_with_the_highest_bandwidth():
    assert spec_for("sm_90a") is SPECS["H200"]
    assert spec_for("sm_90") is SPECS["H200"]


UNKNOWN = r"{} is not known to Forge; known architectures: sm_80, .*; GPUs: A100, .*RTX 5090\.$"


@pytest.mark.parametrize(
    ("archs", "told"),
    [
        (("sm_75", "sm_70"), "sm_80 or newer"),
        (("hopper", "90a", "sm_9", "sm_90ab"), "is not an architecture such as 'sm_90a'"),
        (("sm_190a", "sm_99", "sm_91a", "sm_110a", "sm_80a", "sm_90f", "SM_99"), UNKNOWN),
    ],
)
def test_what_has_no_figures_is_refused_with_what_is_known(archs, told):
    for arch in archs:
        with pytest.raises(UnsupportedError, match=told.replace("{}", arch.lower())):
            spec_for(arch)


@pytest.mark.parametrize("arch", [*ARCHES, "sm_87", "sm_100f", "sm_107a", "sm_120f", "sm_121a", "SM_100"])
def test_an_arch_is_known_whether_it_is_tested_or_not(arch):
    parsed = Arch.parse(arch)
    assert parsed == arch.lower()
    # Where no GPU of that very arch is listed, the figures are those of its generation.
    assert arch[3:].startswith(str(parsed.device.capability[0]))


@pytest.mark.parametrize("name", SPECS)
def test_a_gpu_stands_for_its_architecture_and_its_figures(name):
    for text in (name, name.lower(), f" {name.upper()} "):
        arch = Arch.parse(text)
        assert arch == SPECS[name].arch
        assert arch.device is spec_for(arch) is spec_for(text) is SPECS[name]


def test_an_arch_keeps_its_gpu_when_it_is_copied_and_pickled():
    arch = Arch.parse("H100")
    for twin in (pickle.loads(pickle.dumps(arch)), copy.deepcopy(arch)):  # noqa: S301 - made here
        assert (twin, twin.device) == ("sm_90a", SPECS["H100"])
    assert json.dumps(arch) == '"sm_90a"'


def test_the_figures_are_there_without_torch(python):
    python("-c", "import sys, forge_core.device, forge_core.settings; assert 'torch' not in sys.modules")


@pytest.mark.parametrize(
    ("name", "capability", "gbs"),
    [
        ("NVIDIA H200", (9, 0), 4800.0),
        ("NVIDIA H100 80GB HBM3", (9, 0), 3352.0),
        ("NVIDIA GeForce RTX 4090 D", (8, 9), 1008.0),
        # Not in the table: the highest of its generation, because the figure is used as an upper bound.
        ("NVIDIA A30", (8, 0), 2039.0),
        ("NVIDIA Unheard-of", (15, 0), 8000.0),
    ],
)
def test_the_specified_bandwidth_is_never_too_low(name, capability, gbs):
    assert device._specified_bandwidth(name, capability) == gbs


@pytest.mark.gpu
def test_a_real_gpu_is_read():
    found = device.query(0)
    properties = torch.cuda.get_device_properties(0)
    assert found.name == properties.name
    assert found.capability == (properties.major, properties.minor)
    assert found.sm_count == properties.multi_processor_count
    assert found is device.query(0)
    for name, spec in SPECS.items():
        if name in found.name.split():
            assert (found.smem_per_block, found.smem_per_sm) == (spec.smem_per_block, spec.smem_per_sm)
            assert found.sm_count == spec.sm_count
