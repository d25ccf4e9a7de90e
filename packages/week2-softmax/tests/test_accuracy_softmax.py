"""Errors against float64, by the rule of forge_core.testing.tolerances; and against PyTorch's own."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch

import forge_week2_softmax as week2
from forge_week2_softmax.proofs import PROOFS

pytestmark = pytest.mark.gpu

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KINDS = ("random", "sorted", "huge", "tiny", "constant", "one_hot", "infinite", "shifted", "wide")
SUBJECTS = {subject.name: subject for subject in PROOFS.subjects}
#: Operators that read two tensors of whole rows.
OF_TWO = ("softmax_backward", "log_softmax_backward")
ENGINE = ("stream", "column", "split", "grid", "held")
LADDER = ("naive", "online", "single_pass")

#: What the kernels' loads, lanes, warps and blocks divide a row by; and primes, and a vocabulary.
COUNTS = (
    *(*range(1, 41), 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000, 1023, 1024, 1025, 2047, 2049),
    *(4095, 4096, 4097, 8191, 8192, 8193, 16383, 16385, 32768, 32769, 50257, 65535, 65536, 131071, 262145),
)


def numbers(kind, rows, count, dtype, seed=0):
    """Rows of one kind; what overflows the dtype is made smaller."""
    generator = torch.Generator(device="cuda").manual_seed(count + 7919 * seed)
    x = torch.randn(rows, count, device="cuda", dtype=torch.float64, generator=generator)
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
        place = torch.randint(0, count, (rows, 1), device="cuda", generator=generator)
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


def check_bound(name, x, dim, variant="auto", what=""):
    """One call is within its derived bound; gradients start from PyTorch's output, apart from the forward pass."""
    subject, forward = SUBJECTS[name], name.removesuffix("_backward")
    args = (x, dim)
    if name != forward:
        y = getattr(torch, forward)(x, dim)
        generator = torch.Generator(device="cuda").manual_seed(5)
        grad = torch.randn(y.shape, device="cuda", generator=generator, dtype=torch.float64).to(x.dtype)
        args = (grad, y, dim) if name in OF_TWO else (grad, x, y, dim)
    got = subject.operator(*args, variant=variant)
    subject.judge(got, args, {}, f"{name} {what} {tuple(x.shape)} {dim} {variant}")


def share(counts, dtype, name, of):
    """The counts of one dtype and operator; all for softmax of fp32 and bf16, forward and backward.

    How a row is read depends on its count and the size of its elements, what is computed from them on the operator:
    each other pair gets some of the counts, and others than its neighbors.
    """
    if name in ("softmax", "softmax_backward") and dtype in (torch.bfloat16, torch.float32):
        return counts
    return counts[(FLOATS.index(dtype) + list(SUBJECTS).index(name)) % of :: of]


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows_and_columns(dtype, name):
    for count, kind in itertools.product(share(COUNTS, dtype, name, 3), KINDS):
        x = numbers(kind, 3, count, dtype)
        check_bound(name, x, -1, what=kind)
        if count <= 8193:
            check_bound(name, x.t().contiguous(), 0, what=kind)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", SUBJECTS)
def test_permuted_rows(name, dtype):
    """Rows whose elements are apart, with neighbors beside them, and whose results are contiguous."""
    shapes = (
        (700, 3),
        (1, 90),
        (5000, 20),
        (40000, 20),
        (33, 33),
        (40, 64),
        (4300, 65),
        (129, 257),
        (130, 1100),
        (12, 4097),
        (300, 3000),
    )
    for rows, count in shapes:
        x = numbers("wide", count, rows, dtype)
        check_bound(name, x.t(), -1, what="permuted")
        if name in OF_TWO:
            y, subject = getattr(torch, name.removesuffix("_backward"))(x.t(), -1), SUBJECTS[name]
            for args in ((x.t(), y, -1), (x.t(), y.t().contiguous().t(), -1)):
                subject.judge(subject.operator(*args), args, {}, f"{name} {rows} {count}")
        if rows % 4 == 0:  # the dim along which rows are neighbors is not the result's innermost one
            check_bound(name, x.view(count, 4, rows // 4).permute(2, 1, 0), -1, what="reversed")
            check_bound(name, x.view(4, count, rows // 4).transpose(1, 2), -1, what="batch")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("variant", ENGINE)
@pytest.mark.parametrize("name", SUBJECTS)
def test_each_variant(name, variant, dtype, attempt):
    done = 0
    counts = share((1, 2, 3, 5, 8, 31, 33, 64, 100, 257, 1025, 2048, 4097, 8200, 50257, 2**18 + 1), dtype, name, 2)
    for count, kind in itertools.product(counts, ("random", "huge", "infinite", "sorted")):
        x = numbers(kind, 3, count, dtype)
        for y, dim in ((x, -1), (x.t().contiguous(), 0)):
            if dim == -1 or count <= 8200:
                can = attempt.able(variant, y, dim, tensors=1 + (name in OF_TWO), op=name)
                call = partial(check_bound, name, y, dim, variant, kind)
                done += attempt(lambda call=call: call() or 1, can) or 0
    assert done >= 12 or (name, variant) in (("logsumexp_backward", "split"), ("logsumexp_backward", "grid"))


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
@pytest.mark.parametrize("variant", LADDER)
def test_the_ladder(variant, dtype, attempt):
    for shape in ((300, 64), (70, 1000), (33, 8192), (2, 30000)):
        for kind in ("random", "huge", "infinite", "nan"):
            x = numbers(kind, *shape, dtype)
            if kind == "nan":
                x[0, 5], x[1, 7] = float("nan"), float("inf")
            done = attempt(partial(check_bound, "softmax", x, -1, variant, kind), attempt.able(variant, x, -1))
            assert done is None  # what is wrong is raised
    x = numbers("random", 64, 90, dtype).t()
    attempt(partial(check_bound, "softmax", x.contiguous(), 0, variant), attempt.able(variant, x.contiguous(), 0))


@pytest.mark.large(8)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_longest_rows(dtype):
    for rows, count in ((1, 2**20), (1, 2**20 + 3), (2, 2**22 + 1), (1, 2**24), (300, 2**17 + 5)):
        for kind, name in itertools.product(("random", "huge", "sorted"), SUBJECTS):
            check_bound(name, numbers(kind, rows, count, dtype), -1, what=kind)


def test_errors_are_not_larger_than_pytorchs():
    """The largest relative error in fp32, relative to that of torch.softmax: the geometric mean over 64 inputs."""
    ratios = []
    for seed in range(64):
        x = torch.randn(64, 4096, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
        x = x if seed < 22 else x * 30 if seed < 43 else x + 100
        exact = x.double().softmax(-1)
        # Results below the smallest normal number may be flushed to 0.
        normal = exact >= torch.finfo(torch.float32).tiny
        mine, theirs = (
            ((y.double() - exact).abs() / exact)[normal].max().item() for y in (week2.softmax(x), torch.softmax(x, -1))
        )
        ratios.append(math.log(mine / theirs))
    assert math.exp(sum(ratios) / len(ratios)) <= 1.1


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
