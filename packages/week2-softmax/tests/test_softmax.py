"""Options of softmax beside what every operator has: dims, dtypes, modules, autocast, registry, PyTorch's errors."""

from __future__ import annotations

import copy
import io
import itertools
from functools import partial

import pytest
import torch

import forge_week2_softmax as week2
from forge_core.errors import ArgumentError, DTypeError, RepeatedDimError, ShapeError, UnsupportedError
from forge_core.op import backend
from forge_core.testing.conformance import Dispatched, check_opcheck
from forge_week2_softmax import nn

each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
PAIRS = {"softmax": (week2.softmax, torch.softmax), "log_softmax": (week2.log_softmax, torch.log_softmax)}
each_pair = pytest.mark.parametrize("name", PAIRS)
MODULES = {"softmax": (nn.Softmax, torch.nn.Softmax), "log_softmax": (nn.LogSoftmax, torch.nn.LogSoftmax)}


def numbers(shape, dtype=torch.float32, device="cpu", *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(tuple(shape), generator=generator) * 3).to(dtype).to(device)


def same(got, want, what=""):
    """Layout and dtype exactly, values as torch.testing compares them; the accuracy has tests of its own."""
    assert got.is_contiguous(), what
    torch.testing.assert_close(got, want, equal_nan=True, msg=lambda text: f"{what}: {text}")


def same_gradient(ours, theirs, x, weight):
    found = []
    for op in (ours, theirs):
        leaf = x.detach().requires_grad_()
        y = op(leaf)
        found.append(torch.autograd.grad(y, leaf, weight.to(y.dtype).expand_as(y))[0])
    torch.testing.assert_close(*found, equal_nan=True)


def modes(device):
    """How gradients are recorded: as they are, and on the CPU also by the dispatcher, which is the operator's rule."""
    return (torch.enable_grad, Dispatched) if device == "cpu" else (torch.enable_grad,)


# --------------------------------------------------------------------------------------------------- dims and dtypes


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


@each_device
@pytest.mark.parametrize("pair", CONVERSIONS, ids=str)
def test_dtype_converts_each_element_first(pair, device):
    src, dst = pair
    for shape in ((33, 200), (5, 4097)):
        x = numbers(shape, device=device)
        x = x.to(src) if src.is_floating_point else x.abs().mul(2).to(torch.uint8).to(src)
        for dim, (ours, theirs) in itertools.product((0, -1), PAIRS.values()):
            # Converting first rounds to `dst` before the arithmetic, which tells it from rounding the result.
            same(ours(x, dim, dtype=dst), theirs(x.to(dst), dim), f"{shape} {dim}")


@each_device
@each_pair
def test_a_call_with_a_dtype_and_its_gradient(name, device):
    ours, theirs = PAIRS[name]
    check_opcheck(ours, (torch.randn(3, 5, device=device, requires_grad=True),), {"dtype": torch.float64})
    check_opcheck(ours, (torch.randint(-5, 5, (3, 5), device=device),), {"dtype": torch.float32})
    check_opcheck(week2.logsumexp, (torch.randint(-5, 5, (3, 5), device=device), 1))
    grad, y = torch.randn(6, 8, device=device).t(), torch.randn(6, 8, device=device).t()
    check_opcheck(getattr(week2, f"{name}_backward"), (grad, y, 0), {"input_dtype": torch.bfloat16})
    x = numbers((3, 40), torch.bfloat16, device)
    options = {"dim": -1, "dtype": torch.float32}
    same_gradient(partial(ours, **options), partial(theirs, **options), x, numbers((3, 40), device=device, seed=1))


def test_defaults_of_the_moment():
    x = torch.arange(30).view(5, 6)
    same(week2.softmax(x.float()), torch.softmax(x.float(), -1), "the last dimension is the default")
    same(week2.logsumexp(x, ()), torch.logsumexp(x, (0, 1)), "no dimension is every one")
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        same(week2.logsumexp(x, 1), torch.logsumexp(x, 1), "integers have the default dtype of the moment")
    finally:
        torch.set_default_dtype(before)
    same(week2.logsumexp(x, 1), torch.logsumexp(x, 1))
    assert week2.logsumexp(x.to("meta"), 0).dtype is torch.float32


# --------------------------------------------------------------------------------------------------------- gradients


@each_device
def test_gradients_of_rows_with_infinities(device):
    x, weight = (numbers((6, 300), device=device, seed=seed) for seed in (0, 1))
    x[1, 7], x[2, 9] = float("nan"), float("inf")
    x[3, 5:9] = -float("inf")
    x[4] = -float("inf")
    for mode in modes(device):
        with mode():
            for ours, theirs in PAIRS.values():
                same_gradient(partial(ours, dim=1), partial(theirs, dim=1), x, weight)
            lse = (partial(f, dim=1) for f in (week2.logsumexp, torch.logsumexp))
            same_gradient(*lse, x, weight[:, 0])


@each_device
def test_a_gradient_in_the_dtype_of_the_input_and_of_one_number(device):
    grad, y = numbers((6, 50), device=device), torch.softmax(numbers((6, 50), device=device, seed=1), 1)
    half = week2.softmax_backward(grad, y, input_dtype=torch.bfloat16)
    same(half, (y * (grad - (y * grad).sum(1, keepdim=True))).bfloat16())
    # Expanded: what sum().backward() passes on.
    one = torch.ones((), device=device).expand(6, 50)
    torch.testing.assert_close(week2.softmax_backward(one, y, 0), y * (1 - y.sum(0)), atol=1e-6, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["stream", "column", "split", "held"])
def test_gradients_by_each_variant(variant, attempt):
    """A variant that is asked for serves the gradient too."""
    for shape, dim in (((3, 7), 1), ((7, 3), 0), ((2, 40), 1)):
        x = torch.randn(shape, device="cuda", dtype=torch.float64, requires_grad=True)
        for op, _ in PAIRS.values():
            call = partial(torch.autograd.gradcheck, partial(op, dim=dim, variant=variant), x)
            assert attempt(call, attempt.able(variant, x, dim)) in (True, None)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["naive", "online", "single_pass"])
def test_the_gradient_of_a_ladder_variant_is_that_of_auto(variant):
    x = torch.randn(30, 1024, device="cuda")
    # Squares of probabilities are small: without the factor any gradient would be near enough.
    same_gradient(lambda x: week2.softmax(x, variant=variant) ** 2, lambda x: x.softmax(-1) ** 2, x, 1e3 * x)


@each_device
def test_autocast_is_pytorchs(device):
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
            assert torch.autograd.grad(y.sum(), x)[0].dtype is torch.bfloat16
            assert op(x.detach().double()).dtype is torch.float64
        assert week2.softmax(x, dtype=torch.float16).dtype is torch.float16
        torch.testing.assert_close(week2.softmax(x), torch.softmax(x, -1))
    assert week2.softmax(x).dtype is torch.bfloat16


# ----------------------------------------------------------------------------------- modules, the registry, the package


@pytest.mark.usefixtures("dispatched")
@each_pair
def test_a_module_is_torchs(name):
    ours, theirs = MODULES[name]
    x = torch.randn(3, 4, 5, requires_grad=True)
    for module, expected in ((ours(), theirs(-1)), (ours(0), theirs(0)), (ours(dim=1), theirs(dim=1))):
        assert isinstance(module, theirs) and repr(module) == repr(expected)
        y = module(x)
        torch.testing.assert_close(y, expected(x))
        assert f"forge_week2_{name}_" in type(y.grad_fn).__name__


@each_pair
def test_a_module_is_saved_copied_and_compiled(name):
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), MODULES[name][0](0))
    x, stored = torch.randn(3, 5), io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    for other in (copy.deepcopy(model), torch.load(stored, weights_only=False), torch.compile(model, fullgraph=True)):
        torch.testing.assert_close(other(x), model(x))


@each_device
def test_the_registry_of_the_course(device):
    assert week2.softmax_online is week2.softmax
    assert week2.list_softmax_online_backends() == ("kernel", "ref")
    assert week2.get_softmax_online_backend() == "kernel"
    x = torch.randn(300, 500, device=device, requires_grad=True)
    try:
        for name in week2.list_softmax_online_backends():
            week2.set_softmax_online_backend(name)
            assert week2.get_softmax_online_backend() == name
            # CPU tensors are the reference's, whatever serves CUDA tensors.
            served = "ref" if device == "cpu" else name
            assert week2.softmax_online.explain(x).backend == served
            y = week2.softmax_online(x)
            if served == "ref":
                assert torch.equal(y, torch.softmax(x, -1))
                want = torch.ops.aten._softmax_backward_data(x.detach(), y.detach(), -1, x.dtype)
                assert torch.equal(torch.autograd.grad(y, x, x.detach())[0], want)
        if device == "cuda":
            with pytest.raises(ArgumentError, match="'ref', which has no variants"):
                week2.softmax_online(x, variant="online")
            with backend("kernel"):  # a block wins
                assert week2.softmax_online.explain(x).backend == "kernel"
    finally:
        week2.set_softmax_online_backend("kernel")
    with pytest.raises(ArgumentError, match="'kernel', 'ref'"):
        week2.set_softmax_online_backend("triton")
    assert week2.get_softmax_online_backend() == "kernel"


def test_the_variants_of_each_operator():
    engine = ("stream", "column", "split", "grid", "held")
    assert tuple(week2.softmax.variants()) == ("naive", "online", "single_pass", *engine)
    others = (week2.log_softmax, week2.logsumexp, week2.softmax_backward, week2.log_softmax_backward)
    assert {tuple(op.variants()) for op in (*others, week2.logsumexp_backward)} == {engine}


# ------------------------------------------------------------------------------------------------------------ errors


@each_device
def test_errors_are_of_pytorchs_kinds(device):
    x = torch.ones(3, 4, device=device)
    for op in (week2.softmax, week2.log_softmax):
        with pytest.raises(IndexError):
            op(x[0, 0], 1)
        for dtype in (torch.int64, torch.bool, torch.uint8):
            with pytest.raises(RuntimeError, match=r"'x'.*dtype= to convert to.*float32") as caught:
                op(x.to(dtype))
            assert isinstance(caught.value, DTypeError)
        for dtype in (torch.int32, torch.complex64, torch.bool):
            with pytest.raises(DTypeError, match=r"'dtype'.*float16, bfloat16, float32, float64"):
                op(x, dtype=dtype)
        for dtype in (None, torch.float32):
            with pytest.raises(DTypeError, match="complex64"):
                op(x.to(torch.complex64), dtype=dtype)
    with pytest.raises(DTypeError, match="complex64"):
        week2.logsumexp(x.to(torch.complex64), 0)
    with pytest.raises(RuntimeError, match="each dimension once") as caught:
        week2.logsumexp(x, (0, -2))
    assert isinstance(caught.value, RepeatedDimError)
    with pytest.raises(IndexError):
        week2.logsumexp(x, (0, 2))
    with pytest.raises(TypeError, match="dim"):
        week2.logsumexp(x)


@each_device
def test_what_the_gradients_refuse(device):
    grad, y = torch.ones(3, 4, device=device), torch.full((3, 4), 0.25, device=device)
    for op in (week2.softmax_backward, week2.log_softmax_backward):
        with pytest.raises(ShapeError, match="'y'"):
            op(grad, y.t())
        with pytest.raises(DTypeError, match=r"'y'.*dtype of 'grad'"):
            op(grad, y.double())
        with pytest.raises(DTypeError, match="'grad'"):
            op(grad.int(), y.int())
        with pytest.raises(DTypeError, match="'input_dtype'"):
            op(grad, y, input_dtype=torch.int32)
    lse = torch.ones(3, device=device)
    with pytest.raises(ShapeError, match="'grad'"):
        week2.logsumexp_backward(grad, y, lse, 1)
    with pytest.raises(ShapeError, match="'grad'"):
        week2.logsumexp_backward(lse, y, lse, 1, keepdim=True)
    with pytest.raises(DTypeError, match="'lse'"):
        week2.logsumexp_backward(lse, y, lse.double(), 1)


def test_a_variant_that_cannot_is_an_error_that_names_those_that_can():
    x, explain = torch.ones(40, 64), partial(week2.softmax.explain, arch="sm_90a")
    with pytest.raises(UnsupportedError, match=r"'column' was asked for.*'naive', 'online', 'single_pass', 'stream'"):
        explain(x, -1, variant="column")
    for refused in (x.double(), x.int()):  # the ladder converts nothing, and has no gradient
        with pytest.raises(UnsupportedError, match=r"'online' was asked for.*'stream'"):
            explain(refused, -1, dtype=torch.float64, variant="online")
    with pytest.raises(ArgumentError, match="'auto' or one of 'stream'"):
        week2.softmax_backward(x, x, -1, variant="online")
