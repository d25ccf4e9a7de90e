"""A reduction among any number of warps: of a block, and of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

from forge_core.device import SPECS
from forge_core.rows import Fold, Operands, RowProgram
from forge_core.rows.arguments import arguments
from forge_core.rows.config import HeldConfig
from forge_core.rows.listing import listed
from forge_core.rows.operator import row_operator, row_output
from forge_core.rows.plan import VARIANTS, Rung

H200 = SPECS["H200"]
SIZES = {f"{warps}x{blocks}": (32 * warps, blocks) for blocks in (1, 2, 8) for warps in (1, 3, 5, 8, 12, 13)}


@dataclass(frozen=True)
class Total(RowProgram):
    operands = Operands(rows=("x",), results=("y",))
    folds = (Fold("sum", lambda v, row: v.x, masked=False),)

    def results(self, totals, row):
        return (totals[0],)


def choose(binding, problem, device, *, threads, blocks):
    held = next(config for config in listed(binding, device, HeldConfig, "shifted") if config.sized)
    return replace(held, threads=threads, blocks=blocks)


def planned(config, problem):
    return arguments(config, problem, H200)


LADDER = {
    name: Rung(VARIANTS["held"], partial(choose, threads=threads, blocks=blocks), planned)
    for name, (threads, blocks) in SIZES.items()
}
SCHEMA = "forge_test_exchange::total(Tensor x, int dim=-1, *, str variant='auto') -> Tensor"


@row_operator(SCHEMA, program=Total(), reference=None, ladder=LADDER)
def total(x, dim=-1, *, variant="auto"):
    return row_output("total", Total(), x=x, dim=dim)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", SIZES)
def test_each_warp_counts_once(variant):
    config = total.explain(torch.empty(5, 4096, device="meta"), variant=variant, arch="sm_90a").config
    most = config.capacity * config.vec
    for length in (most, most - 33, most // 2):
        x = torch.randint(-8, 8, (5, length)).float().cuda()
        assert total(x, variant=variant).equal(x.sum(-1)), length
