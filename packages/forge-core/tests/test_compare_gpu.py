"""Comparing on a GPU: a kernel that moves a tenth more is caught every time, and the same kernel is never accused."""

from __future__ import annotations

import pytest
import torch

from forge_core.bench import Bench, Case, Peer, runner, sweep
from forge_core.bench.compare import compare
from forge_core.bench.inputs import random_tensor
from forge_core.timing.interleave import Policy

pytestmark = pytest.mark.gpu

TRIES = 20
THRESHOLD = 0.05
#: A tenth more rows than the case has lie behind it, for the planted kernel to move.
MORE = 1.1


def rows_of(x):
    return round(x.shape[0] / MORE)


def honest(x):
    return x[: rows_of(x)].clone()


def slower(x):
    """The same result, for a tenth more bytes."""
    return x.clone()[: rows_of(x)]


def inputs(case, device, generator):
    rows, cols = case.shape
    return (random_tensor((round(rows * MORE), cols), case.dtype, device=device, generator=generator),)


def record(operator, shapes):
    cases = [Case("rows", shape, torch.bfloat16) for shape in shapes]
    run = sweep.plan(Bench("stand-in", "forge_core", (operator,), None), operator, cases)
    policy = Policy(warmup_ms=40.0, budget_ms=100.0)
    done = runner.run_all(run, runner.Options(torch.device("cuda", 0), "ref", policy))
    assert done.errors == []
    return done


def test_a_tenth_slower_is_caught_in_20_of_20_and_the_same_accused_in_none_of_20(stand_in, record_property):
    shapes = [(1000, 1000), (4000, 4096), (8000, 8192)]
    eager = Peer("eager", lambda case: honest)
    usual, planted = (stand_in("rows", call, honest, peers=(eager,), inputs=inputs) for call in (honest, slower))
    caught, accused, seen = 0, 0, []
    for _ in range(TRIES):
        old, same, worse = record(usual, shapes), record(usual, shapes), record(planted, shapes[1:])
        found = compare(old, worse, THRESHOLD)
        caught += len(found.regressions) == len(shapes) - 1
        unchanged = compare(old, same, THRESHOLD)
        accused += len(unchanged.regressions) > 0
        seen.append(([round(c.change, 4) for c in found.changes], [round(c.change, 4) for c in unchanged.changes]))
    record_property("planted and unchanged changes", seen)
    assert caught == TRIES
    assert accused == 0
