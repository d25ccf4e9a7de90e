"""Thresholds: which table a GPU uses, what is said of it, and what the tuner chooses and writes."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from forge_core.bench import Bench, tune
from forge_core.bench.plan import discover
from forge_core.device import SPECS
from forge_core.errors import BenchmarkError
from forge_core.thresholds import Probe, Threshold, ThresholdError, Thresholds

H200, H100, B200, A100 = SPECS["H200"], SPECS["H100"], SPECS["B200"], SPECS["A100"]
CUT = Threshold("cut", 8, "Where to cut.", (4, 8, 16), (Probe("neg", ("4x4", "8x8"), ("float32",)),))


def table(device, value):
    outcome = tune.Outcome("cut", "Where to cut.", 8, value, 1.05, {}, {"4": 1.1, str(value): 1.0})
    return tune.table_text(device, "2026-11-21", "weekx", [outcome])


@pytest.fixture
def thresholds(tmp_path):
    """Fresh ones in a folder of their own: tables are read once for a folder and a device."""
    folder = tmp_path / "thresholds"
    folder.mkdir()

    def make(**tables):
        for name, (device, value) in tables.items():
            (folder / f"{name}.toml").write_text(table(device, value))
        return Thresholds("weekx", folder, (CUT,))

    return make


def test_without_a_table_the_defaults_hold(thresholds):
    found = thresholds()
    assert found.value("cut", H200) == 8
    assert found.note(H200) == ""
    with pytest.raises(KeyError):
        found.value("no_such_threshold", H200)


def test_a_measured_gpu_uses_its_own_table_and_says_so(thresholds):
    found = thresholds(h200=(H200, 16), b200=(B200, 4))
    assert (found.value("cut", H200), found.value("cut", B200)) == (16, 4)
    assert found.note(H200) == "; thresholds measured on NVIDIA H200, 2026-11-21"


@pytest.mark.parametrize(
    "device, value, of",
    [(H100, 16, "NVIDIA H200"), (A100, 16, "NVIDIA H200"), (SPECS["RTX 5090"], 4, "NVIDIA B200")],
)
def test_a_gpu_that_was_never_measured_uses_the_nearest_and_says_so(thresholds, device, value, of):
    found = thresholds(h200=(H200, 16), b200=(B200, 4))
    assert found.value("cut", device) == value
    assert f"thresholds of {of}, 2026-11-21: {device.name} was never measured" in found.note(device)
    assert "`nox -s tune -- weekx` does" in found.note(device)


def test_of_one_architecture_the_size_decides(thresholds):
    small = dataclasses.replace(H200, name="a small one", sm_count=40)
    smaller = dataclasses.replace(H200, name="a smaller one", sm_count=30)
    assert thresholds(h200=(H200, 16), small=(small, 4)).value("cut", smaller) == 4


def test_an_override_holds_for_its_block(thresholds):
    found = thresholds(h200=(H200, 16))
    with found.override("cut", 3):
        assert found.value("cut", H200) == 3
    assert found.value("cut", H200) == 16


@pytest.mark.parametrize("text", ["device = ", 'device = "x"\n', 'device = "x"\ncapability = [9]\nsm_count = 1\n'])
def test_a_broken_table_is_an_error_that_names_it(thresholds, text):
    found = thresholds()
    (found.folder / "odd.toml").write_text(text)
    with pytest.raises(ThresholdError, match=r"thresholds/odd\.toml: expected a table .* `nox -s tune`"):
        found.value("cut", H200)


@pytest.mark.parametrize(
    "times, chosen",
    [
        ([{8: 1.0, 4: 0.8, 16: 1.2}, {8: 1.0, 4: 1.1, 16: 1.2}], 4),  # better on the whole
        ([{8: 1.0, 4: 0.995, 16: 1.2}], 8),  # not worth a change
        ([{8: 1.0, 4: 1.0, 16: 0.5}, {8: 1.0, 4: 1.0, 16: 3.0}], 8),
    ],
)
def test_the_tuner_changes_what_gains_more_than_a_percent(times, chosen):
    assert tune.choose(8, times)[0] == chosen


def test_a_tuned_table_is_what_select_config_reads(thresholds, stand_in, monkeypatch):
    found = thresholds()
    bench = Bench("weekx", "forge_core", (stand_in("neg", torch.neg),), None, found)
    monkeypatch.setattr(tune, "query", lambda device: H200)
    asked = []

    def measure(of, device, case, threshold, values):
        asked.append((case.name, tuple(values)))
        return {4: 1.2, 8: 1.0, 16: 0.9}

    done = []
    monkeypatch.setattr(tune, "_measure", measure)
    record, path, text = tune.tune(bench, torch.device("cpu"), done.append)
    assert done == ["cut, neg 4x4 float32", "cut, neg 8x8 float32"]
    assert tune.cases_of(bench) == len(done)
    assert asked == [("neg 4x4 float32", (8, 4, 16)), ("neg 8x8 float32", (8, 4, 16))]
    (outcome,) = record.thresholds
    assert (outcome.was, outcome.value, outcome.gain) == (8, 16, pytest.approx(1.1111))
    assert outcome.shares == {"8": pytest.approx(1.1111), "4": pytest.approx(1.3333), "16": 1.0}
    assert path == found.folder / "nvidia-h200.toml"
    path.write_text(text)
    again = Thresholds("weekx", path.parent.joinpath("..", "thresholds"), (CUT,))
    assert again.value("cut", H200) == 16
    with pytest.raises(BenchmarkError, match="declares no thresholds"):
        tune.tune(dataclasses.replace(bench, thresholds=None), torch.device("cpu"), done.append)


def test_what_packages_declare_can_be_tuned():
    """Each probe is a case of the package's own benchmarks, and its operator can be planned anew."""
    declared = [bench for bench in discover() if bench.thresholds is not None]
    assert declared
    for bench in declared:
        for threshold in bench.thresholds.declared:
            assert threshold.default in threshold.candidates
            for probe in threshold.probes:
                table, _ = tune.launches_anew(bench.by_name[probe.operator])
                assert len(table) == 0


def test_each_candidate_of_a_threshold_is_what_the_choice_goes_by():
    from forge_core.rows.thresholds import thresholds
    from forge_week1_reduce.ops import reduce_sum

    x = torch.empty(16, 2**22, device="meta")
    configs = set()
    for value in (2**16, 2**23):
        with thresholds().override("split_elements", value):
            configs.add(str(reduce_sum.explain(x, -1, arch="sm_90a").config))
    assert len(configs) == 2
    if thresholds().note(H200):
        assert "thresholds" in reduce_sum.explain(x, -1, arch="sm_90a").why
