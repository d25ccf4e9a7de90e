"""The operators as PyTorch sees them: opcheck, compile, export, autograd, vmap, torch.func, autocast, modes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo.testing

import forge_week2_softmax as week2
from forge_core.testing.conformance import check_opcheck

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
PAIRS = {"softmax": (week2.softmax, torch.softmax), "log_softmax": (week2.log_softmax, torch.log_softmax)}
#: Each operator as a function of one tensor, and PyTorch's.
UNARY = {
    "softmax": (week2.softmax, lambda x: torch.softmax(x, -1)),
    "log_softmax": (week2.log_softmax, lambda x: torch.log_softmax(x, -1)),
    "logsumexp": (lambda x: week2.logsumexp(x, -1), lambda x: torch.logsumexp(x, -1)),
    "logsumexp_two": (
        lambda x: week2.logsumexp(x, (0, 1), keepdim=True),
        lambda x: torch.logsumexp(x, (0, 1), keepdim=True),
    ),
}


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PAIRS)
def test_opcheck_with_a_dtype(name: str, device: str) -> None:
    op = PAIRS[name][0]
    check_opcheck(op, (torch.randn(3, 5, device=device, requires_grad=True),), {"dtype": torch.float64})
    check_opcheck(op, (torch.randint(-5, 5, (3, 5), device=device),), {"dtype": torch.float32})
    check_opcheck(week2.logsumexp, (torch.randint(-5, 5, (3, 5), device=device), 1))
    grad, y = torch.randn(6, 8, device=device).t(), torch.randn(6, 8, device=device).t()
    check_opcheck(getattr(week2, f"{name}_backward"), (grad, y, 0), {"input_dtype": torch.bfloat16})


@pytest.mark.parametrize("device", DEVICES)
def test_a_compiled_model_with_gradients(device: str) -> None:
    torch._dynamo.reset()

    def model(x: torch.Tensor, op: Any, lse: Any) -> torch.Tensor:
        return (op(x * 2, -1).relu() * lse(x, (0, 2), True)).sum()

    compiled = torch.compile(model, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    x = torch.randn(3, 5, 7, device=device, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    compiled(x, week2.softmax, week2.logsumexp).backward()
    model(y, torch.softmax, torch.logsumexp).backward()
    close(x.grad, y.grad)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("name", PAIRS)
def test_gradients(name: str, dim: int, device: str) -> None:
    ours, _ = PAIRS[name]
    for shape in ((2, 3, 4), (2, 1, 33)):
        x = torch.randn(shape, device=device, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda y: ours(y, dim), x)
        if shape[-1] == 4:
            assert torch.autograd.gradgradcheck(lambda y: ours(y, dim), x)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["stream", "column", "split", "held"])
def test_gradients_by_each_variant(variant: str, attempt: Any) -> None:
    """A variant that is asked for serves the gradient too."""
    for shape, dim in (((3, 7), 1), ((7, 3), 0), ((2, 40), 1)):
        x = torch.randn(shape, device="cuda", dtype=torch.float64, requires_grad=True)
        for op, _ in PAIRS.values():
            call = partial(torch.autograd.gradcheck, partial(op, dim=dim, variant=variant), x)
            assert attempt(call, attempt.able(variant, x, dim)) in (True, None)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["naive", "online", "single_pass"])
def test_the_gradient_of_a_ladder_variant_is_that_of_auto(variant: str) -> None:
    x = torch.randn(30, 1024, device="cuda", requires_grad=True)
    (grad,) = torch.autograd.grad((week2.softmax(x, variant=variant) ** 2).sum(), x)
    close(grad, torch.autograd.grad((torch.softmax(x, -1) ** 2).sum(), x)[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dim", [-1, 0, (0, 2), None, (1,)], ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_gradients_of_logsumexp(dim: Any, keepdim: bool, device: str) -> None:
    x = torch.randn(2, 3, 4, device=device, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: week2.logsumexp(y, dim, keepdim), x)
    assert torch.autograd.gradgradcheck(lambda y: week2.logsumexp(y, dim, keepdim), x)


@pytest.mark.usefixtures("dispatched")
@pytest.mark.parametrize("name", PAIRS)
def test_gradients_by_the_dispatcher(name: str) -> None:
    for dim in (-1, 0):
        test_gradients(name, dim, "cpu")


@pytest.mark.usefixtures("dispatched")
@pytest.mark.parametrize("keepdim", [False, True])
def test_gradients_of_logsumexp_by_the_dispatcher(keepdim: bool) -> None:
    for dim in (-1, (0, 2), None):
        test_gradients_of_logsumexp(dim, keepdim, "cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PAIRS)
def test_gradients_keep_the_dtype_of_the_input(name: str, device: str) -> None:
    ours, theirs = PAIRS[name]
    x = torch.randn(3, 40, device=device).bfloat16()
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = ours(mine, dtype=torch.float32)
    assert y.dtype is torch.float32
    weight = torch.randn(3, 40, device=device)
    y.backward(weight)
    theirs(other, -1, dtype=torch.float32).backward(weight)
    assert mine.grad is not None
    assert mine.grad.dtype is torch.bfloat16
    close(mine.grad, other.grad)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("in_dim", [0, 1, 2, -1])
@pytest.mark.parametrize("name", PAIRS)
def test_vmap(name: str, in_dim: int, device: str) -> None:
    ours, theirs = PAIRS[name]
    x = torch.randn(3, 4, 5, device=device)
    for dim in (0, -1):
        close(
            torch.vmap(lambda a, dim=dim: ours(a, dim), in_dims=in_dim)(x),
            torch.vmap(lambda a, dim=dim: theirs(a, dim), in_dims=in_dim)(x),
        )
    close(torch.vmap(torch.vmap(ours))(x), ours(x, -1))
    scalars = torch.vmap(torch.vmap(torch.vmap(ours)))(x)
    close(scalars, theirs(x.unsqueeze(-1), -1).squeeze(-1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("in_dim", [0, 1, 2, -1])
def test_vmap_of_logsumexp(in_dim: int, device: str) -> None:
    x = torch.randn(3, 4, 5, device=device)
    for dim in (0, -1, (0, 1)):
        for keepdim in (False, True):
            close(
                torch.vmap(lambda a, d=dim, k=keepdim: week2.logsumexp(a, d, k), in_dims=in_dim)(x),
                torch.vmap(lambda a, d=dim, k=keepdim: torch.logsumexp(a, d, k), in_dims=in_dim)(x),
            )
    close(torch.vmap(torch.vmap(torch.vmap(lambda a: week2.logsumexp(a, None))))(x), x.clone())


@pytest.mark.parametrize("device", DEVICES)
def test_vmap_of_the_gradients(device: str) -> None:
    x, grad = torch.randn(3, 4, 5, device=device), torch.randn(3, 4, 5, device=device)
    for ours, theirs in PAIRS.values():

        def pull(op: Any, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
            return torch.func.vjp(lambda a: op(a, -1), x)[1](g)[0]

        for dims in ((0, 0), (0, None), (None, 0), (1, 2)):
            args = [t if d is not None else t[0] for t, d in zip((x, grad), dims, strict=True)]
            if dims == (1, 2):
                args = [x, grad.transpose(1, 2)]
            close(torch.vmap(partial(pull, ours), dims)(*args), torch.vmap(partial(pull, theirs), dims)(*args))

    def sensitivity(op: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda a: (op(a, (0,)) ** 2).sum())(x)

    close(torch.vmap(partial(sensitivity, week2.logsumexp))(x), torch.vmap(partial(sensitivity, torch.logsumexp))(x))


@pytest.mark.parametrize("device", DEVICES)
def test_torch_func(device: str) -> None:
    x = torch.randn(4, 5, device=device)
    for ours, theirs in UNARY.values():
        close(torch.func.jacrev(ours)(x), torch.func.jacrev(theirs)(x))

        def curvature(op: Any) -> Any:
            return torch.func.jacrev(torch.func.grad(lambda a: (op(a) ** 2).sum()))

        close(curvature(ours)(x), curvature(theirs)(x))


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_is_pytorchs(device: str) -> None:
    x = torch.randn(4, 300, device=device).bfloat16().requires_grad_()
    # PyTorch computes them in fp32 under CUDA's autocast, and has no rule for the CPU's.
    wide = torch.float32 if device == "cuda" else torch.bfloat16
    pairs = (
        (week2.softmax, partial(torch.softmax, dim=-1)),
        (week2.log_softmax, partial(torch.log_softmax, dim=-1)),
        (partial(week2.logsumexp, dim=1), partial(torch.logsumexp, dim=1)),
    )
    for op, _ in pairs:
        for _ in range(20):  # until a call like these takes the shortest way, which the region must not
            assert op(x).dtype is torch.bfloat16
    with torch.autocast(device, dtype=torch.bfloat16):
        for op, theirs in pairs:
            y = op(x)
            assert y.dtype is theirs(x).dtype is wide
            (grad,) = torch.autograd.grad(y.sum(), x)
            assert grad.dtype is torch.bfloat16
            assert op(x.detach().double()).dtype is torch.float64
        assert week2.softmax(x, dtype=torch.float16).dtype is torch.float16
        close(week2.softmax(x), torch.softmax(x, -1))
    assert week2.softmax(x).dtype is torch.bfloat16


def test_fake_tensors_and_meta() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(3, 5, 7, device="cuda").transpose(0, 2)
        assert week2.softmax(x, 1).shape == (7, 5, 3)
        assert week2.softmax(x, 1).is_contiguous()
        assert week2.logsumexp(x, (0, 1), True).shape == (1, 1, 3)
    y = torch.empty(3, 4, device="meta", dtype=torch.int8)
    assert week2.softmax(y, dtype=torch.float16).dtype is torch.float16
    assert week2.logsumexp(y, 0).dtype is torch.float32
