"""Week 2's row programs compile for every configuration that selection may pick, and none spills."""

from __future__ import annotations

import pytest
import torch

from forge_core.device import SPECS
from forge_core.profiling.compiled import compile_to_look_at
from forge_core.profiling.cubin import read_cubin
from forge_core.rows import Binding, configurations
from forge_core.rows.plan import VARIANTS
from forge_week2_softmax.program import LogsumexpBackward, Softmax, SoftmaxBackward

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
BINDINGS = {
    "softmax-bf16": Binding(Softmax(), (BF16, BF16), FP32),
    "softmax-fp32": Binding(Softmax(exact=True), (FP32, FP32), FP32),
    "softmax-int64-as-bf16": Binding(Softmax(), (torch.int64, BF16), FP32, via=BF16),
    "log_softmax-fp64": Binding(Softmax("log_softmax"), (FP64, FP64), FP64),
    "logsumexp-bf16": Binding(Softmax("logsumexp"), (BF16, BF16), FP32),
    "softmax_backward-bf16-to-fp32": Binding(SoftmaxBackward(), (BF16, BF16, FP32), FP32),
    "log_softmax_backward-fp32-expanded": Binding(SoftmaxBackward("log_softmax", True), (FP32,) * 3, FP32, ("dy",)),
    "logsumexp_backward-bf16": Binding(LogsumexpBackward(), (BF16,) * 4, FP32),
}
# All on one generation, and the one of most registers on each.
CASES = [(name, "H200") for name in BINDINGS] + [("softmax-bf16", gpu) for gpu in ("A100", "B200", "RTX 5090")]


@pytest.mark.slow
@pytest.mark.parametrize("name, gpu", CASES)
def test_no_listed_kernel_spills(name, gpu):
    paths = {variant: VARIANTS[variant].path for variant in VARIANTS}
    for config in configurations(BINDINGS[name], SPECS[gpu]):
        path = paths[type(config).__name__.removesuffix("Config").lower()]
        for kernel in read_cubin(compile_to_look_at(path, config, None, arch=SPECS[gpu].arch).cubin):
            assert kernel.stack_bytes == 0, config.kernel_name
