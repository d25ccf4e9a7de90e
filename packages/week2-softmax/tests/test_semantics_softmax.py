"""PyTorch's own semantics: dims, dtypes, NaN, infinities, nothing, layouts, out; on the CPU and on a GPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import forge_week2_softmax as week2

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
PAIRS = {"softmax": (week2.softmax, torch.softmax), "log_softmax": (week2.log_softmax, torch.log_softmax)}
VARIANTS = tuple(week2.softmax.variants())


def numbers(shape, dtype=torch.float32, device="cpu", *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(tuple(shape), generator=generator) * 3).to(dtype).to(device)


def same(got, want, what=""):
    """Layout and dtype exactly, values as torch.testing compares them; the accuracy has tests of its own."""
    assert got.is_contiguous(), what
    torch.testing.assert_close(got, want, equal_nan=True, msg=lambda text: f"{what}: {text}")


def lse_of(x, dim, keepdim=False):
    """PyTorch's, rounded once: its own in half precision is made of several operations, each of which rounds."""
    if x.dtype.is_floating_point and x.dtype.itemsize == 2:
        return torch.logsumexp(x.float(), dim, keepdim).to(x.dtype)
    return torch.logsumexp(x, dim, keepdim)


def same_lse(got, x, dim, what=""):
    """On the CPU the reference is PyTorch's own, with its roundings."""
    same(got, lse_of(x, dim) if x.is_cuda else torch.logsumexp(x, dim), what)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_dimension(dtype, name, device):
    ours, theirs = PAIRS[name]
    for shape in ((7,), (5, 9), (3, 70, 40), (2, 3, 4, 5), (1, 1, 6)):
        x = numbers(shape, dtype, device)
        for dim in range(-len(shape), len(shape)):
            same(ours(x, dim), theirs(x, dim), f"{shape} {dim}")
    same(ours(x), theirs(x, -1), "the last dimension is the default")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("keepdim", [False, True])
def test_logsumexp_over_every_combination_of_dimensions(keepdim, device):
    x = numbers((2, 3, 4, 5), device=device)
    for count in range(1, 5):
        for dims in itertools.permutations(range(4), count):
            signed = tuple(d - 4 if i % 2 else d for i, d in enumerate(dims))
            same(week2.logsumexp(x, signed, keepdim), torch.logsumexp(x, signed, keepdim), signed)
    for dim in (1, -1, [0, 2]):
        same(week2.logsumexp(x, dim, keepdim), torch.logsumexp(x, dim, keepdim), dim)
    for every in (None, ()):
        same(week2.logsumexp(x, every, keepdim), torch.logsumexp(x, (0, 1, 2, 3), keepdim), every)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_rows_with_infinities(device):
    x = numbers((6, 300), device=device)
    x[1, 7], x[2, 9] = float("nan"), float("inf")
    x[3, 5:9] = -float("inf")
    x[4] = -float("inf")
    weight = numbers((6, 300), device=device, seed=1)
    for ours, theirs in PAIRS.values():
        mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        ours(mine, 1).backward(weight)
        theirs(other, 1).backward(weight)
        torch.testing.assert_close(mine.grad, other.grad, equal_nan=True)
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    week2.logsumexp(mine, 1).backward(weight[:, 0])
    torch.logsumexp(other, 1).backward(weight[:, 0])
    torch.testing.assert_close(mine.grad, other.grad, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_a_tensor_without_dimensions(device):
    x = torch.tensor(3.5, device=device, requires_grad=True)
    for dim in (0, -1):
        same(week2.softmax(x, dim), torch.softmax(x, dim))
        same(week2.log_softmax(x, dim), torch.log_softmax(x, dim))
        for keepdim in (False, True):
            same(week2.logsumexp(x, dim, keepdim), torch.logsumexp(x, dim, keepdim))
        (gradient,) = torch.autograd.grad(week2.softmax(x, dim), x)
        assert gradient.item() == 0
        (gradient,) = torch.autograd.grad(week2.logsumexp(x, dim), x)
        assert gradient.item() == 1


@pytest.mark.usefixtures("dispatched")
def test_gradients_of_rows_with_infinities_by_the_dispatcher():
    test_gradients_of_rows_with_infinities("cpu")
    test_a_tensor_without_dimensions("cpu")


CONVERSIONS = (
    (torch.float32, torch.float16),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float64),
    (torch.float64, torch.bfloat16),
    (torch.float64, torch.float32),
    (torch.int32, torch.float32),
    (torch.int64, torch.float64),
    (torch.int8, torch.float16),
    (torch.uint8, torch.bfloat16),
    (torch.int16, torch.float32),
    (torch.bool, torch.float32),
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pair", CONVERSIONS, ids=str)
def test_dtype_converts_each_element_first(pair, device):
    src, dst = pair
    for shape in ((33, 200), (5, 4097)):
        x = numbers(shape, device=device)
        x = x.to(src) if src.is_floating_point else x.abs().mul(2).to(torch.uint8).to(src)
        for dim in (0, -1):
            for ours, theirs in PAIRS.values():
                # Converting first rounds to `dst` before the arithmetic, which tells it from rounding the result.
                same(ours(x, dim, dtype=dst), theirs(x.to(dst), dim), f"{shape} {dim}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_logsumexp_of_integers(dtype, device):
    x = numbers((9, 130), device=device).abs().to(torch.uint8).to(dtype)
    for dim in (0, 1, (0, 1)):
        same(week2.logsumexp(x, dim), torch.logsumexp(x, dim))
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        same(week2.logsumexp(x, 1), torch.logsumexp(x, 1), "the default dtype of the moment")
    finally:
        torch.set_default_dtype(before)
    same(week2.logsumexp(x, 1), torch.logsumexp(x, 1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PAIRS)
def test_dimensions_and_dtypes_may_be_written_as_pytorch_lets_them(name, device):
    ours, theirs = PAIRS[name]
    x = numbers((3, 5, 4), device=device).requires_grad_()
    for dim, plain in ((np.int64(1), 1), (torch.tensor(0), 0)):
        got, want = ours(x, dim, dtype=float), theirs(x, plain, dtype=float)
        same(got, want)
        weights = torch.randn_like(want)
        same(*(torch.autograd.grad((y * weights).sum(), x)[0] for y in (got, want)))
        same(ours(x.detach(), dim), theirs(x.detach(), plain))
        same_lse(week2.logsumexp(x.detach(), (dim,)), x.detach(), plain)


@pytest.mark.parametrize("device", DEVICES)
def test_the_gradients_as_operators(device):
    grad, x = numbers((6, 50), device=device), numbers((6, 50), device=device, seed=1)
    y, log_y, lse = torch.softmax(x, 1), torch.log_softmax(x, 1), torch.logsumexp(x, 1)
    same(week2.softmax_backward(grad, y), y * (grad - (y * grad).sum(1, keepdim=True)))
    same(week2.log_softmax_backward(grad, log_y, 1), grad - y * grad.sum(1, keepdim=True))
    same(week2.logsumexp_backward(grad[:, 0], x, lse, 1), grad[:, :1] * y)
    same(week2.logsumexp_backward(grad[:, :1], x, lse[:, None], 1, True), grad[:, :1] * y)
    # A gradient that is one number, expanded: what sum().backward() passes on.
    one = torch.ones((), device=device).expand(6, 50)
    torch.testing.assert_close(week2.softmax_backward(one, y, 0), y * (1 - y.sum(0)), atol=1e-6, rtol=1e-5)
    half = week2.softmax_backward(grad, y, input_dtype=torch.bfloat16)
    same(half, (y * (grad - (y * grad).sum(1, keepdim=True))).bfloat16())
