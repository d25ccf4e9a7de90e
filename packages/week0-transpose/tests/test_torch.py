"""The operators as PyTorch sees them: opcheck, compile, export, autograd, vmap, torch.func, autocast, modes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch.utils._python_dispatch import TorchDispatchMode

import forge_week0_transpose as week0
from forge_core.errors import ShapeError
from forge_core.testing import assert_same_bits, random_bits

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
UNARY = (week0.copy, week0.transpose, week0.copy_transpose)


def reference(op: Any) -> Any:
    def call(x: torch.Tensor) -> torch.Tensor:
        view = x if op is week0.copy else x.transpose(-1, -2)
        return view.clone(memory_format=torch.contiguous_format)

    return call


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_code_around_the_operator(device: str) -> None:
    torch._dynamo.reset()

    def model(x: torch.Tensor) -> torch.Tensor:
        return week0.transpose(x * 2).relu() + week0.copy(x.t())

    compiled = torch.compile(model, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    x = torch.randn(12, 20, device=device, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    compiled(x).sum().backward()
    ((y * 2).t().relu() + y.t()).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", UNARY, ids=lambda op: op.schema.name)
def test_gradients(op: Any, device: str) -> None:
    x = torch.randn(2, 3, 4, device=device, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(op, x)
    assert torch.autograd.gradgradcheck(op, x)


@pytest.mark.usefixtures("dispatched")
@pytest.mark.parametrize("op", UNARY, ids=lambda op: op.schema.name)
def test_gradients_by_the_dispatcher(op: Any) -> None:
    test_gradients(op, "cpu")


@pytest.mark.parametrize("device", DEVICES)
def test_autograd_notices_that_an_out_was_written(device: str) -> None:
    parameter = torch.randn(5, 3, device=device, requires_grad=True)
    saved = torch.randn(5, 3, device=device)
    loss = (parameter * saved).sum()
    for _ in range(2):
        before = saved._version
        week0.transpose_out(torch.randn(3, 5, device=device), saved)
        assert saved._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        out = torch.empty(5, 3, device=device)
        week0.transpose_out(torch.ones(3, 5, device=device), out)
        assert out.all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit is deprecated, and still there
@pytest.mark.parametrize("device", DEVICES)
def test_a_trace_holds_the_operator(device: str) -> None:
    traced = torch.jit.trace(week0.transpose, torch.randn(3, 5, device=device))
    x = torch.randn(3, 5, device=device)
    assert torch.equal(traced(x), x.t())


@pytest.mark.parametrize("device", DEVICES)
def test_the_gradient_is_the_transpose(device: str) -> None:
    x = torch.randn(3, 40, 56, device=device, requires_grad=True)
    weight = random_bits((3, 56, 40), torch.int32, device).to(torch.float32)
    (week0.transpose(x) * weight).sum().backward()
    assert x.grad is not None
    assert_same_bits(x.grad.contiguous(), weight.transpose(-1, -2).contiguous())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("in_dim", [0, 1, 2, 3, -1])
def test_vmap(in_dim: int, device: str) -> None:
    x = torch.randn(3, 4, 5, 6, device=device)
    got = torch.vmap(week0.transpose, in_dims=in_dim)(x)
    expected = torch.vmap(lambda a: a.transpose(-1, -2).clone(), in_dims=in_dim)(x)
    assert torch.equal(got, expected)
    assert torch.equal(torch.vmap(week0.copy, in_dims=in_dim)(x), x.movedim(in_dim, 0))
    nested = torch.vmap(torch.vmap(lambda a: week0.copy_transpose(a, 32)))(x)
    assert torch.equal(nested, x.transpose(-1, -2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", UNARY, ids=lambda op: op.schema.name)
def test_vmap_of_the_registered_operator(op: Any, device: str) -> None:
    x = torch.randn(3, 4, 5, 6, device=device)
    overload = getattr(torch.ops.forge_week0, op.schema.name).default
    expected = reference(op)(x)
    assert torch.equal(torch.vmap(overload)(x), expected)
    assert torch.equal(torch.vmap(torch.vmap(op))(x), expected)
    torch._dynamo.reset()
    compiled = torch.compile(torch.vmap(op), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_vmap_over_nothing(device: str) -> None:
    x = torch.randn(0, 3, 4, device=device)
    assert torch.vmap(week0.transpose)(x).shape == (0, 4, 3)
    assert torch.vmap(week0.copy)(x).shape == (0, 3, 4)


def test_vmap_counts_one_example_s_dimensions() -> None:
    with pytest.raises(ShapeError, match="at least 2 dimensions in each example, got 1"):
        torch.vmap(week0.transpose)(torch.randn(3, 4))


@pytest.mark.parametrize("device", DEVICES)
def test_torch_func(device: str) -> None:
    x = torch.randn(4, 3, 5, device=device)
    weight = torch.randn(5, 3, device=device)

    def loss(a: torch.Tensor) -> torch.Tensor:
        return (week0.transpose(a) * weight).sum()

    gradient = torch.func.vmap(torch.func.grad(loss))(x)
    assert_same_bits(gradient.contiguous(), weight.t().expand(4, 3, 5).contiguous())
    batched = torch.func.grad(lambda a: torch.vmap(loss)(a).sum())(x)
    assert torch.equal(batched, gradient)
    jacobian = torch.func.jacrev(week0.transpose)(x[0])
    torch.testing.assert_close(jacobian.sum(dim=(0, 1)), torch.ones(3, 5, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_changes_nothing(device: str) -> None:
    x = torch.randn(3, 5, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert week0.transpose(x).dtype is torch.float32
        assert week0.copy(x.half()).dtype is torch.float16


@pytest.mark.parametrize("device", DEVICES)
def test_a_dispatch_mode_sees_the_call(device: str) -> None:
    seen: list[str] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(3, 5, device=device)
    with Recorder():
        week0.transpose(x)
    assert "forge_week0.transpose.default" in seen


@pytest.mark.parametrize("device", DEVICES)
def test_a_subclass_sees_the_call(device: str) -> None:
    class Traced(torch.Tensor):
        calls: list[str] = []  # noqa: RUF012  # a class attribute of a test's own class

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            cls.calls.append(str(func))
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.randn(3, 5, device=device).as_subclass(Traced)
    result = week0.transpose(x)
    assert isinstance(result, Traced)
    assert any("forge_week0.transpose" in call for call in Traced.calls)


def test_fake_tensors_and_meta() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(3, 5, 7, device="cuda").transpose(0, 2)
        assert week0.transpose(x).shape == (7, 3, 5)
        assert week0.transpose(x).is_contiguous()
        assert week0.transpose(x).device.type == "cuda"
    assert week0.copy(torch.empty(3, 4, device="meta").t()).stride() == (3, 1)


@pytest.mark.parametrize("device", DEVICES)
def test_inference_mode_and_parameters(device: str) -> None:
    with torch.inference_mode():
        x = torch.randn(3, 5, device=device)
        assert torch.equal(week0.transpose(x), x.t())
    parameter = torch.nn.Parameter(torch.randn(3, 5, device=device))
    assert week0.transpose(parameter).requires_grad
    with torch.no_grad():
        assert torch.equal(week0.transpose(parameter), parameter.t())
