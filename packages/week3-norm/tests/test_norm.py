"""Options, dtypes, layouts, errors and gradients of the norms, and what their kernels compile to."""

from __future__ import annotations

import contextlib
import itertools
import re
from functools import partial

import pytest
import torch

import forge_week3_norm as week3
from forge_core.device import ARCHES
from forge_core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, UnsupportedError
from forge_core.testing import conformance
from forge_core.testing.expectations import assert_as_declared, compiled_for
from forge_core.testing.rows_expected import EXPECTED
from forge_week3_norm import backward, nn, ops

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
OPS = {"rms_norm": week3.rms_norm, "layer_norm": week3.layer_norm}
TOLERANCE = {BF16: 2**-6, FP16: 2**-9, FP32: 2e-5}


def exact(name, x, weight=None, bias=None, residual=None, offset=0.0, eps=1e-5):
    """In float64, of the sum as it is rounded."""
    h = (x if residual is None else x + residual).double()
    d = h - h.mean(-1, keepdim=True) if name == "layer_norm" else h
    y = d * torch.rsqrt(d.square().mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * (weight.double() + offset)
    return y if bias is None else y + bias.double()


def randn(*shape, dtype=FP32, device="cpu", begin=0):
    """Normally distributed, from some elements after a boundary on."""
    flat = torch.randn(torch.Size(shape).numel() + begin, dtype=FP64, device=device)
    return flat.to(dtype)[begin:].view(shape)


def close(got, want, dtype, scale=1.0):
    torch.testing.assert_close(got.double(), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("of_x, of_weight", [*itertools.product((BF16, FP16, FP32), repeat=2)], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_every_combination_of_tensors_with_its_gradients(name, of_x, of_weight, device):
    torch.manual_seed(0)
    for shape, given in itertools.product(((6, 64), (5, 301), (3, 2, 1000)), itertools.product((0, 1), repeat=3)):
        kinds = {"weight": (shape[-1:], of_weight), "bias": (shape[-1:], of_weight), "residual": (shape, of_x)}
        kinds = dict(itertools.compress(kinds.items(), given))
        tensors = {key: randn(*size, dtype=dtype, device=device) for key, (size, dtype) in kinds.items()}
        tensors = {"x": randn(*shape, dtype=of_x, device=device, begin=1), **tensors}
        wide = {key: t.double().requires_grad_() for key, t in tensors.items()}
        found = OPS[name](normalized_shape=shape[-1:], eps=1e-5, **{k: t.requires_grad_() for k, t in tensors.items()})
        y, *total = found if given[2] else (found,)
        assert not total or torch.equal(total[0], tensors["x"] + tensors["residual"])
        close(y, exact(name, **tensors), of_x, 4.0)
        dy, dtotal = randn(*shape, dtype=of_x, device=device), randn(*shape, dtype=of_x, device=device)
        kept = dy.clone()
        got = torch.autograd.grad((y, *total), list(tensors.values()), (dy, dtotal)[: 1 + given[2]])
        assert torch.equal(dy, kept), "dy was overwritten"
        outs = (exact(name, **wide), *([wide["x"] + wide["residual"]] if given[2] else []))
        want = torch.autograd.grad(outs, list(wide.values()), (dy.double(), dtotal.double())[: 1 + given[2]])
        for (key, t), g, w in zip(tensors.items(), got, want, strict=True):
            assert g.dtype == t.dtype and g.shape == t.shape
            coarsest = max((of_x, t.dtype), key=lambda d: TOLERANCE[d])
            # With a residual the sum is rounded before it is normalized.
            close(g, w, coarsest, (8.0 if key in ("x", "residual") else 16.0) * (4.0 if given[2] else 1.0))


@pytest.mark.parametrize("device", DEVICES)
def test_options(device):
    torch.manual_seed(1)
    x, r, w = randn(4, 48, dtype=BF16, device=device), randn(4, 48, device=device), randn(48, device=device)
    close(week3.rms_norm(x, (48,), w, 1e-5, weight_offset=1.0), exact("rms_norm", x, w, offset=1.0), BF16, 4.0)
    y, total = week3.rms_norm(x, (48,), w, 1e-5, residual=r, out_dtype=FP32)
    assert (y.dtype, total.dtype) == (FP32, FP32)
    close(y, exact("rms_norm", x, w, residual=r), FP32, 4.0)
    y, total = week3.layer_norm(x, (48,), w, residual=r, residual_dtype=BF16)
    assert (y.dtype, total.dtype) == (BF16, BF16)
    assert torch.equal(total, (x + r).to(BF16))
    hat = week3.rms_norm(x, (48,), eps=1e-5).float()
    assert torch.equal(week3.rms_norm(x, (48,), w, 1e-5, cast="input"), (hat * w).to(BF16))
    assert torch.equal(week3.rms_norm(x, [48]), week3.rms_norm(x, (48,), None, torch.finfo(FP32).eps))
    for dims in (1, 2, 3):
        z = randn(3, 4, 6, dtype=FP64, device=device)[:, ::2]
        sizes, weight = z.shape[-dims:], randn(*z.shape[-dims:], dtype=FP64, device=device)
        torch.testing.assert_close(week3.layer_norm(z, sizes, weight), torch.nn.functional.layer_norm(z, sizes, weight))


@pytest.mark.parametrize("name", OPS)
def test_second_derivatives_and_tangents_with_a_residual(name, monkeypatch):
    torch.manual_seed(2)
    tensors = [randn(*shape, dtype=FP64).requires_grad_() for shape in ((3, 5), (3, 5), (5,), (5,))]

    def call(x, residual, weight, bias):
        return OPS[name](x, (5,), weight, bias=bias, residual=residual, eps=1e-3)

    for path in (contextlib.nullcontext(), conformance.Dispatched()):
        with path:
            assert torch.autograd.gradcheck(call, tensors, check_forward_ad=True, check_batched_grad=True)
            assert torch.autograd.gradgradcheck(call, tensors)
            assert torch.autograd.gradcheck(lambda x: OPS[name](x, (5,)), tensors[:1])
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*tensors), call(*tensors))
    total = getattr(ops, f"{name}_total")
    monkeypatch.setattr(total._eager, "_record_on_cpu", total._eager._record)  # as on a GPU
    assert torch.autograd.gradgradcheck(lambda *given: total(*given, -1)[:2], tensors)
    op = getattr(torch.ops.forge_week3, f"{name}_total").default
    for asked in (True, False):
        torch.library.opcheck(op, (*tensors, -1), {"statistics": asked})


@pytest.mark.parametrize("name", OPS)
def test_public_functions_are_values_are_traced_and_have_tangents(name):
    torch.manual_seed(4)
    public, overload = OPS[name], getattr(torch.ops.forge_week3, name).default
    tensors, directions = ([randn(*shape, dtype=FP64) for shape in ((4, 5), (5,), (5,))] for _ in range(2))

    def call(x, weight, bias):
        return public(x, (5,), weight, bias=bias, eps=1e-5)

    def right(got, given):
        torch.testing.assert_close(got, exact(name, *given))

    conformance.check_value(public)
    conformance.check_traced(public, overload, call, tensors, right)
    conformance.check_forward_mode(call, partial(overload, dim=-1), partial(exact, name), tensors, directions)
    for derivative, i in itertools.product((torch.func.jacfwd, torch.func.jacrev, torch.func.hessian), range(3)):
        torch.testing.assert_close(derivative(call, i)(*tensors), derivative(partial(exact, name), i)(*tensors))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPS)
def test_errors(name, device):
    op, x = OPS[name], torch.ones(3, 8, device=device)
    for sizes, more in (((4,), {}), ((), {}), ((1, 8), {}), ((8,), {"weight": x[0, :4]}), ((8,), {"bias": x})):
        with pytest.raises(RuntimeError, match=r"normalized_shape|'x'|'weight'|'bias'") as caught:
            op(x, sizes, **more)
        assert isinstance(caught.value, ShapeError)
    for sizes in (8, "8", (8.0,)):
        with pytest.raises(ArgumentTypeError, match="a tuple of ints"):
            op(x, sizes)
    for other in (x.int(), x.bool(), x.to(torch.complex64)):
        with pytest.raises(DTypeError):
            op(other, (8,))
    with pytest.raises(DTypeError, match="float64 alone"):
        op(x, (8,), torch.ones(8, device=device, dtype=FP64))
    for wrong in ({"out_dtype": torch.int32}, {"out_dtype": FP64}, {"residual": x, "residual_dtype": FP64}):
        with pytest.raises(DTypeError):
            op(x, (8,), **wrong)
    with pytest.raises(ShapeError, match="'residual'"):
        op(x, (8,), residual=x[:2])
    for wrong in ({"cast": "bf16"}, {"residual_dtype": FP32}, {"variant": "fast"}):
        with pytest.raises(ArgumentError):
            op(x, (8,), **wrong)
    with pytest.raises(ArgumentError, match="weight_offset"):
        week3.rms_norm(x, (8,), weight_offset=1.0)
    with pytest.raises(TypeError):
        op(3, (8,))


@pytest.mark.parametrize("name", OPS)
def test_modules(name):
    torch.manual_seed(3)
    ours, theirs = {"rms_norm": (nn.RMSNorm, torch.nn.RMSNorm), "layer_norm": (nn.LayerNorm, torch.nn.LayerNorm)}[name]
    x, mine, other = randn(3, 8), ours(8), theirs(8)
    other.load_state_dict(mine.state_dict())
    assert isinstance(mine, theirs) and repr(mine) == repr(other)
    torch.testing.assert_close(mine(x), other(x))
    torch.testing.assert_close(mine(x, residual=x)[0], other(x + x))


def meta(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype, device="meta")


def calls(rows, n, dtype):
    """Each operator on contiguous rows, as an ``explain`` of keywords."""
    x, w, s = meta(rows, n, dtype=dtype), meta(n, dtype=FP32), meta(rows, dtype=FP32)
    yield ops.rms_norm_y, (x, w), {}
    yield ops.layer_norm_y, (x, w, w), {"cast": "input"}
    yield ops.rms_norm_total, (x, x, w), {"statistics": True, "weight_offset": 1.0}
    yield ops.layer_norm_total, (x, x, w, w), {"statistics": True}
    yield backward.rms_norm_backward, (x, x, s, None, w), {}
    yield backward.layer_norm_backward, (x, x, s, s, x, w), {"weight_offset": 1.0}
    yield backward.norm_weight_backward, (x, x, s, s, 0), {"bias": True, "cast": dtype}
    yield backward.norm_weight_backward, (x, x, None, s, 0), {}
    yield from [(backward.norm_gradients, (x, x, s, s, None, w), {"bias": True})] if n <= 4096 else []


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("rows, n, dtype", [(999, 128, BF16), (999, 4096, FP32), (64, 50257, BF16), (999, 32768, BF16)])
def test_kernels_compile_as_declared(rows, n, dtype, arch):
    for op, args, options in calls(rows, n, dtype):
        plan = op.explain(*args, arch=arch, **options)
        made = compiled_for(plan.builder, plan.config, arch)
        assert_as_declared(made, EXPECTED, plan.config, arch)
        assert not re.search(r"\b(atom|red)\.\w*\.?(global)?\S*\.f(16|32|64)", made.ptx), "a floating-point atomic"


@pytest.mark.parametrize("name", OPS)
def test_public_functions_explain_the_operator_that_they_call(name):
    public, x, w = OPS[name], meta(64, 4096), meta(4096)
    given = ({}, {"weight": w, "variant": "stream"}, {"residual": x}, {"weight": meta(4096).requires_grad_()})
    for options, end in zip(given, ("", "", "_total", "_total"), strict=True):
        told = public.explain(x, (4096,), arch="sm_90a", **options)
        assert (told.operator, told.variant) == (f"forge_week3::{name}{end}", options.get("variant", "held"))
    assert public.variants() == ops.rms_norm_y.variants()


@pytest.mark.parametrize("arch", ARCHES)
@torch.no_grad()
def test_gradients_of_one_read_have_a_kernel(arch, monkeypatch):
    monkeypatch.setenv("FORGE_ARCH", arch)
    taken, lengths = set(), (7, 4087, 8001, 32759, 49135, 65521, 131072, 196608, 262144)
    for dtype, other, n in itertools.product((BF16, FP16, FP32), (BF16, FP32, None), lengths):
        x, s, w = meta(200, n, dtype=dtype), meta(200, dtype=FP32), None if other is None else meta(n, dtype=other)
        for mean, added in itertools.product((None, s), (None, x)):
            if backward.together((1,), x, x, added, w):
                taken.add(n)
                assert backward.norm_gradients.explain(x, x, mean, s, added, w, bias=w is mean).variant == "persistent"
    assert (262144 in taken) == (arch == "sm_90a") and 7 in taken


@pytest.mark.parametrize("n", [64, 4096, 7168, 32768, 50257, 262144])
def test_a_batch_invariant_call_is_planned_alike_for_any_number_of_rows(n):
    plans = set()
    for rows in (1, 2, 7, 64, 1000, 40000):
        x, w = meta(rows, n), meta(n)
        for op, args in ((ops.rms_norm_y, (x, w)), (ops.layer_norm_total, (x, x, w)), (ops.layer_norm_y, (x, w, w))):
            told = op.explain(*args, arch="sm_90a", batch_invariant=True)
            plans.add((op.schema.name, told.variant, told.config, told.config.sized and told.arguments[1]))
    assert len(plans) == 3
    assert ops.rms_norm_y.explain(meta(1, 4096), arch="sm_90a").config not in {config for _, _, config, _ in plans}


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPS)
def test_bits_of_a_row_do_not_depend_on_the_number_of_rows(name):
    for n, dtype, biased in itertools.product((64, 1000, 4096, 50257, 131072), (BF16, FP32), (False, True)):
        x, w = randn(1000, n, dtype=dtype, device="cuda"), randn(n, dtype=dtype, device="cuda")
        options = {"weight": w, "bias": w if biased else None, "eps": 1e-5, "batch_invariant": True}
        whole = OPS[name](x, (n,), **options)
        for rows in (1, 8, 100):
            assert torch.equal(OPS[name](x[:rows], (n,), **options), whole[:rows]), (n, rows)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_gradients_of_real_sizes_and_the_same_bits_at_each_call(name, dtype):
    shapes = ((4096, 1001), (8, 7168), (1, 8192), (30001, 128), (300, 4096), (5, 140001), (2, 300, 5003), (4, 262144))
    shapes += ((150, 160000), (1100, 12000), (1100, 20001), (400, 40001), (4500, 2**14), (1100, 2**16))
    for shape in shapes:
        x, w, b = (randn(*s, dtype=dtype, device="cuda").requires_grad_() for s in (shape, shape[-1:], shape[-1:]))
        dy = randn(*shape, dtype=dtype, device="cuda")
        y = OPS[name](x, shape[-1:], w, bias=b, eps=1e-5)
        got = torch.autograd.grad(y, (x, w, b), dy, retain_graph=True)
        for _ in range(5):
            again = torch.autograd.grad(y, (x, w, b), dy, retain_graph=True)
            assert all(map(torch.equal, got, again))
        wide = [t.detach().double().requires_grad_() for t in (x, w, b)]
        want = torch.autograd.grad(right := exact(name, *wide), wide, dy.double())
        for g, e in zip((y.detach(), *got), (right.detach(), *want), strict=True):
            error = (g.double() - e).abs().max() / e.abs().max().clamp_min(1.0)
            assert error <= (2**-7 if dtype is BF16 else 1e-5), (shape, error)


@pytest.mark.gpu
@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize(("rows", "n"), [(4300, 4001), (600, 2**15), (430, 40001)])
def test_many_rows_that_begin_anywhere_or_that_blocks_share(rows, n, dtype):
    shape = rows, n
    x, w, b = (randn(*s, dtype=dtype, device="cuda") for s in (shape, shape[1:], shape[1:]))
    kind = "deep" if n == 40001 else "columns_realigned" if n % 2 else "long"
    assert getattr(ops.layer_norm_y.explain(x, w, b).config, kind)
    close(y := week3.layer_norm(x, shape[1:], w, b), exact("layer_norm", x, w, b), dtype, 4.0)
    close(week3.layer_norm(x, shape[1:], w.float(), b, residual=x)[0], exact("layer_norm", x, w, b, x), dtype, 4.0)
    given = [t.requires_grad_() for t in (x, w, b)]
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(week3.layer_norm(x, shape[1:], w, b), given, y))


@pytest.mark.gpu
@pytest.mark.sanitizer
def test_rows_of_which_shared_memory_has_one():
    x, r, dy = (randn(12, 2**18, device="cuda") for _ in range(3))
    w, b, over = randn(2**18, device="cuda"), randn(2**18, device="cuda"), {"variant": "persistent"}
    y, added, mean, rstd = ops.layer_norm_total(x, r, w, b, -1, 1e-5, statistics=True, **over)
    given = [t.cpu().requires_grad_() for t in (x, w, b)]  # racecheck finds races in PyTorch's own sums of such rows
    want = exact("layer_norm", *given, r.cpu())
    close(y.cpu(), want.detach(), FP32, 4.0)
    got = backward.norm_gradients(dy, added, mean, rstd, None, w, (-1,), bias=True, **over)
    for each, right in zip(got, torch.autograd.grad(want, given, dy.cpu().double()), strict=True):
        close(each.cpu(), right.double(), FP32, 64.0)


@pytest.mark.gpu
@pytest.mark.sanitizer
def test_small_calls_of_rows_side_by_side():
    x, r, dy = (randn(301, 6, device="cuda") for _ in range(3))
    w, b, over = randn(301, device="cuda"), randn(301, device="cuda"), {"variant": "column"}
    for name, center in (("rms_norm", False), ("layer_norm", True)):
        alone, total = getattr(ops, f"{name}_y"), getattr(ops, f"{name}_total")
        want = exact(name, x.t(), w, b).t()
        close(alone(x, w, b, 0, 1e-5, **over), want, FP32, 4.0)
        y, added, *statistics = total(x, r, w, b, 0, 1e-5, statistics=True, **over)
        close(y, exact(name, x.t(), w, b, r.t()).t(), FP32, 4.0)
        assert torch.equal(added, x + r)
        of_x = backward.layer_norm_backward if center else backward.rms_norm_backward
        assert bool(of_x(dy, added, *statistics, None, w, 0, **over).isfinite().all())
        per_row = torch.ones(301, device="cuda")
        got = backward.norm_weight_backward(dy, x, per_row - 1 if center else None, per_row, (0,), bias=True, **over)
        close(got[0], (dy.double() * x.double()).sum(0), FP32, 64.0)
        close(got[1], dy.double().sum(0), FP32, 64.0)


@pytest.mark.gpu
@pytest.mark.sanitizer
@pytest.mark.parametrize("variant", ["auto", *ops.rms_norm_y.variants()])
def test_small_calls(variant):
    """What compute-sanitizer runs, which slows a kernel down a lot."""
    for name, (rows, n) in itertools.product(OPS, ((5, 64), (3, 601), (40, 6), (1, 2089), (1, 40000))):
        x, w, b = (randn(*shape, device="cuda") for shape in ((rows, n), (n,), (n,)))
        try:
            y, total = OPS[name](x, (n,), w, bias=b, residual=x, variant=variant, eps=1e-5)
        except UnsupportedError:  # this variant is for others of these shapes
            assert variant != "auto"
            continue
        close(y, exact(name, x, w, b, x), FP32, 4.0)
        assert torch.equal(total, x + x)
        for some, r, to in ((2, None, total), (1, x, (y, total))):
            found = OPS[name](x.requires_grad_(), (n,), w.requires_grad_(some > 1), residual=r, eps=1e-5)
            assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(found, (x, w)[:some], to))
