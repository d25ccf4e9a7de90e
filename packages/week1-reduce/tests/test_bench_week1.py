"""Week 1's benchmark: the suites say what is promised, and what they call agrees with the reference on the CPU."""

from __future__ import annotations

import pytest
import torch

from forge_core.bench import Case
from forge_core.bench.schema import expand, load_suites
from forge_week1_reduce.bench import BENCH

SHAPES = {
    "1024x1024",
    "32768x256",
    "32768x1024",
    "32768x4096",
    "32768x16384",
    "8192x65536",
    "64x131072",
    "16x4194304",
    "1x268435456",
    "4096x50257",
    "16777216x8",
}


def cases_of(suite):
    return [case for group in suite.cases for case in expand(group, BENCH, "here")]


def test_the_suites_are_sound():
    suites = load_suites(BENCH)
    assert set(suites) == {"smoke", "week1", "host"}
    assert suites["smoke"].cpu
    assert suites["smoke"].peers == ["eager"]


@pytest.mark.parametrize("operator", ["sum_rows", "sum_columns"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_shape_is_measured_and_is_to_beat_its_best_peer(operator, dtype):
    suite = load_suites(BENCH)["week1"]
    mine = [case for case in cases_of(suite) if (case.operator, case.dtype_text) == (operator, dtype)]
    assert {case.shape_text for case in mine} >= SHAPES
    for case in mine:
        if case.shape_text in SHAPES:
            assert any(t.of == "best_peer" and t.at_least == 1.0 and t.applies(case) for t in suite.targets), case.name


def test_one_row_over_the_first_dimension_is_held_against_a_copy():
    suite = load_suites(BENCH)["week1"]
    mine = [case for case in cases_of(suite) if case.operator == "sum_one_row"]
    assert {(case.shape_text, case.dtype_text) for case in mine} == {
        ("1x268435456", "float32"),
        ("1x268435456", "bfloat16"),
    }
    for case in mine:
        assert BENCH.by_name["sum_one_row"].traffic(case).total == 2 * case.nbytes
        assert any(t.of == "ceiling" and t.at_least == 0.97 and t.applies(case) for t in suite.targets)


@pytest.mark.parametrize("operator", BENCH.operators, ids=lambda operator: operator.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_peers_on_the_cpu_agree_with_the_reference(operator, dtype):
    case = Case(operator.name, (60, 130), dtype)
    x = torch.randn(60, 130).mul(3).to(dtype)
    want = operator.reference(x)
    for peer in operator.peers:
        if not peer.missing(torch.device("cpu")):
            assert operator.wrong(peer.name, (x,), peer.make(case)(x), want) == "", peer.name
    assert operator.agree((x,), operator.call("auto")(x), want) == ""
    traffic = operator.traffic(case)
    assert traffic.read == x.nbytes
    # Reductions are quoted over what they read; the sum of one row is held against a copy, which writes as much.
    assert traffic.written == (want.nbytes if operator.name == "sum_one_row" else 0)


@pytest.mark.parametrize("operator", BENCH.operators, ids=lambda operator: operator.name)
def test_the_gate_notices_a_lost_element(operator):
    x = torch.randn(64, 64)
    want = operator.reference(x)
    lossy = x.clone()
    lossy[-1, :] = 0
    lossy[:, -1] = 0
    assert operator.agree((x,), operator.reference(lossy), want)
    assert operator.agree((x,), want[:-1], want)
    assert operator.agree((x,), want.double(), want)
    broken = want.clone()
    broken[3] = float("nan")
    assert operator.agree((x,), broken, want)


def test_cub_and_torch_compile_are_left_out_for_a_missing_gpu_by_name():
    for name in ("compile", "cub"):
        assert "a CUDA GPU" in BENCH.by_name["sum_rows"].peer(name).missing(torch.device("cpu"))
