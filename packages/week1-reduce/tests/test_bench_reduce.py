"""The targets of week 1's suite are those that the course asks for."""

from __future__ import annotations

import pytest
import torch

from forge_core.bench import Case
from forge_core.bench.schema import expand, load_suites
from forge_week1_reduce.bench import BENCH

SHAPES = {
    *("1024x1024", "32768x256", "32768x1024", "32768x4096", "32768x16384", "8192x65536", "64x131072"),
    *("16x4194304", "1x268435456", "4096x50257", "16777216x8"),
}
SUITE = load_suites(BENCH)["week1"]
CASES = [case for group in SUITE.cases for case in expand(group, BENCH, "here")]


@pytest.mark.parametrize("operator", ["sum_rows", "sum_columns"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_shape_is_measured_and_is_to_beat_its_best_peer(operator, dtype):
    mine = [case for case in CASES if (case.operator, case.dtype_text) == (operator, dtype)]
    assert {case.shape_text for case in mine} >= SHAPES
    for case in mine:
        if case.shape_text in SHAPES:
            assert any(t.of == "best_peer" and t.at_least == 1.0 and t.applies(case) for t in SUITE.targets), case.name


def test_one_row_over_the_first_dimension_is_held_against_a_copy():
    mine = [case for case in CASES if case.operator == "sum_one_row"]
    assert {(case.shape_text, case.dtype_text) for case in mine} == {
        ("1x268435456", "float32"),
        ("1x268435456", "bfloat16"),
    }
    for case in mine:
        assert BENCH.by_name["sum_one_row"].traffic(case).total == 2 * case.nbytes
        assert any(t.of == "ceiling" and t.at_least == 0.97 and t.applies(case) for t in SUITE.targets)


@pytest.mark.parametrize("operator", BENCH.operators, ids=lambda operator: operator.name)
def test_reductions_are_quoted_over_what_they_read(operator):
    # But the sum of one row is held against a copy, which writes as much.
    case, x = Case(operator.name, (60, 130), torch.int8), torch.ones(60, 130, dtype=torch.int8)
    traffic, want = operator.traffic(case), operator.reference(x)
    assert operator.agree((x,), operator.call("auto")(x), want) == ""
    assert (traffic.read, traffic.written) == (x.nbytes, want.nbytes if operator.name == "sum_one_row" else 0)
