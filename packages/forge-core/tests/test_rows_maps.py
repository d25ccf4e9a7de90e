"""Pure maps as row programs: SwiGLU with its gradient, and rotary embedding; each a program without folds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from forge_core.device import ARCHES
from forge_core.rows import Fold, Operands, RowProgram, erf, exp, tanh, where
from forge_core.rows.operator import row_operator, row_output
from forge_core.testing.conformance import check_opcheck
from forge_core.testing.expectations import assert_as_declared, compiled_for
from forge_core.testing.rows_expected import EXPECTED

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


@dataclass(frozen=True)
class SwiGLU(RowProgram):
    operands = Operands(rows=("a", "b"), writes=("y",))

    def map(self, v, constants):
        return (v.a / (exp(-v.a) + 1.0) * v.b,)


@dataclass(frozen=True)
class SwiGLUBackward(RowProgram):
    operands = Operands(rows=("dy", "a", "b"), writes=("da", "db"))

    def map(self, v, constants):
        s = 1.0 / (exp(-v.a) + 1.0)
        return v.dy * v.b * s * (1.0 + v.a * (1.0 - s)), v.dy * v.a * s


@dataclass(frozen=True)
class Gelu(RowProgram):
    """Below ``most`` by the error function, above by its approximation."""

    operands = Operands(rows=("a",), writes=("y",), numbers=("most",))

    def constants(self, totals, row):
        return row.most

    def map(self, v, most):
        x = v.a
        smooth = tanh(0.7978845608 * (x + 0.044715 * x * x * x))
        return (0.5 * x * (1.0 + where(x < most, erf(x * 0.7071067812), smooth)),)


@dataclass(frozen=True)
class Rotary(RowProgram):
    """Pairs of elements, of the two halves of a head, turned by an angle of their position."""

    operands = Operands(rows=("first", "second", "cos", "sin"), writes=("y", "z"))

    def map(self, v, constants):
        return v.first * v.cos - v.second * v.sin, v.second * v.cos + v.first * v.sin


def swiglu_reference(a, b):
    return (torch.nn.functional.silu(a.to(torch.promote_types(a.dtype, torch.float32))) * b).to(a.dtype).contiguous()


def swiglu_backward_reference(dy, a, b):
    g, x, w = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (dy, a, b))
    s = torch.sigmoid(x)
    return (g * w * s * (1 + x * (1 - s))).to(a.dtype).contiguous(), (g * x * s).to(a.dtype).contiguous()


def rotary_reference(first, second, cos, sin):
    x, y, c, s = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (first, second, cos, sin))
    return (x * c - y * s).to(first.dtype).contiguous(), (y * c + x * s).to(first.dtype).contiguous()


@row_operator(
    "forge_test_rows::swiglu_backward(Tensor dy, Tensor a, Tensor b, *, str variant='auto') -> (Tensor da, Tensor db)",
    program=SwiGLUBackward(),
    reference=swiglu_backward_reference,
    gradient="reference",
)
def swiglu_backward(dy, a, b, *, variant="auto"):
    da = row_output("swiglu_backward", SwiGLUBackward(), dy=dy, a=a, b=b)
    return da, torch.empty_like(da)


@row_operator(
    "forge_test_rows::swiglu(Tensor a, Tensor b, *, str variant='auto') -> Tensor",
    program=SwiGLU(),
    reference=swiglu_reference,
    setup_context=lambda ctx, inputs, keyword_only_inputs, output: ctx.save_for_backward(*inputs),
    backward=lambda ctx, dy: swiglu_backward(dy, *ctx.saved_tensors),
)
def swiglu(a, b, *, variant="auto"):
    return row_output("swiglu", SwiGLU(), a=a, b=b)


@row_operator(
    "forge_test_rows::rotary(Tensor first, Tensor second, Tensor cos, Tensor sin, *, str variant='auto')"
    " -> (Tensor y, Tensor z)",
    program=Rotary(),
    reference=rotary_reference,
    gradient="reference",
)
def rotary(first, second, cos, sin, *, variant="auto"):
    y = row_output("rotary", Rotary(), first=first, second=second, cos=cos, sin=sin)
    return y, torch.empty_like(y)


@pytest.mark.parametrize("device", DEVICES)
def test_swiglu_and_its_gradient(device):
    torch.manual_seed(0)
    for shape in ((5, 64), (3, 301), (2, 3, 1000)):
        a, b, dy = (torch.randn(shape, device=device) for _ in range(3))
        y = swiglu(a.requires_grad_(), b.requires_grad_())
        got = torch.autograd.grad(y, (a, b), dy)
        wide = [t.detach().double().requires_grad_() for t in (a, b)]
        exact = torch.nn.functional.silu(wide[0]) * wide[1]
        want = torch.autograd.grad(exact, wide, dy.double())
        for g, w in zip((y, *got), (exact, *want), strict=True):
            torch.testing.assert_close(g.double(), w, rtol=1e-5, atol=1e-5)
    check_opcheck(swiglu, (a, b))


@pytest.mark.parametrize("device", DEVICES)
def test_rotary_turns_pairs_by_angles_of_their_positions(device):
    torch.manual_seed(1)
    x = torch.randn(2, 9, 4, 64, device=device)  # batch, position, head, element
    angle = torch.arange(9, device=device)[:, None] / 10000 ** torch.linspace(0, 1, 32, device=device)
    first, second = x.chunk(2, -1)
    cos, sin = (f(angle)[None, :, None].expand(first.shape) for f in (torch.cos, torch.sin))
    turned = torch.polar(torch.ones_like(angle), angle)[None, :, None] * torch.complex(first, second)
    y, z = rotary(first, second, cos, sin)
    torch.testing.assert_close(torch.complex(y, z), turned, rtol=1e-5, atol=1e-5)
    check_opcheck(rotary, (first, second, cos, sin))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("op, count", [(swiglu, 2), (swiglu_backward, 3), (rotary, 4)], ids=str)
def test_maps_compile_as_declared(op, count, arch):
    for dtype, n in ((torch.bfloat16, 4096), (torch.float32, 1001)):
        plan = op.explain(*[torch.empty(300, n, dtype=dtype, device="meta")] * count, arch=arch)
        assert_as_declared(compiled_for(plan.builder, plan.config, arch), EXPECTED, plan.config, arch)


def test_a_map_of_few_elements_has_a_vector_a_thread():
    """Up to 1024 threads a multiprocessor, of an H200's 132; beyond, a thread has all vectors that it holds."""
    chunks = []
    for vectors in (10, 132 * 1024, 132 * 1024 + 1):
        x = torch.empty(vectors * 4, device="meta")
        chunks.append(swiglu.explain(x, x, arch="sm_90a").config.chunks)
    assert chunks[:2] == [1, 1] and chunks[2] > 1


GELU = "forge_test_rows::gelu(Tensor a, *, float most=0.0, str variant='auto') -> Tensor"


@row_operator(GELU, program=Gelu(), reference=lambda a, most: torch.nn.functional.gelu(a))
def gelu(a, *, most=0.0, variant="auto"):
    return row_output("gelu", Gelu(), a=a)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_functions_of_the_dsl_in_a_map_compile(dtype, arch):
    told = gelu.explain(torch.empty(64, 4096, dtype=dtype, device="meta"), arch=arch)
    made = compiled_for(told.builder, told.config, arch)
    assert_as_declared(made, EXPECTED, told.config, arch)


@dataclass(frozen=True)
class First(RowProgram):
    operands = Operands(rows=("a",), results=("y",), numbers=("eps",))
    folds = (Fold("sum", lambda v, row: v.a),)


@pytest.mark.parametrize(
    "schema, program, gradient, text",
    [
        (GELU, Gelu(), "ref", "expected gradient='reference', a mapping or None, got 'ref'"),
        (GELU, Gelu(), {"x": print}, "expected gradient= of tensors of the schema, a, got x"),
        (GELU, First(), None, r"an argument of the schema for each operand of First, got none for \['eps'\]"),
        (GELU, SwiGLU(), None, r"an argument of the schema for each operand of SwiGLU, got none for \['b'\]"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(schema, program, gradient, text):
    with pytest.raises(ValueError, match=f"gelu: .*{text}"):
        row_operator(schema, program=program, gradient=gradient, reference=print)
