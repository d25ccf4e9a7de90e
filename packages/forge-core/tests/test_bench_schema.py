"""The file suites.yaml: what is read from it, and the error of each mistake."""

from __future__ import annotations

import pytest
import torch

from forge_core.bench import Bench, Case, Peer
from forge_core.bench.schema import Target, load_suites, parse_shape
from forge_core.errors import BenchmarkError

GOOD = """
version: 1
suites:
  small:
    about: Two cases.
    cpu: true
    peers: [eager]
    cases:
      - {operator: neg, shapes: [4x6, "5"], dtypes: [float32, int8], variants: all}
      - {operator: neg, shapes: [4x6], dtypes: [bf16], layout: permuted, peers: []}
    targets:
      - {operator: neg, of: ceiling, at_least: 0.9, shapes: [4x6], dtypes: [float32]}
      - {operator: neg, of: eager, at_least: 1.0, met_from: 0.99, dtypes: [int8]}
"""


@pytest.fixture
def bench(stand_in, tmp_path):
    def make(text):
        path = tmp_path / "pkg" / "suites.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        operator = stand_in("neg", torch.neg, peers=(Peer("eager", lambda case: torch.neg),))
        return Bench("stand-in", "forge_core", (operator,), path)

    return make


def test_a_suite_is_read(bench):
    suite = load_suites(bench(GOOD))["small"]
    assert suite.cpu
    assert suite.timer == "device"
    assert suite.cases[0].variants == "all"
    assert suite.cases[1].layout == "permuted"
    case = Case("neg", (4, 6), torch.float32)
    assert suite.targets[0].applies(case)
    assert not suite.targets[1].applies(case)
    assert case.name == "neg 4x6 float32"


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("version: 1", "version: 2", r"Invalid enum value 2 - at `\$\.version`"),
        ("suites:", "suite:", "unknown field `suite`"),
        ("cpu: true", "cpus: true", "suite small: .*unknown field `cpus`"),
        ("cpu: true", "cpu: maybe", r"suite small: Expected `bool`, got `str` - at `\$\.cpu`"),
        ("about: Two cases.", "timer: host", "suite small: .*missing required field `about`"),
        ("[float32, int8]", "[float32, int7]", r"suite small, cases\[0\]: unknown dtype 'int7'; known: "),
        ("shapes: [4x6, ", "shapes: [4by6, ", r"cases\[0\]: expected a shape such as 4096x4096, got '4by6'"),
        ("shapes: [4x6], dtypes: [bf16]", "shapes: 4, dtypes: [bf16]", r"got `int` - at `\$\.cases\[1\]\.shapes`"),
        ("shapes: [4x6], dtypes: [bf16]", "shape: [4x6], dtypes: [bf16]", r"`shapes?` - at `\$\.cases\[1\]`"),
        ("operator: neg", "operator: nag", r"cases\[0\]: no operator 'nag'; operators: neg"),
        ("variants: all", "variants: [narrow]", "no variant 'narrow'; variants: auto, naive, wide"),
        ("layout: permuted", "layout: shuffled", r"no layout 'shuffled'; layouts: contiguous, .*, stepped"),
        ("peers: [eager]", "peers: [quack]", "no peer 'quack'; peers: eager"),
        ("[bf16], layout: permuted", "[float32]", r"cases\[1\]: expected each case once, got neg 4x6 float32 again"),
        ("at_least: 0.9,", "at_least: 0.9, at_most: 1,", r"targets\[0\]: expected either at_least or at_most"),
        ("of: eager", "of: best", r"targets\[1\]: no peer 'best'; peers: best_peer, eager"),
        ("at_least: 0.9, shapes: [4x6]", "at_least: 0.9, shapes: [4x7]", r"targets\[0\]: .*applies to none"),
        ("at_least: 0.9, shapes: [4x6]", "at_least: 0.9, shapes: [4by6]", r"targets\[0\]: expected a shape"),
        ("dtypes: [int8]}", "dtypes: [int8], of_: 1}", r"unknown field `of_` - at `\$\.targets\[1\]`"),
        ("  small:", "  neg:", "suite neg: the name is an operator's"),
    ],
)
def test_a_mistake_is_named_with_its_place(bench, old, new, message):
    assert old in GOOD
    changed = bench(GOOD.replace(old, new, 1))
    with pytest.raises(BenchmarkError, match=message) as caught:
        load_suites(changed)
    assert str(caught.value).startswith("pkg/suites.yaml")


def test_a_file_that_is_missing_or_no_yaml_is_named(bench, tmp_path):
    broken = bench("version: [1")
    with pytest.raises(BenchmarkError, match=r"pkg/suites\.yaml"):
        load_suites(broken)
    broken.suites.unlink()
    with pytest.raises(BenchmarkError, match=r"pkg/suites\.yaml.*No such file"):
        load_suites(broken)


def test_shapes():
    assert parse_shape("4096x4096") == (4096, 4096)
    assert parse_shape(7) == (7,)
    for text in ("", "4x", "x4", "4*4", "-1"):
        with pytest.raises(ValueError, match="expected a shape"):
            parse_shape(text)


@pytest.mark.parametrize(
    "target, met, missed",
    [
        ({"of": "ceiling", "at_least": 0.97}, 0.97, 0.9699),
        ({"of": "best_peer", "at_least": 1.0, "met_from": 0.99}, 0.99, 0.9899),
        ({"of": "eager", "at_most": 1.2}, 1.2, 1.21),
    ],
)
def test_targets_judge_shares_and_times(target, met, missed):
    target = Target(operator="neg", **target)
    assert target.met(met)
    assert not target.met(missed)
