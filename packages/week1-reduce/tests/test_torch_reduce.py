"""The operators as PyTorch sees them: opcheck, compile, export, autograd, vmap, torch.func, autocast, modes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch.utils._python_dispatch import TorchDispatchMode

import forge_week1_reduce as week1
from forge_core.testing.conformance import check_opcheck

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
OPS = (week1.reduce_sum, week1.mean, week1.prod, week1.amax, week1.amin)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", [week1.reduce_sum, week1.prod, week1.mean], ids=lambda op: op.schema.name)
def test_opcheck_with_a_dtype(op: Any, device: str) -> None:
    check_opcheck(op, (torch.randn(3, 5, device=device, requires_grad=True),), {"dtype": torch.float64})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.schema.name)
def test_a_dim_that_is_a_symbol_of_the_graph(op: Any, device: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager", dynamic=True)
    for shape, dim in (((3, 5), 1), ((4, 7), 0), ((2, 3), (0, 1))):
        x = torch.randn(shape, device=device)
        close(compiled(x, dim), op(x, dim))


@pytest.mark.parametrize("device", DEVICES)
def test_reduce_by_name_compiles(device: str) -> None:
    torch._dynamo.reset()

    def model(x: torch.Tensor) -> torch.Tensor:
        return week1.reduce(x * 2, (0, 2), "mean", True) + week1.reduce(x, None, "max")

    compiled = torch.compile(model, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    x = torch.randn(3, 5, 7, device=device, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    compiled(x).sum().backward()
    ((y * 2).mean((0, 2), True) + y.amax()).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.schema.name)
@pytest.mark.parametrize("dim", [-1, 0, (0, 2), None, (1,)], ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_gradients(op: Any, dim: Any, keepdim: bool, device: str) -> None:
    x = torch.randn(2, 3, 4, device=device, dtype=torch.float64, requires_grad=True)

    def call(y: torch.Tensor) -> torch.Tensor:
        return op(y, dim, keepdim)

    assert torch.autograd.gradcheck(call, x)
    assert torch.autograd.gradgradcheck(call, x)


@pytest.mark.parametrize("device", DEVICES)
def test_the_gradient_of_a_sum_is_a_view(device: str) -> None:
    x = torch.randn(3, 4, device=device, requires_grad=True)
    weight = torch.randn(3, device=device)
    (gradient,) = torch.autograd.grad(week1.reduce_sum(x), x, weight)
    assert gradient.stride() == (1, 0)
    assert gradient.data_ptr() == weight.data_ptr()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_products_with_zeros(zeros: int, device: str) -> None:
    x = torch.randn(3, 6, device=device, dtype=torch.float64)
    x[:, :zeros] = 0
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    week1.prod(mine, -1).sum().backward()
    torch.prod(other, -1).sum().backward()
    close(mine.grad, other.grad)
    mine.grad = other.grad = None
    week1.prod(mine, None).backward()
    torch.prod(other).backward()
    close(mine.grad, other.grad)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["amax", "amin"])
def test_ties_share_the_gradient(name: str, device: str) -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, -2.0, -2.0, -2.0], [0.0] * 6], device=device)
    for dim in (-1, 0, (0, 1)):
        mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        getattr(week1, name)(mine, dim).sum().backward()
        getattr(torch, name)(other, dim).sum().backward()
        assert torch.equal(mine.grad, other.grad)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", [week1.reduce_sum, week1.mean, week1.prod], ids=lambda op: op.schema.name)
def test_gradients_keep_the_dtype_of_the_input(op: Any, device: str) -> None:
    x = torch.randn(3, 4, device=device).bfloat16().requires_grad_()
    y = op(x, dtype=torch.float32)
    assert y.dtype is torch.float32
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is torch.bfloat16


@pytest.mark.usefixtures("dispatched")
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.schema.name)
def test_gradients_by_the_dispatcher(op: Any) -> None:
    for dim in (-1, (0, 2), None):
        for keepdim in (False, True):
            test_gradients(op, dim, keepdim, "cpu")
    if op in (week1.amax, week1.amin):
        test_ties_share_the_gradient(op.schema.name, "cpu")
    else:
        test_gradients_keep_the_dtype_of_the_input(op, "cpu")


@pytest.mark.usefixtures("dispatched")
def test_gradients_of_products_with_zeros_and_of_sums_by_the_dispatcher() -> None:
    test_the_gradient_of_a_sum_is_a_view("cpu")
    for zeros in range(3):
        test_products_with_zeros(zeros, "cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("in_dim", [0, 1, 2, -1])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.schema.name)
def test_vmap(op: Any, in_dim: int, device: str) -> None:
    x = torch.randn(3, 4, 5, device=device)
    plain = {"reduce_sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "amin": torch.amin}.get(op.schema.name)
    for dim in (0, -1, (0, 1), None):
        got = torch.vmap(lambda a, dim=dim: op(a, dim), in_dims=in_dim)(x)
        want = torch.stack([op(a, dim) for a in x.unbind(in_dim)])
        close(got, want)
        if plain is not None:
            every = (0, 1) if dim is None else dim
            close(got, torch.vmap(lambda a, every=every: plain(a, every), in_dims=in_dim)(x))
    kept = torch.stack([op(a, -1, True) for a in x.unbind(in_dim)])
    close(torch.vmap(lambda a: op(a, -1, True), in_dims=in_dim)(x), kept)
    nested = torch.vmap(torch.vmap(op))(x)
    close(nested, op(x, -1))
    scalars = torch.vmap(torch.vmap(torch.vmap(lambda a: op(a, None))))(x)
    close(scalars, x.clone())


@pytest.mark.parametrize("device", DEVICES)
def test_torch_func(device: str) -> None:
    x = torch.randn(4, 3, 5, device=device)
    gradient = torch.func.vmap(torch.func.grad(lambda a: (week1.mean(a, 0) ** 2).sum()))(x)
    want = torch.func.vmap(torch.func.grad(lambda a: (torch.mean(a, 0) ** 2).sum()))(x)
    close(gradient, want)
    close(torch.func.jacrev(week1.amax)(x[0]), torch.func.jacrev(lambda a: torch.amax(a, -1))(x[0]))
    second = torch.func.jacrev(torch.func.grad(lambda a: week1.prod(a, None)))(x[0, 0])
    close(second, torch.func.jacrev(torch.func.grad(torch.prod))(x[0, 0]))


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_is_pytorchs(device: str) -> None:
    x = torch.full((4, 4096), 1.001, device=device).bfloat16()
    for op in (week1.reduce_sum, week1.prod, week1.amax, week1.mean):
        for _ in range(20):  # until a call like these takes the shortest way, which the region must not
            assert op(x).dtype is torch.bfloat16
    with torch.autocast(device, dtype=torch.bfloat16):
        # On CUDA sums are taken in fp32, on the CPU they are not; products are on both.
        assert week1.reduce_sum(x).dtype is torch.sum(x, -1).dtype
        assert week1.prod(x).dtype is torch.prod(x, -1).dtype is torch.float32
        assert week1.amax(x).dtype is torch.amax(x, -1).dtype is torch.bfloat16
        assert week1.mean(x).dtype is torch.mean(x, -1).dtype is torch.bfloat16
        assert week1.reduce_sum(x.int()).dtype is torch.int64
        assert week1.reduce_sum(x.double()).dtype is torch.float64
    assert week1.reduce_sum(x).dtype is torch.bfloat16


@pytest.mark.parametrize("device", DEVICES)
def test_a_dispatch_mode_sees_the_call(device: str) -> None:
    seen: list[str] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(3, 5, device=device)
    with Recorder():
        week1.reduce_sum(x)
        week1.reduce(x, op="min")
    assert "forge_week1.reduce_sum.default" in seen
    assert "forge_week1.amin.default" in seen


def test_fake_tensors_and_meta() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(3, 5, 7, device="cuda").transpose(0, 2)
        assert week1.reduce_sum(x, 1).shape == (7, 3)
        assert week1.reduce_sum(x, 1).is_contiguous()
        assert week1.mean(x, (0, 1), True).shape == (1, 1, 3)
    y = torch.empty(3, 4, device="meta", dtype=torch.int8)
    assert week1.reduce_sum(y).dtype is torch.int64
    assert week1.amax(y, 0).dtype is torch.int8


@pytest.mark.parametrize("device", DEVICES)
def test_inference_mode_and_parameters(device: str) -> None:
    with torch.inference_mode():
        x = torch.ones(3, 5, device=device)
        assert torch.equal(week1.reduce_sum(x), torch.full((3,), 5.0, device=device))
    assert week1.amax(torch.nn.Parameter(torch.randn(3, 5, device=device))).requires_grad
