"""Alternative parameter names of PyTorch and NumPy."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.testing import assert_close

from forge_core.op import operator
from forge_core.op.schema import Schema

week0 = pytest.importorskip("forge_week0_transpose")
week1 = pytest.importorskip("forge_week1_reduce")
week2 = pytest.importorskip("forge_week2_softmax")

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))

#: A call of an operator, and the equivalent PyTorch call.
CALLS = {
    "input": (lambda x: week2.softmax(input=x, dim=0), lambda x: torch.softmax(x, 0)),
    "axis": (lambda x: week2.log_softmax(x, axis=0), lambda x: torch.log_softmax(x, 0)),
    "several": (lambda x: week2.logsumexp(input=x, axis=(0, 1)), lambda x: torch.logsumexp(x, (0, 1))),
    "keepdims": (lambda x: week1.reduce_sum(x, axis=0, keepdims=True), lambda x: torch.sum(x, 0, True)),
    "a": (lambda x: week1.amax(a=x, axis=1), lambda x: torch.amax(x, 1)),
    "transpose": (lambda x: week0.transpose(input=x), lambda x: x.mT.contiguous()),
    "dtype": (lambda x: week2.softmax(x, 0, torch.float64), lambda x: torch.softmax(x, 0, torch.float64)),
    "dtype-log": (lambda x: week2.log_softmax(x, -1, torch.float64), lambda x: torch.log_softmax(x, -1, torch.float64)),
}
calls = pytest.mark.parametrize("call", CALLS)


@calls
def test_a_call_by_pytorchs_names_is_the_same_call_everywhere(call: str) -> None:
    ours, theirs = CALLS[call]
    assert_close(ours(X), theirs(X))
    assert_close(torch.compile(ours, backend="aot_eager", fullgraph=True)(X), theirs(X))
    assert_close(fx.symbolic_trace(ours)(X), theirs(X))
    assert_close(torch.func.vmap(ours)(torch.stack([X, 2 * X])), torch.func.vmap(theirs)(torch.stack([X, 2 * X])))
    grads = [torch.func.grad(lambda x, one=one: one(x).sin().sum())(X) for one in (ours, theirs)]
    assert_close(*grads)
    leaves = [X.clone().requires_grad_() for _ in grads]
    for leaf, one in zip(leaves, (ours, theirs), strict=True):
        one(leaf).sin().sum().backward()
    assert_close(leaves[0].grad, leaves[1].grad)


def test_the_out_form_and_explain_take_them_too() -> None:
    out = torch.empty(4, dtype=torch.float64)
    assert week1.reduce_sum.out(input=X, axis=0, dtype=torch.float64, out=out) is out
    assert_close(out, X.double().sum(0))
    told = week1.reduce_sum.explain(input=X.to("meta"), axis=0, keepdims=True, arch="sm_90a")
    assert told == week1.reduce_sum.explain(X.to("meta"), 0, True, arch="sm_90a")


def test_under_autocast_a_dtype_by_position_is_kept() -> None:
    @operator(
        "forge_core_names::converted(Tensor x, ScalarType? dtype=None, *, str variant='auto') -> Tensor",
        reference=lambda x, dtype: x.to(dtype or x.dtype, copy=True),
        plan=print,
        variants={},
        autocast={"cpu": torch.float32},
    )
    def converted(x, dtype=None, *, variant="auto"):
        return x.new_empty(x.shape, dtype=dtype or x.dtype)

    x = torch.ones(3, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        for given, expected in (((), torch.float32), ((None,), torch.float32), ((torch.float64,), torch.float64)):
            assert converted(x, *given).dtype is expected
            assert converted(x, **dict(zip(["dtype"], given, strict=False))).dtype is expected
    assert converted(x).dtype is torch.bfloat16


def test_an_argument_is_given_once() -> None:
    for twice, name in (
        (lambda: week1.reduce_sum(X, dim=0, axis=0), "dim"),
        (lambda: week1.reduce_sum(X, 0, axis=0), "dim"),
        (lambda: week1.reduce_sum(X, input=X), "x"),
        (lambda: week1.reduce_sum(input=X, a=X), "x"),
    ):
        with pytest.raises(TypeError, match=f"multiple values for argument '{name}'"):
            twice()
    for unknown in ("dims", "inputs", "variants"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{unknown}'"):
            week1.reduce_sum(X, **{unknown: 0})


def test_a_parameter_of_that_name_is_itself() -> None:
    both = Schema("ns::f(Tensor grad, Tensor x, int dim, int axis=0, bool keepdim=False) -> Tensor")
    assert both.aliases == {"input": "x", "a": "x", "keepdims": "keepdim"}
    assert both.bind((X,), {"input": X, "dim": 1, "axis": 2})["axis"] == 2
    assert Schema("ns::g(Tensor grad, Tensor y) -> Tensor").aliases == {}
