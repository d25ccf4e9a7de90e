"""The benchmark of every package: sound suites, peers that agree, a gate that notices what is wrong, and smoke."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner

from forge_core.bench import Case, plan
from forge_core.bench.records import load
from forge_core.bench.schema import load_suites
from forge_core.commands.bench import bench as command

BENCHES = plan.discover()
CPU = torch.device("cpu")
each_bench = pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: bench.name)
each_operator = pytest.mark.parametrize(
    "operator", [pytest.param(one, id=f"{bench.name}-{one.name}") for bench in BENCHES for one in bench.operators]
)


def drawn(operator, shape, dtype):
    """A case, its inputs, and the reference's result."""
    case = Case(operator.name, shape, dtype)
    inputs = operator.inputs(case, CPU, torch.Generator().manual_seed(0))
    return case, inputs, operator.reference(*inputs)


def test_every_package_is_found(packages):
    assert {bench.package for bench in BENCHES} == {package.module for package in packages} - {"forge_core"}


@each_bench
def test_suites_are_sound(bench):
    suites = load_suites(bench)
    assert set(suites) == {"smoke", bench.name, "host"}
    assert suites["smoke"].cpu and suites["smoke"].peers == ["eager"]
    assert not suites[bench.name].cpu


@each_operator
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_peers_on_the_cpu_agree_with_the_reference(operator, dtype):
    for shape in ((6, 10), (60, 130)):
        case, inputs, want = drawn(operator, shape, dtype)
        for peer in operator.peers:
            if not peer.missing(CPU):
                assert operator.wrong(peer.name, inputs, peer.make(case)(*inputs), want) == "", peer.name
        got = operator.call("auto")(*inputs)
        assert operator.agree(inputs, got, want) == ""
        assert got.dtype is want.dtype and got.requires_grad == operator.name.endswith("_grad")
        assert operator.traffic(case).total >= case.nbytes


@each_operator
def test_the_gate_notices_what_is_wrong(operator):
    _, inputs, want = drawn(operator, (64, 640), torch.float32)
    broken, lost = want.detach().clone(), [x.detach().clone() for x in inputs]
    broken[3] = float("nan")
    lost[0][-1, :] = lost[0][:, -1] = -9.0  # elements of each row, and of each column, left out
    wrong = [want[:-1], want.double(), want.roll(1, 0), torch.zeros_like(want), broken, operator.reference(*lost)]
    for got in wrong if want.ndim < 2 else (*wrong, want.roll(1, 1)):
        assert operator.agree(inputs, got, want)


@each_operator
def test_peers_that_need_a_gpu_are_left_out_without_one_by_name(operator):
    for peer in operator.peers:
        if peer.name in ("compile", "autotune", "cub", "geam", "quack", "liger"):
            assert "a CUDA GPU" in peer.missing(CPU)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_smoke(device, tmp_path, monkeypatch):
    if device == "cpu":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    target = tmp_path / "record.json"
    told = CliRunner().invoke(command, ["smoke", "--warmup", "2", "--iterations", "1", "--json", str(target)])
    assert told.exit_code == 0, told.output
    record = load(target)
    assert ("the reference is timed on the CPU" in told.output) == (device == "cpu")
    assert {case.package for case in record.cases} == {bench.package for bench in BENCHES}
    found = {case.contender("forge").variant for case in record.cases}
    assert found == {"reference"} if device == "cpu" else not found & {"", "reference"}
    assert record.seconds < 120
