"""What is compiled before a measurement: the cases of suites and sweeps, by ours and by the peers of torch.compile."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from forge_core.bench import Peer, plan, sweep

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool():
    spec = importlib.util.spec_from_file_location("compile_ahead", ROOT / "tools" / "bench" / "compile_ahead.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_cases_are_those_that_are_measured(tool):
    [bench] = [bench for bench in plan.discover() if "softmax" in bench.by_name]
    drawn = sweep.draw(bench.by_name["softmax"], 7, 5, ("float32", "bfloat16"), 2**20)
    suite = plan.plan(plan.discover(), "week2", plan.Selection()).cases
    assert [each.case for each in tool.cases_of(["softmax:5", "week2"], 7, 2**20)] == [
        *drawn,
        *(each.case for each in suite),
    ]


def test_each_share_compiles_its_cases_and_says_what_it_could_not(tool, monkeypatch):
    called = []

    def make(name, case):
        called.append((name, case.name))
        raise RuntimeError("no compiler")

    def missing(peer, device):
        return [] if peer.name == "compile" else ["a requirement"]

    monkeypatch.setattr(Peer, "missing", missing)
    monkeypatch.setattr(tool.torch, "device", lambda name: torch.empty(0).device)
    cases = tool.cases_of(["sum_rows:4"], 3, 2**12)
    for planned in cases:
        peer = planned.operator.peer("compile")
        monkeypatch.setitem(vars(peer), "make", lambda case, name=peer.name: make(name, case))
    monkeypatch.setattr(tool, "cases_of", lambda *asked: cases)
    wrong = [tool.compile_share(["sum_rows:4"], 3, 2**12, share, 2) for share in range(2)]
    assert [each for _, each in called] == [cases[i].case.name for i in (0, 2, 1, 3)]
    assert wrong[1] == [f"{cases[i].case.name}: compile: RuntimeError: no compiler" for i in (1, 3)]
