"""Week 0's benchmark: the suites say what the issue promises, and smoke runs on a machine without a GPU."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from forge_core.bench import Case, plan
from forge_core.bench.gate import exact
from forge_core.bench.records import load
from forge_core.bench.schema import expand, load_suites
from forge_core.commands.bench import bench as command
from forge_week0_transpose.bench import BENCH

THREE = ("float32", "bfloat16", "int8")


def cases_of(suite):
    return [case for group in suite.cases for case in expand(group, BENCH, "here")]


def test_the_entry_point_is_found():
    assert BENCH in plan.discover()


def test_the_suites_are_sound():
    suites = load_suites(BENCH)
    assert set(suites) == {"smoke", "week0", "host"}
    assert suites["smoke"].cpu
    assert suites["smoke"].peers == ["eager"]
    assert not suites["week0"].cpu


def test_every_transposition_of_the_suite_is_to_beat_its_best_peer():
    suite = load_suites(BENCH)["week0"]
    for case in cases_of(suite):
        wanted = {(target.of, target.at_least) for target in suite.targets if target.applies(case)}
        assert (("best_peer" if case.operator == "transpose" else "copy_"), 1.0) in wanted, case.name


def test_each_variant_is_measured_at_4096_squared():
    chosen = plan.plan([BENCH], "week0", plan.Selection(shapes=("4096x4096",)))
    assert [entry.case.dtype_text for entry in chosen.cases] == list(THREE)
    for entry in chosen.cases:
        assert entry.variants == ("auto", *BENCH.by_name["transpose"].variants())


@pytest.mark.parametrize("operator", BENCH.operators, ids=lambda operator: operator.name)
@pytest.mark.parametrize("shape", [(6, 10), (3, 4, 5)], ids=str)
def test_peers_on_the_cpu_agree_with_the_reference(operator, shape):
    case = Case(operator.name, shape, torch.bfloat16)
    x = torch.randn(shape).bfloat16()
    want = operator.reference(x)
    for peer in operator.peers:
        if not peer.missing(torch.device("cpu")):
            assert exact(peer.make(case)(x), want) == "", peer.name
    assert exact(operator.call("auto")(x), want) == ""
    assert operator.traffic(case).total == 2 * x.nbytes


def test_torch_compile_is_left_out_for_a_missing_gpu_by_name():
    peer = BENCH.by_name["transpose"].peer("compile")
    assert "a CUDA GPU" in peer.missing(torch.device("cpu"))


def test_smoke_times_the_reference_where_there_is_no_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    target = tmp_path / "record.json"
    result = CliRunner().invoke(command, ["smoke", "--json", str(target)])
    assert result.exit_code == 0, result.output
    assert "No GPU devices found: the reference is timed on the CPU." in result.output
    record = load(target)
    mine = [case for case in record.cases if case.package == "forge_week0_transpose"]
    assert {case.operator for case in mine} == {"copy", "transpose"}
    assert {case.dtype for case in mine} == set(THREE)
    assert any(case.shape[-1] % 2 for case in mine)
    assert all(case.contender("forge").variant == "reference" for case in mine)
    assert record.seconds < 60


@pytest.mark.gpu
def test_smoke_runs_the_kernels(tmp_path):
    target = tmp_path / "record.json"
    result = CliRunner().invoke(command, ["smoke", "--warmup", "2", "--iterations", "1", "--json", str(target)])
    assert result.exit_code == 0, result.output
    record = load(target)
    assert record.backend == "kernel"
    mine = [case for case in record.cases if case.package == "forge_week0_transpose"]
    assert all(case.contender("forge").variant not in ("", "reference") for case in mine)
    assert record.seconds < 60
