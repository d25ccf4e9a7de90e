"""A kernel that another process compiled runs on the GPU, without the compiler."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from forge_core import device
from forge_core.cache import bundle
from forge_core.cache.store import Store

pytestmark = pytest.mark.gpu

RUN = """
import torch
arch = ARCH
src = torch.arange(1009, dtype=torch.int32, device="cuda")
dst = torch.full_like(src, -1)
kernel = build.get(Config(), arch=arch)
kernel.launch(src.data_ptr(), dst.data_ptr(), 1009, torch.cuda.current_stream().cuda_stream)
torch.cuda.synchronize()
print(kernel.origin, "cutlass" in sys.modules, bool((dst == src + 1).all()))
"""


@pytest.fixture
def arch():
    return device.query(torch.device("cuda")).arch


def test_a_new_process_launches_from_the_cache_without_the_compiler(real_project, arch):
    real_project.build.ensure(real_project.config(), arch=arch, store=real_project.store)
    done = real_project.python(RUN.replace("ARCH", repr(arch)))
    assert done.stdout.split() == ["cache", "False", "True"], done.stderr


def test_a_new_process_launches_from_a_bundle_with_compiling_switched_off(real_project, arch):
    store = Store(real_project.base / "bundle")
    real_project.build.ensure(real_project.config(), arch=arch, store=store)
    bundle.finish(store)
    environment = {"FORGE_JIT": "0", "FORGE_CACHE": "0", "FORGE_BUNDLES": str(store.root)}
    done = real_project.python(RUN.replace("ARCH", repr(arch)), **environment)
    assert done.stdout.split() == ["bundle", "False", "True"], done.stderr
    told = json.loads((store.root / "bundle.json").read_text())
    assert (told["kernels"], told["archs"]) == (1, [arch])


def test_what_is_compiled_and_stored_runs(real_project, arch):
    src = torch.arange(1009, dtype=torch.int32, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    for origin in ("compiled", "cache"):
        kernel = real_project.get(64, arch=arch)
        assert kernel.origin == origin
        dst = torch.full_like(src, -1)
        kernel.launch(src.data_ptr(), dst.data_ptr(), 1009, stream)
        assert torch.equal(dst, src + 1)
        real_project.fresh()
    assert sys.modules["cutlass"]
