"""Forward mode: every operator on dual tensors and under torch.func.jvp."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from forge_core.errors import ShapeError, UnsupportedError
from forge_core.op import functorch, operator
from forge_core.rows.operator import row_operator, row_output
from forge_core.testing.conformance import check_forward_mode

week0 = pytest.importorskip("forge_week0_transpose")
week1 = pytest.importorskip("forge_week1_reduce")
week2 = pytest.importorskip("forge_week2_softmax")

# Entering forward mode for the first time makes torch script its decompositions.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

OPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "copy": (week0.copy, {}),
    "transpose": (week0.transpose, {}),
    "copy_transpose": (week0.copy_transpose, {"tile_size": 32}),
    "reduce_sum": (week1.reduce_sum, {"dim": 0}),
    "reduce_sum-dtype": (week1.reduce_sum, {"dim": (0, 1), "keepdim": True, "dtype": torch.float64}),
    "mean": (week1.mean, {}),
    "prod": (week1.prod, {"dim": 1}),
    "amax": (week1.amax, {"dim": None}),
    "amin": (week1.amin, {"dim": 0, "keepdim": True}),
    "softmax": (week2.softmax, {"dim": 0}),
    "softmax-dtype": (week2.softmax, {"dtype": torch.float64}),
    "log_softmax": (week2.log_softmax, {"dim": 1}),
    "logsumexp": (week2.logsumexp, {"dim": (0, 1)}),
    "softmax_backward": (week2.softmax_backward, {"dim": 0}),
    "log_softmax_backward": (week2.log_softmax_backward, {}),
}
each = pytest.mark.parametrize("name", OPS)
gpu = pytest.param("cuda", marks=pytest.mark.gpu)


def made(op: Any, device: str, dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    tensors = (torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in op.schema.tensors)
    return tuple(t.to(device, dtype) for t in tensors)


def reference(op: Any, **options: Any) -> Any:
    def call(*tensors: torch.Tensor) -> torch.Tensor:
        named = op.schema.bind(tensors, options)
        named.pop("variant", None)
        result: torch.Tensor = op.reference(**named)
        return result

    return call


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", ["cpu", gpu])
@each
def test_tangents_are_the_references(name: str, device: str, dtype: torch.dtype) -> None:
    op, options = OPS[name]
    registered = getattr(getattr(torch.ops, op.schema.namespace), op.schema.name)
    tensors, directions = (made(op, device, dtype, seed) for seed in (0, 1))
    call, overload = partial(op, **options), partial(registered, **options)
    check_forward_mode(call, overload, reference(op, **options), tensors, directions)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")  # torch.func.linearize's own
@each
def test_gradcheck_and_what_builds_on_forward_mode(name: str) -> None:
    op, options = OPS[name]
    call, right = partial(op, **options), reference(op, **options)
    tensors, directions = made(op, "cpu", torch.float64, 0), made(op, "cpu", torch.float64, 1)
    leaves = tuple(t.requires_grad_() for t in made(op, "cpu", torch.float64, 0))
    assert gradcheck(call, leaves, check_forward_ad=True, check_batched_forward_grad=True, check_batched_grad=True)
    assert gradgradcheck(call, leaves, check_fwd_over_rev=True)
    every = tuple(range(len(tensors)))
    for made_of, expected in ((call, right), (lambda *t: call(*t).sin().sum(), lambda *t: right(*t).sin().sum())):
        torch.testing.assert_close(
            torch.func.jacfwd(made_of, every)(*tensors), torch.func.jacfwd(expected, every)(*tensors)
        )
    torch.testing.assert_close(
        torch.func.hessian(made_of, every)(*tensors), torch.func.hessian(expected, every)(*tensors)
    )
    value, linear = torch.func.linearize(call, *tensors)
    torch.testing.assert_close(value, right(*tensors))
    torch.testing.assert_close(linear(*directions), torch.func.jvp(right, tensors, directions)[1])


def test_formulas_of_our_own_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear operators and softmax have a jvp of their own, which does not differentiate the reference."""
    x, t = made(week2.softmax, "cpu", torch.float64, 0) + made(week2.softmax, "cpu", torch.float64, 1)
    monkeypatch.setattr(torch.func, "vjp", None)  # used by the jvp of the reference
    for call in (week0.copy, week0.transpose, week0.copy_transpose, week1.reduce_sum, week1.mean, week2.softmax):
        with forward_ad.dual_level():
            assert forward_ad.unpack_dual(call(forward_ad.make_dual(x, t))).tangent is not None
    with forward_ad.dual_level(), pytest.raises(TypeError):
        week2.log_softmax(forward_ad.make_dual(x, t))


def test_a_wrong_or_lost_tangent_is_found() -> None:
    tensors, directions = made(week2.softmax, "cpu", torch.float64, 0), made(week2.softmax, "cpu", torch.float64, 1)
    call, right = week2.softmax, torch.ops.forge_week2.softmax
    check_forward_mode(call, right, reference(week2.softmax), tensors, directions)

    def lost(x):
        return call(x.detach())

    def doubled(x):
        return call(2 * x - x.detach())

    for wrong in ((lost, right), (call, lost), (doubled, right)):
        with pytest.raises(AssertionError, match=r"tangent is lost|not close"):
            check_forward_mode(*wrong, reference(week2.softmax), tensors, directions)


def test_an_operator_without_a_gradient_has_its_references_tangent_and_no_silent_gradient() -> None:
    @row_operator(
        "forge_core_forward::half_softmax(Tensor x, int dim=-1, *, str variant='auto') -> Tensor",
        program=week2.program.Softmax(),
        reference=torch.softmax,
    )
    def half_softmax(x, dim=-1, *, variant="auto"):
        return row_output("half_softmax", week2.program.Softmax(), x=x, dim=dim)

    x, t = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    expected = torch.func.jvp(lambda x: torch.softmax(x, -1), (x,), (t,))
    torch.testing.assert_close(torch.func.jvp(half_softmax, (x,), (t,)), expected)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        half_softmax(x.clone().requires_grad_()).sum().backward()
    with pytest.raises(RuntimeError, match="half_softmax was differentiated, but has no gradient"):
        torch.func.grad(lambda x: half_softmax(x).sum())(x)


def test_a_formula_of_the_declaration_gets_the_call_by_name() -> None:
    seen: list[Any] = []

    def tangent(output, tangents, **call):
        seen.append((output, dict(tangents), call))
        return tangents["x"] * call["factor"]

    @operator(
        "forge_core_forward::scaled(Tensor x, float factor=2.0, *, str variant='auto') -> Tensor",
        reference=lambda x, factor: x * factor,
        plan=print,
        variants={},
        setup_context=lambda ctx, inputs, output, keyword_only_inputs: setattr(ctx, "factor", inputs[1]),
        backward=lambda ctx, grad: (grad * ctx.factor, None),
        jvp=tangent,
    )
    def scaled(x, factor=2.0, *, variant="auto"):
        return x.new_empty(x.shape)

    x, t = torch.randn(3), torch.randn(3)
    assert torch.equal(torch.func.jvp(lambda x: scaled(x, 3.0), (x,), (t,))[1], 3 * t)
    ((_, tangents, call),) = seen
    assert (list(tangents), sorted(call)) == (["x"], ["factor", "variant", "x"])
    assert (call["factor"], call["variant"]) == (3.0, "auto")
    assert functorch.reference_jvp(scaled._rules)(x, {"x": t}, x=x, factor=3.0, variant="auto").equal(3 * t)


@pytest.mark.parametrize("device", ["cpu", gpu])
def test_an_out_form_refuses_a_tangent_and_errors_stay_typed(device: str) -> None:
    x = torch.randn(3, 5, device=device)
    with forward_ad.dual_level():
        dual, out = forward_ad.make_dual(x, torch.ones_like(x)), torch.empty(5, 3, device=device)
        for wrong in ((dual, out), (x, forward_ad.make_dual(out, torch.ones_like(out)))):
            with pytest.raises(
                UnsupportedError, match=r"transpose_out: expected tensors without a tangent.*transpose\("
            ):
                week0.transpose_out(*wrong)
        week0.transpose_out(x, out)
        assert torch.equal(out, x.t())
        assert torch.equal(week0.transpose(x), x.t())  # without a tangent
        with pytest.raises(ShapeError):
            week0.transpose(dual[0])
