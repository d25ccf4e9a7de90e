"""Errors against float64, by the rule of forge_core.testing.tolerances; on the CPU and on a GPU."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

import forge_week2_softmax as week2
from forge_core.testing import assert_near_float64
from forge_core.testing.softmax_bounds import (
    log_softmax_bound,
    log_softmax_gradient_bound,
    logsumexp_bound,
    logsumexp_gradient_bound,
    softmax_bound,
    softmax_gradient_bound,
)
from forge_core.testing.tolerances import half_ulp
from forge_week2_softmax.configs import PartsConfig
from forge_week2_softmax.roundings import sum_error

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KINDS = ("random", "sorted", "huge", "tiny", "constant", "one_hot", "infinite", "shifted", "wide")
VARIANTS = tuple(week2.softmax.variants())

#: What the kernels' loads, lanes, warps and blocks divide a row by; and primes, and a vocabulary.
COUNTS = (*range(1, 41), 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000, 1023, 1024, 1025, 2047, 2049)
COUNTS_GPU = (4095, 4096, 4097, 8191, 8192, 8193, 16383, 16385, 32768, 32769, 50257, 65535, 65536, 131071, 262145)


def numbers(kind, rows, count, dtype, device, seed=0):
    """Rows of one kind; what overflows the dtype is made smaller."""
    generator = torch.Generator(device=device).manual_seed(count + 7919 * seed)
    x = torch.randn(rows, count, device=device, dtype=torch.float64, generator=generator)
    large = 1e4 if dtype is torch.float16 else 1e30
    if kind == "sorted":
        x = (4 * x).sort(-1).values
        x[1::2] = x[1::2].flip(-1)
    elif kind == "huge":
        x = x * large
    elif kind == "tiny":
        x = x * 1e-30
    elif kind == "constant":
        x = x[:, :1].expand(rows, count).clone() * 10
    elif kind == "one_hot":
        place = torch.randint(0, count, (rows, 1), device=device, generator=generator)
        x = torch.zeros_like(x).scatter_(-1, place, 50.0)
    elif kind == "infinite":
        x[:, ::2] = -float("inf")
        x[:, 0] = 1.0
        x[-1] = -float("inf")
        if rows > 2:
            x[1, count // 2] = float("inf")
    elif kind == "shifted":
        x = x + 500.0
    elif kind == "wide":
        x = x * 30
    return x.to(dtype)


def accumulator(dtype):
    return torch.float64 if dtype is torch.float64 else torch.float32


def modelled(operator, *tensors, dim, variant):
    """What the model of the kernel that does a call says that a row's sum can lose; None where there is no kernel.

    Rows that are longer than a model is quick for have the bound of a balanced tree alone.
    """
    length = tensors[0].shape[dim]
    if not tensors[0].is_cuda or length > 2**20:
        return None
    told = operator.explain(*tensors, dim, variant=variant)
    return sum_error(told.config, length, told.arguments[1] if isinstance(told.config, PartsConfig) else 1)


def check_softmax(x, dim, variant="auto", what=""):
    exact, acc = x.double(), accumulator(x.dtype)
    y = week2.softmax(x, dim, variant=variant)
    bound = softmax_bound(exact, dim, acc, modelled(week2.softmax, x, dim=dim, variant=variant))
    assert_near_float64(y, exact.softmax(dim), torch.softmax(x, dim), floor=bound, what=f"softmax {what}")
    # Rows sum to 1 within what each element may be off by.
    total = (bound + half_ulp(exact.softmax(dim).nan_to_num(0.0), x.dtype)).sum(dim)
    off = (y.double().sum(dim) - 1).abs()
    if x.is_cuda or x.dtype.itemsize > 2:  # PyTorch's own for CPU tensors is less exact than that in half precision
        assert bool(((off <= total) | exact.softmax(dim).sum(dim).isnan()).all()), f"rows sum to 1: {what}"


def check_logarithms(x, dim, variant="auto", what=""):
    exact, acc = x.double(), accumulator(x.dtype)
    got = week2.log_softmax(x, dim, variant=variant)
    bound = log_softmax_bound(exact, dim, acc, modelled(week2.log_softmax, x, dim=dim, variant=variant))
    assert_near_float64(got, exact.log_softmax(dim), torch.log_softmax(x, dim), floor=bound, what=f"log {what}")
    got = week2.logsumexp(x, dim, variant=variant)
    bound = logsumexp_bound(exact, dim, acc, modelled(week2.logsumexp, x, dim=dim, variant=variant))
    assert_near_float64(got, exact.logsumexp(dim), torch.logsumexp(x, dim), floor=bound, what=f"lse {what}")


def gradient_of(x):
    generator = torch.Generator(device=x.device).manual_seed(5)
    return torch.randn(x.shape, device=x.device, generator=generator, dtype=torch.float64).to(x.dtype)


def check_softmax_backward(x, dim, variant="auto", what=""):
    """The gradient on the output that PyTorch saved, which tells its error from the forward pass's."""
    grad, acc = gradient_of(x), accumulator(x.dtype)
    g64 = grad.double()
    y = torch.softmax(x, dim)
    p = y.double()
    dot = (p * g64).sum(dim, keepdim=True)
    exact = p * (g64 - dot)
    got = week2.softmax_backward(grad, y, dim, variant=variant)
    of_sum = modelled(week2.softmax_backward, grad, y, dim=dim, variant=variant)
    bound = softmax_gradient_bound(g64, p, dim, acc, of_sum)
    peer = torch.ops.aten._softmax_backward_data(grad, y, dim, x.dtype)
    assert_near_float64(got, exact, peer, floor=bound, what=f"softmax' {what}")
    # A row's gradients sum to 0, but for roundings: theirs, and those of y, whose sum is not quite 1.
    total = (bound + half_ulp(exact.nan_to_num(0.0), x.dtype)).sum(dim) + (dot.squeeze(dim) * (1 - p.sum(dim))).abs()
    off = got.double().sum(dim).abs()
    if x.is_cuda or x.dtype.itemsize > 2:
        assert bool(((off <= total) | exact.sum(dim).isnan()).all()), f"gradient rows sum to 0: {what}"


def check_log_softmax_backward(x, dim, variant="auto", what=""):
    grad, acc = gradient_of(x), accumulator(x.dtype)
    g64 = grad.double()
    log = torch.log_softmax(x, dim)
    l64 = log.double()
    exact = g64 - l64.exp() * g64.sum(dim, keepdim=True)
    peer = torch.ops.aten._log_softmax_backward_data(grad, log, dim, x.dtype)
    got = week2.log_softmax_backward(grad, log, dim, variant=variant)
    of_sum = modelled(week2.log_softmax_backward, grad, log, dim=dim, variant=variant)
    bound = log_softmax_gradient_bound(g64, l64, dim, acc, of_sum)
    assert_near_float64(got, exact, peer, floor=bound, what=f"log_softmax' {what}")


def check_logsumexp_backward(x, dim, variant="auto", what=""):
    acc = accumulator(x.dtype)
    grad = gradient_of(x).narrow(dim, 0, 1)
    lse = torch.logsumexp(x, dim, keepdim=True)
    exact = grad.double() * (x.double() - lse.double()).exp()
    bound = logsumexp_gradient_bound(grad.double(), x.double(), lse.double(), acc)
    got = week2.logsumexp_backward(grad, x, lse, dim, keepdim=True, variant=variant)
    assert_near_float64(got, exact, grad * (x - lse).exp(), floor=bound, what=f"logsumexp' {what}")


#: Each check, with the number of tensors of whole rows that its operator reads, and that operator's name.
CHECKS = {
    "softmax": (check_softmax, 1),
    "logarithms": (check_logarithms, 1),
    "softmax_backward": (check_softmax_backward, 2),
    "log_softmax_backward": (check_log_softmax_backward, 2),
    "logsumexp_backward": (check_logsumexp_backward, 1),
}


def share(counts, dtype, name, of):
    """The counts of one dtype and operator; all for softmax of fp32 and bf16, forward and backward.

    How a row is read depends on its count and on the size of its elements, and what is computed from them on the
    operator: both meet in the same few lines for every count.  So each other pair gets every third count, or so, and
    another third than its neighbours.
    """
    if name in ("softmax", "softmax_backward") and dtype in (torch.bfloat16, torch.float32):
        return counts
    return counts[(FLOATS.index(dtype) + list(CHECKS).index(name)) % of :: of]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows_and_columns(dtype, name, device):
    check, _ = CHECKS[name]
    counts = share(COUNTS + COUNTS_GPU, dtype, name, 3) if device == "cuda" else COUNTS[::18]
    for count, kind in itertools.product(counts, KINDS):
        x = numbers(kind, 3, count, dtype, device)
        check(x, -1, what=f"{kind} {count} rows")
        if count <= 8193:
            check(x.t().contiguous(), 0, what=f"{kind} {count} columns")


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [700, 20000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_many_rows(dtype, rows):
    for count in (1, 2, 7, 32, 33, 64, 100, 129, 256, 1000, 1024, 2048, 3333):
        x = numbers("wide", rows, count, dtype, "cuda")
        for check in (check_softmax, check_softmax_backward):
            check(x, -1, what=f"{rows}x{count} rows")
            check(x, 0, what=f"{rows}x{count} columns")
        check_logarithms(x, -1, what=f"{rows}x{count} rows")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant(variant, dtype, attempt):
    done = 0
    counts = (1, 2, 3, 5, 8, 31, 33, 64, 100, 257, 1025, 2048, 4097, 8200, 50257, 2**18 + 1)
    for name, (check, tensors) in CHECKS.items():
        for count, kind in itertools.product(share(counts, dtype, name, 2), ("random", "huge", "infinite", "sorted")):
            x = numbers(kind, 3, count, dtype, "cuda")
            for y, dim in ((x, -1), (x.t().contiguous(), 0)):
                if dim == -1 or count <= 8200:
                    what = f"{variant} {name} {kind} {tuple(y.shape)} {dim}"
                    can = attempt.able(variant, y, dim, tensors=tensors, op=name)
                    call = partial(check, y, dim, variant, what)
                    done += attempt(lambda call=call: call() or 1, can) or 0
    assert done >= (50 if variant == "grid" else 80)  # which takes no row that ends inside a chunk


@pytest.mark.gpu
@pytest.mark.large(8)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_longest_rows(dtype):
    for rows, count in ((1, 2**20), (1, 2**20 + 3), (2, 2**22 + 1), (1, 2**24), (300, 2**17 + 5)):
        for kind in ("random", "huge", "sorted"):
            x = numbers(kind, rows, count, dtype, "cuda")
            for check, _ in CHECKS.values():
                check(x, -1, what=f"{kind} {rows}x{count}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_shift_invariance(dtype, device):
    for count in (9, 300, 5000):
        # Multiples of 1/4 between -8 and 8, so that a shift of 16 is exact in every dtype.
        generator = torch.Generator(device=device).manual_seed(count)
        x = torch.randint(-32, 33, (4, count), device=device, generator=generator).to(dtype) / 4
        first, second = week2.softmax(x), week2.softmax(x + 16)
        exact = x.double().softmax(-1)
        allowed = 2 * (softmax_bound(x.double(), -1, accumulator(dtype)) + half_ulp(exact, dtype))
        assert bool(((first.double() - second.double()).abs() <= allowed).all())
        moved = week2.logsumexp(x + 16, -1).double() - week2.logsumexp(x, -1).double()
        exact = (x.double() + 16).logsumexp(-1)
        allowed = 2 * (logsumexp_bound(x.double() + 16, -1, accumulator(dtype)) + half_ulp(exact, dtype))
        assert bool(((moved - 16).abs() <= allowed).all())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_end_to_end_gradients(dtype, device):
    for count in (5, 100, 4097):
        x = numbers("random", 6, count, dtype, device)
        grad = numbers("random", 6, count, dtype, device, seed=1)
        g64 = grad.double()
        for name, ours, theirs in (
            ("softmax", week2.softmax, torch.softmax),
            ("log_softmax", week2.log_softmax, torch.log_softmax),
        ):
            mine, other, exact = x.clone().requires_grad_(), x.clone().requires_grad_(), x.double().requires_grad_()
            ours(mine, -1).backward(grad)
            theirs(other, -1).backward(grad)
            theirs(exact, -1).backward(g64)
            # The saved output has the error of the forward pass, and is rounded to the dtype.
            y = theirs(x.double(), -1)
            forward = softmax_bound if name == "softmax" else log_softmax_bound
            off = forward(x.double(), -1, torch.float32) + half_ulp(y, dtype)
            if name == "softmax":
                dot = (y * g64).sum(-1, keepdim=True)
                lost = (off * g64.abs()).sum(-1, keepdim=True)
                saved = off * ((g64 - dot).abs() + lost) + y * lost
                floor = softmax_gradient_bound(g64, y, -1, torch.float32) + saved
            else:
                saved = y.exp() * off.expm1() * g64.sum(-1, keepdim=True).abs()
                floor = log_softmax_gradient_bound(g64, y, -1, torch.float32) + saved
            assert_near_float64(mine.grad, exact.grad, other.grad, floor=floor, what=f"{name} {count}")


@pytest.mark.gpu
@pytest.mark.large(60)
def test_more_than_two_to_the_31_elements():
    for shape in ((2**31 // 50257 + 1, 50257), (2, 2**30 + 8), (2**25 + 1, 64), (2**31 // 7 + 1, 7)):
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        y = week2.softmax(x)
        grad = week2.softmax_backward(x, y)
        lse = week2.logsumexp(x, -1)
        for row in (0, shape[0] // 2, shape[0] - 1):
            part, p = x[row].float(), y[row].float()
            # Of a row of 2^30 the largest is 1e-7, so nothing absolute.
            torch.testing.assert_close(y[row], torch.softmax(part, -1).bfloat16(), rtol=2.0**-6, atol=0)
            torch.testing.assert_close(lse[row], torch.logsumexp(part, -1).bfloat16())
            # PyTorch's own gradient rounds each product to bf16 before it adds them.
            want = p * (part - (p * part).sum())
            torch.testing.assert_close(grad[row].float(), want, rtol=2.0**-8, atol=1e-4 * want.abs().max().item())
        del x, y, grad, lse
        torch.cuda.empty_cache()
    # A dimension that is not the last, with strides past 2^31.
    x = torch.randn((3, 2**30 + 1), device="cuda", dtype=torch.bfloat16)
    y = week2.softmax(x, 0)
    for part in (slice(0, 1000), slice(2**30 - 999, 2**30 + 1)):
        torch.testing.assert_close(y[:, part], torch.softmax(x[:, part], 0))


@pytest.mark.gpu
@pytest.mark.large(60)
@pytest.mark.parametrize("shape, dim", [((1, 2**31 + 8), 1), ((2**31 + 8, 2), 0)], ids=str)
def test_one_row_of_more_than_two_to_the_31_elements(shape, dim):
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    exact = torch.stack([torch.logsumexp(row.float(), 0) for row in x.movedim(dim, -1)])
    lse = week2.logsumexp(x, dim)
    torch.testing.assert_close(lse.float(), exact, rtol=2.0**-7, atol=0)
    y = week2.softmax(x, dim)
    leaf = x.detach().requires_grad_()
    week2.logsumexp(leaf, dim).sum().backward()
    for part in (slice(0, 1000), slice(2**31 - 500, 2**31 + 8)):
        some = x.narrow(dim, part.start, part.stop - part.start).float()
        want = torch.exp(some - exact.unsqueeze(dim))
        got = y.narrow(dim, part.start, part.stop - part.start).float()
        torch.testing.assert_close(got, want, rtol=2.0**-7, atol=0)
        # The gradient starts from a result that was rounded to bf16, by at most 2^-9 of about 22.
        slope = leaf.grad.narrow(dim, part.start, part.stop - part.start).float()
        torch.testing.assert_close(slope, want, rtol=2.0**-3, atol=0)
