"""Random problems: each configuration is called in each layout, and what is wrong in one of them is found."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from forge_core.errors import UnsupportedError
from forge_core.rows import Fold, Operands, RowProgram
from forge_core.rows.operator import row_operator, row_output
from forge_core.testing import Case, Subject, conformance_drawn
from forge_core.testing.conformance_drawn import check_drawn

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Total(RowProgram):
    operands = Operands(rows=("x",), columns=("weight",), results=("y",))
    folds = (Fold("sum", lambda v, row: v.x * v.weight, masked=False),)

    def results(self, totals, row):
        return (totals[0],)


SCHEMA = "forge_test_drawn::total(Tensor x, Tensor weight, int dim=-1, *, str variant='auto') -> Tensor"


@row_operator(SCHEMA, program=Total(), reference=None)
def total(x, weight, dim=-1, *, variant="auto"):
    return row_output("total", Total(), x=x, weight=weight, dim=dim)


def reference(x, weight, dim=-1):
    return (x.movedim(dim, -1) * weight).sum(-1)


def make(case, dtype, device, seed):
    return torch.ones(case.shape, dtype=dtype), torch.ones(case.shape[case.args[0]], dtype=dtype)


class Called:
    """The operator, and the configurations of its calls; a call is wrong where ``wrong`` says so of its tensor."""

    def __init__(self, wrong=lambda x: False):
        self.wrong, self.configs, self.explain, self.variants = wrong, [], total.explain, total.variants

    def __call__(self, x, weight, dim):
        self.configs.append(total.explain(x, weight, dim, arch="sm_90a").config)
        return reference(x, weight, dim) + self.wrong(x)


def subject(operator):
    cases = (Case((4, 6), (-1,)), Case((4, 6), (0,)), Case((3, 5, 7), (1,)))
    return Subject(operator, cases=cases, make=make, reference=reference, title="total")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(conformance_drawn, "DRAWN", 300)
    monkeypatch.setattr(conformance_drawn, "MOST_BYTES", 2**18)


def test_each_configuration_is_called_on_the_smallest_problem_of_each_layout():
    operator, planned = Called(), []
    operator.explain = lambda *args, **options: planned.append(total.explain(*args, **options)) or planned[-1]
    check_drawn(subject(operator), CPU)
    configs = {told.config for told in planned}
    assert {*operator.configs} == configs
    assert 20 < len(configs) < len(operator.configs) < len(planned)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda x: x.storage_offset() == 1, id="offset"),
        pytest.param(lambda x: x.stride(-1) == 2, id="stepped"),
        pytest.param(lambda x: x.ndim == 2 and x.stride(0) == 1 < x.shape[1], id="permuted"),
        pytest.param(lambda x: x.ndim == 3, id="batch"),
    ],
)
def test_what_is_wrong_in_one_layout_is_found(wrong):
    with pytest.raises(AssertionError, match=r"total \(.*Config\("):
        check_drawn(subject(Called(wrong)), CPU)


def test_an_operator_that_refuses_everything_is_no_success():
    def refuses(*args, **options):
        raise UnsupportedError("total: no kernel supports this call.", requirement="nothing")

    operator = Called()
    operator.explain = refuses
    with pytest.raises(AssertionError, match="it refuses all of 300 random calls"):
        check_drawn(subject(operator), CPU)
