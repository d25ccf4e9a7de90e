"""The file suites.yaml: what is read from it, and what each mistake is told."""

from __future__ import annotations

import pytest
import torch
import yaml

from forge_core.bench import Bench, Case, OperatorBench, Peer, Traffic
from forge_core.bench.schema import Target, line_of, load_suites, parse_shape, path_in
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
def bench(tmp_path):
    def make(text):
        path = tmp_path / "pkg" / "suites.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        operator = OperatorBench(
            name="neg",
            call=lambda variant: torch.neg,
            variants=lambda: ["naive", "wide"],
            explain=lambda inputs, variant: None,
            reference=torch.neg,
            traffic=lambda case: Traffic(case.nbytes, case.nbytes, "once"),
            peers=(Peer("eager", lambda case: torch.neg),),
        )
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
        ("version: 1", "version: 2", r"pkg/suites\.yaml:2: expected 'version: 1'"),
        ("suites:", "suite:", "and a mapping 'suites'"),
        ("cpu: true", "cpus: true", "suite small: .*unknown field `cpus`"),
        ("cpu: true", "cpu: maybe", r"suite small: Expected `bool`, got `str` - at `\$\.cpu`"),
        ("about: Two cases.", "timer: host", "suite small: .*missing required field `about`"),
        ("[float32, int8]", "[float32, int7]", "suite small, cases entry 1: unknown dtype 'int7'; known: "),
        ("shapes: [4x6, ", "shapes: [4by6, ", "cases entry 1: expected a shape such as 4096x4096, got '4by6'"),
        ("shapes: [4x6], dtypes: [bf16]", "shapes: 4, dtypes: [bf16]", "cases entry 2: Expected `array`, got `int`"),
        ("shapes: [4x6], dtypes: [bf16]", "shape: [4x6], dtypes: [bf16]", "cases entry 2: .*`shapes?`"),
        (
            "operator: neg, shapes: [4x6, ",
            "operator: nag, shapes: [4x6, ",
            "entry 1: expected one of the operators neg",
        ),
        ("variants: all", "variants: [narrow]", "expected one of the variants auto, naive, wide, got 'narrow'"),
        ("layout: permuted", "layout: shuffled", "expected one of the layouts contiguous, permuted, offset, sliced"),
        ("peers: [eager]", "peers: [quack]", "expected one of the peers eager, got 'quack'"),
        ("layout: permuted", "layout: contiguous", None),
        ("[bf16], layout: permuted", "[float32]", "cases entry 2: expected each case once, got neg 4x6 float32 again"),
        ("at_least: 0.9,", "at_least: 0.9, at_most: 1,", "targets entry 1: expected either at_least or at_most"),
        ("of: eager", "of: best", "targets entry 2: expected one of the peers best_peer, eager, got 'best'"),
        ("at_least: 0.9, shapes: [4x6]", "at_least: 0.9, shapes: [4x7]", "targets entry 1: .*applies to none"),
        ("dtypes: [int8]}", "dtypes: [int8], of_: 1}", "targets entry 2: .*unknown field `of_`"),
        ("  small:", "  neg:", "suite neg: the name is an operator's"),
    ],
)
def test_a_mistake_is_named_with_its_place(bench, old, new, message):
    assert old in GOOD
    changed = bench(GOOD.replace(old, new, 1))
    if message is None:
        assert load_suites(changed)
        return
    with pytest.raises(BenchmarkError, match=message) as caught:
        load_suites(changed)
    assert "pkg/suites.yaml" in str(caught.value)


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


def test_targets_judge_shares_and_times():
    share = Target(operator="neg", of="ceiling", at_least=0.97)
    assert share.met(0.97)
    assert not share.met(0.9699)
    rounded = Target(operator="neg", of="best_peer", at_least=1.0, met_from=0.99)
    assert rounded.met(0.99)
    assert not rounded.met(0.9899)
    time = Target(operator="neg", of="eager", at_most=1.2)
    assert time.met(1.2)
    assert not time.met(1.21)


@pytest.mark.parametrize(
    "old, new, line",
    [
        ("version: 1", "version: 2", 2),
        ("cpu: true", "cpus: true", 6),
        ("cpu: true", "cpu: maybe", 6),
        ("variants: all", "variants: [narrow]", 9),
        ("layout: permuted", "layout: shuffled", 10),
        ("of: eager", "of: best", 13),
        ("at_least: 0.9,", "at_most: 1, at_least: 0.9,", 12),
        ("  small:", "  neg:", 4),
    ],
)
def test_a_mistake_is_named_with_its_line(bench, old, new, line):
    with pytest.raises(BenchmarkError) as caught:
        load_suites(bench(GOOD.replace(old, new, 1)))
    assert str(caught.value).startswith(f"pkg/suites.yaml:{line}: ")


def test_lines_are_found_in_block_style_too():
    root = yaml.compose("a:\n  - b: 1\n    c:\n      - 2\n      - 3\n", Loader=yaml.SafeLoader)
    assert [line_of(root, "a"), line_of(root, "a", 0, "c"), line_of(root, "a", 0, "c", 1)] == [1, 3, 5]
    assert line_of(root, "a", 0, "nothing") == 2
    assert line_of(root, "a", 0, *path_in("Expected `str`, got `int` - at `$.c[1]`")) == 5
    assert line_of(root, "a", 0, *path_in("Object contains unknown field `b`")) == 2
    assert line_of(None, "a") == 1
