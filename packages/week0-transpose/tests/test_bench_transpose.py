"""The targets of week 0's suite are those that the course asks for."""

from __future__ import annotations

from forge_core.bench import plan
from forge_core.bench.schema import expand, load_suites
from forge_week0_transpose.bench import BENCH


def test_every_transposition_of_the_suite_is_to_beat_its_best_peer():
    suite = load_suites(BENCH)["week0"]
    for case in [case for group in suite.cases for case in expand(group, BENCH, "here")]:
        wanted = {(target.of, target.at_least) for target in suite.targets if target.applies(case)}
        assert (("best_peer" if case.operator == "transpose" else "copy_"), 1.0) in wanted, case.name


def test_each_variant_is_measured_at_4096_squared():
    chosen = plan.plan([BENCH], "week0", plan.Selection(shapes=("4096x4096",)))
    assert [entry.case.dtype_text for entry in chosen.cases] == ["float32", "bfloat16", "int8"]
    for entry in chosen.cases:
        assert entry.variants == ("auto", *BENCH.by_name["transpose"].variants())
