"""Sweeps on the CPU: what is drawn, how a sweep is continued, what it reports, and the gate."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from forge_core.bench import Peer, plan, runner, sweep
from forge_core.bench.records import CaseRecord, load
from forge_core.cli import BAD_USAGE, REGRESSION
from forge_core.errors import BenchmarkError
from forge_core.testing.inputs import LAYOUTS

week2 = pytest.importorskip("forge_week2_softmax.bench")
SOFTMAX = week2.BENCH.by_name["softmax"]
SMALL = ("--device", "cpu", "--most-bytes", "50000")


def test_a_seed_draws_the_same_cases_and_another_one_others():
    drawn = sweep.draw(SOFTMAX, 7, 200, ("float32", "bfloat16"), 2**30)
    assert drawn == sweep.draw(SOFTMAX, 7, 200, ("float32", "bfloat16"), 2**30)
    assert len({case.name for case in drawn}) == 200
    assert len(set(drawn) & set(sweep.draw(SOFTMAX, 8, 200, ("float32", "bfloat16"), 2**30))) < 20
    assert all(2**9 <= case.nbytes <= 2**30 for case in drawn)
    # Log-uniform: about as many below the geometric middle as above it.
    assert 70 < sum(case.nbytes < 2**20 for case in drawn) < 130
    assert {case.layout for case in drawn} == {*LAYOUTS}
    assert {str(case.dtype) for case in drawn} == {"torch.float32", "torch.bfloat16"}
    assert {len(case.shape) for case in drawn} == {2, 3}


def test_peers_that_autotune_are_beside_the_first_cases_alone():
    peers = (Peer("eager", lambda case: None), Peer("autotune", lambda case: None))
    operator = replace(SOFTMAX, peers=peers)
    planned = sweep.plan(week2.BENCH, operator, sweep.draw(operator, 0, 50, ("float32",), 2**20)).cases
    assert [len(case.peers) for case in planned] == [2] * sweep.AUTOTUNED + [1] * (50 - sweep.AUTOTUNED)


def test_a_process_that_ends_loses_the_case_in_progress_alone(forge, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "SLOW", 0.0)
    path, measured, begun = tmp_path / "sweep.json", runner._measured, []
    command = ("bench", "sweep", "softmax", "--cases", "4", "--seed", "3", *SMALL, "--json", path)

    def ends(planned, *args, **options):
        begun.append(planned.case.name)
        if len(begun) == 3:
            raise SystemExit(137)
        return measured(planned, *args, **options)

    monkeypatch.setattr(runner, "_measured", ends)
    assert forge(*command).exit_code == 137
    kept = load(path)
    assert kept.interrupted
    assert [case.name for case in kept.cases] == begun[:2]
    assert kept.not_run == [case.name for case in sweep.draw(SOFTMAX, 3, 4, ("float32", "bfloat16"), 50000)[2:]]

    assert forge(*command).exit_code == 0
    assert begun[3:] == kept.not_run
    assert load(path).cases[:2] == kept.cases


def test_a_sweep_that_was_ended_is_continued_by_the_same_command(forge, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "SLOW", 0.0)
    path = tmp_path / "sweep.json"
    command = ("bench", "sweep", "softmax", "--cases", "4", "--seed", "3", *SMALL, "--json", path)
    ended = forge(*command, "--limit", "0")
    assert ended.exit_code == 1
    assert "3 cases are left" in ended.output
    first = load(path)
    assert first.interrupted
    assert [len(first.cases), len(first.not_run)] == [1, 3]

    done = forge(*command)
    assert done.exit_code == 0, done.output
    whole = load(path)
    assert not whole.interrupted
    names = [case.name for case in sweep.draw(SOFTMAX, 3, 4, ("float32", "bfloat16"), 50000)]
    assert [case.name for case in whole.cases] == names
    assert whole.cases[0] == first.cases[0]
    # Nothing is left: the record is shown again.
    again = forge(*command)
    assert (again.exit_code, load(path)) == (0, whole)

    by_class, slowest = sweep.tables(whole)
    assert [row[:2] for row in by_class.rows] == [("all", "4"), ("small", "4")]
    ratios = [float(row[slowest.head.index("Ratio")]) for row in slowest.rows]
    assert ratios == sorted(ratios)
    assert len(ratios) == 4
    assert all(row[slowest.head.index("Best peer")] == "eager" for row in slowest.rows)

    refused = forge(*command, "--gate", "1000")
    assert refused.exit_code == REGRESSION
    assert "below the gate of 1000" in refused.output
    assert forge(*command, "--gate", "0").exit_code == 0

    with pytest.raises(BenchmarkError, match="expected the same seed, 4, got 3"):
        sweep.continued(msgspec.structs.replace(whole, seed=4), whole)


def test_slow_cases_are_measured_once_more_with_more_samples(forge, tmp_path, monkeypatch):
    policies, run_all = [], runner.run_all

    def observed(run, options, **more):
        policies.append((options.policy.max_iterations, [planned.case.name for planned in run.cases]))
        return run_all(run, options, **more)

    monkeypatch.setattr(runner, "run_all", observed)
    monkeypatch.setattr(sweep, "SLOW", 1000.0)
    path = tmp_path / "sweep.json"
    command = ("bench", "sweep", "softmax", "--cases", "3", "--seed", "3", *SMALL, "--json", path)
    assert forge(*command).exit_code == 0
    (most, names), (more, slow) = policies
    assert (more, slow) == (sweep.TIMES * most, names)
    record = load(path)
    assert [case.name for case in record.cases] == names
    assert all("Measured again, with 5 times the samples." in case.notes for case in record.cases)
    assert forge(*command).exit_code == 0  # not a third time
    assert len(policies) == 2


@pytest.mark.parametrize(
    "shape, layout, expected",
    [
        ((512, 512), "sliced", "small"),
        ((5120, 512), "stepped", "strided"),
        ((4096, 4096), "permuted", "strided"),
        ((16, 1048576), "contiguous", "few rows"),
        ((1048576, 64), "contiguous", "tall"),
        ((4096, 50257), "contiguous", "long"),
        ((4096, 4095), "contiguous", "odd"),
        ((4096, 4096), "offset", "odd"),
        ((8, 512, 4096), "contiguous", "other"),
    ],
)
def test_a_case_is_of_the_first_class_that_applies(shape, layout, expected):
    case = CaseRecord("", "", "", list(shape), "float32", layout, read=0, written=0, traffic="")
    assert sweep._class_of(case) == expected


def test_an_unknown_operator_or_dtype_is_bad_usage(forge):
    for words, told in ((("softmaxx",), "Did you mean softmax"), (("softmax", "--dtype", "float12"), "float12")):
        done = forge("bench", "sweep", *words, *SMALL)
        assert done.exit_code == BAD_USAGE
        assert told in done.output


@pytest.mark.parametrize("name", ["week2", "forge_week2_softmax", "forge-week2-softmax", "week2-softmax"])
def test_a_package_goes_by_any_of_its_names(name):
    assert plan.packages_named(plan.discover(), [name]) == [week2.BENCH]
