"""Options of the reductions beside what every operator has: dims, dtypes, names, autocast, and PyTorch's errors."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch._dynamo

import forge_week1_reduce as week1
from forge_core.errors import ArgumentError, DTypeError, RepeatedDimError, UnsupportedError
from forge_core.testing.conformance import Dispatched, check_opcheck

each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
OPS = (week1.reduce_sum, week1.mean, week1.prod, week1.amax, week1.amin)
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.schema.name)
NAMES = {"sum": week1.reduce_sum, "mean": week1.mean, "prod": week1.prod, "amax": week1.amax, "amin": week1.amin}


def integers(shape, dtype, device="cpu", *, seed=0):
    """Small whole numbers, whose sums are exact in every dtype that holds them: any order gives the same bits."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8 if dtype.is_signed else 0, 9, tuple(shape), generator=generator).to(dtype).to(device)


def same(got, want, what=""):
    assert got.is_contiguous(), what
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{what}: {text}")


@each_device
@pytest.mark.parametrize("keepdim", [False, True])
def test_every_combination_of_dimensions(keepdim, device):
    x = integers((2, 3, 4, 5), torch.float32, device)
    for count in range(1, 5):
        for dims in itertools.permutations(range(4), count):
            signed = tuple(d - 4 if i % 2 else d for i, d in enumerate(dims))
            same(week1.reduce_sum(x, signed, keepdim), torch.sum(x, signed, keepdim), signed)
            same(week1.amax(x, list(signed), keepdim), torch.amax(x, signed, keepdim), signed)
    same(week1.reduce_sum(x, None, keepdim), torch.sum(x, None, keepdim))
    same(week1.reduce_sum(x, (), keepdim), torch.sum(x, (), keepdim))
    same(week1.amin(x, None, keepdim), torch.amin(x, (), keepdim))


@each_device
def test_reduce_names_the_family(device):
    x = torch.rand(5, 6, 4, device=device) + 0.5
    for name, op in {**NAMES, "max": week1.amax, "min": week1.amin}.items():
        same(week1.reduce(x, 0, name), op(x, 0))
        same(week1.reduce(x, op=name, keepdim=True), op(x, -1, True))
        for dim in (None, 0, -1, ()):
            same(week1.reduce(x[0, 0, 0], dim, name), x[0, 0, 0].clone())
    assert week1.reduce(x, op="sum", dtype=torch.float64).dtype is torch.float64
    assert week1.reduce_sum(torch.tensor(True, device=device)).dtype is torch.int64
    out = torch.empty(5, 4, device=device)
    assert week1.reduce(x, 1, "max", out=out) is out
    same(out, torch.amax(x, 1))
    with pytest.raises(ValueError, match="'sum', 'mean', 'amax', 'amin', 'prod', 'max', 'min'"):
        week1.reduce(x, op="median")
    with pytest.raises(ArgumentError, match=r"'dtype'.*None"):
        week1.reduce(x, op="amax", dtype=torch.float64)


@each_device
def test_reduce_by_name_compiles_with_its_gradient(device):
    torch._dynamo.reset()

    def model(x):
        return week1.reduce(x * 2, (0, 2), "mean", True) + week1.reduce(x, None, "max")

    compiled = torch.compile(model, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    x = torch.randn(3, 5, 7, device=device, requires_grad=True)
    want = torch.autograd.grad(((x * 2).mean((0, 2), True) + x.amax()).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x), want)


CONVERSIONS = (
    (torch.float32, torch.float16),
    (torch.float32, torch.int32),
    (torch.float32, torch.bool),
    (torch.bfloat16, torch.float32),
    (torch.float64, torch.bfloat16),
    (torch.float16, torch.float64),
    (torch.int32, torch.float32),
    (torch.int64, torch.int8),
    (torch.bool, torch.float32),
    (torch.uint8, torch.int16),
)


@each_device
@pytest.mark.parametrize("pair", CONVERSIONS, ids=str)
def test_dtype_converts_each_element_first(pair, device):
    src, dst = pair
    x = integers((33, 200), src, device)
    if src.is_floating_point:
        x = x + 0.5  # tells truncation of each element from truncation of the sum
    for dim in (0, -1, None):
        converted = x.to(dst)
        half = dst.is_floating_point and dst.itemsize == 2
        want = converted.float().sum(dim).to(dst) if half else torch.sum(x, dim, dtype=dst)
        same(week1.reduce_sum(x, dim, dtype=dst), want)
        if dst.is_floating_point:
            assert week1.mean(x, dim, dtype=dst).dtype is dst


@each_device
@pytest.mark.parametrize("op", [week1.reduce_sum, week1.mean, week1.prod], ids=lambda op: op.schema.name)
def test_a_call_with_a_dtype_and_its_gradient(op, device):
    check_opcheck(op, (torch.randn(3, 5, device=device, requires_grad=True),), {"dtype": torch.float64})
    x = torch.randn(3, 4, device=device).bfloat16().requires_grad_()
    for mode in (torch.enable_grad(), *([Dispatched()] if device == "cpu" else [])):
        with mode:
            y = op(x, dtype=torch.float32)
            assert y.dtype is torch.float32
            assert torch.autograd.grad(y.sum(), x)[0].dtype is torch.bfloat16


@each_device
@each_op
def test_a_dim_that_is_a_symbol_of_the_graph(op, device):
    torch._dynamo.reset()
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager", dynamic=True)
    for shape, dim in (((3, 5), 1), ((4, 7), 0), ((2, 3), (0, 1))):
        x = torch.randn(shape, device=device)
        torch.testing.assert_close(compiled(x, dim), op(x, dim))


@each_device
def test_gradients_of_sums_are_views_ties_share_and_zeros_are_factors(device):
    x, weight = torch.randn(3, 4, device=device, requires_grad=True), torch.randn(3, device=device)
    ties = torch.tensor([[1.0, 3.0, 3.0, -2.0, -2.0, -2.0], [0.0] * 6], device=device)
    for mode in (torch.enable_grad(), *([Dispatched()] if device == "cpu" else [])):
        with mode:
            (gradient,) = torch.autograd.grad(week1.reduce_sum(x), x, weight)
            assert gradient.stride() == (1, 0) and gradient.data_ptr() == weight.data_ptr()
            for (name, dim), zeros in itertools.product(
                (("amax", -1), ("amin", 0), ("prod", -1), ("prod", 0)), range(3)
            ):
                leaf = ties.clone() if name != "prod" else torch.randn(3, 6, device=device, dtype=torch.float64)
                leaf[:, :zeros] = 0
                leaf.requires_grad_()
                found = (torch.autograd.grad(f(leaf, dim).sum(), leaf)[0] for f in (NAMES[name], getattr(torch, name)))
                torch.testing.assert_close(*found)


@each_device
def test_autocast_is_pytorchs(device):
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


@each_device
def test_errors_are_of_pytorchs_kinds(device):
    x = torch.ones(3, 4, device=device)
    for op in OPS:
        with pytest.raises(IndexError, match="range from -2 to 1"):
            op(x, (0, 2))
        with pytest.raises(RuntimeError, match="each dimension once") as caught:
            op(x, (0, -2))
        assert isinstance(caught.value, RepeatedDimError)
    for op, dim in itertools.product((week1.amax, week1.amin), (-1, None)):
        with pytest.raises(IndexError, match="non-zero size"):
            op(x[:, :0], dim)
    with pytest.raises(RuntimeError, match="floating-point") as caught:
        week1.mean(x.int())
    assert isinstance(caught.value, DTypeError)
    with pytest.raises(DTypeError, match=r"'dtype'.*floating-point"):
        week1.mean(x, dtype=torch.int32)
    with pytest.raises(DTypeError, match="None or one of bool"):
        week1.reduce_sum(x, dtype=torch.complex32)
    with pytest.raises(ArgumentError, match="'naive', 'shared', 'shuffle', 'vectorized'"):
        week1.reduce_sum(x, variant="fast")


def test_a_variant_that_cannot_is_an_error_that_names_those_that_can():
    x = torch.ones(40, 64)
    with pytest.raises(
        UnsupportedError,
        match=r"needs rows whose elements are strided.*got contiguous rows.*'naive', 'shared', 'shuffle'",
    ):
        week1.reduce_sum.explain(x, -1, variant="column", arch="sm_90a")
    with pytest.raises(UnsupportedError, match="needs contiguous rows; got rows of another stride"):
        week1.reduce_sum.explain(torch.ones(600, 64), 0, variant="held", arch="sm_80")
    wide = torch.zeros(64, 131072, dtype=torch.bfloat16)
    for arch, variant in (("sm_80", "stream"), ("sm_90a", "held"), ("sm_100a", "held")):
        told = week1.reduce_sum.explain(wide, arch=arch)
        assert (told.variant, told.read, told.written) == (variant, wide.nbytes, 128)
