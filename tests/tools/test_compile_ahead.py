"""What is compiled before a measurement: the cases of suites and sweeps, by ours and by the peers of torch.compile."""

from __future__ import annotations

import torch

from forge_core.bench import Peer, plan, sweep

TOOLS = ("bench", "compile_ahead")


def test_its_cases_are_those_that_are_measured(tools):
    [bench] = [bench for bench in plan.discover() if "softmax" in bench.by_name]
    drawn = sweep.draw(bench.by_name["softmax"], 7, 5, ("float32", "bfloat16"), 2**20)
    suite = plan.plan(plan.discover(), "week2", plan.Selection()).cases
    assert [each.case for each in tools.compile_ahead.cases_of(["softmax:5", "week2"], 7, 2**20)] == [
        *drawn,
        *(each.case for each in suite),
    ]


def test_each_share_compiles_its_cases_and_says_what_it_could_not(tools, monkeypatch):
    called = []

    def make(name, case):
        called.append((name, case.name))
        raise RuntimeError("no compiler")

    def missing(peer, device):
        return [] if peer.name == "compile" else ["a requirement"]

    monkeypatch.setattr(Peer, "missing", missing)
    monkeypatch.setattr(tools.compile_ahead.torch, "device", lambda name: torch.empty(0).device)
    cases = tools.compile_ahead.cases_of(["sum_rows:4"], 3, 2**12)
    for planned in cases:
        peer = planned.operator.peer("compile")
        monkeypatch.setitem(vars(peer), "make", lambda case, name=peer.name: make(name, case))
    monkeypatch.setattr(tools.compile_ahead, "cases_of", lambda *asked: cases)
    wrong = [tools.compile_ahead.compile_share(["sum_rows:4"], 3, 2**12, share, 2) for share in range(2)]
    assert [each for _, each in called] == [cases[i].case.name for i in (0, 2, 1, 3)]
    assert wrong[1] == [f"{cases[i].case.name}: compile: RuntimeError: no compiler" for i in (1, 3)]
