"""Complex tensors: a linear program is planned as that of the real and imaginary parts, a kept dim more.

Another program may have one of ``paired`` operands, the real and the imaginary parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from forge_core.device import spec_for
from forge_core.dtypes import COMPLEX, FLOATS
from forge_core.errors import UnsupportedError
from forge_core.rows import Fold, Operands, RowProgram
from forge_core.rows.operator import row_operator, row_output
from forge_core.rows.plan import plan_call


@dataclass(frozen=True)
class Sum(RowProgram):
    operands = Operands(rows=("x",), results=("y",))
    folds = (Fold("sum", lambda v, row: v.x, masked=False),)
    linear = True

    def results(self, totals, row):
        return (totals[0],)


@dataclass(frozen=True)
class Squares(Sum):
    folds = (Fold("sum", lambda v, row: v.x * v.x, masked=False),)
    linear = False


@dataclass(frozen=True)
class Parts(RowProgram):
    operands = Operands(rows=("re", "im"), results=("y_re", "y_im"), paired=True)
    folds = (Fold("prod", lambda v, row: v.re), Fold("prod", lambda v, row, *_: v.im))
    merge = "complex_prod"

    def results(self, totals, row):
        return totals


@dataclass(frozen=True)
class Product(Sum):
    folds = (Fold("prod", lambda v, row: v.x),)
    linear = False

    def of_parts(self):
        return Parts()


def declared(name, program, reference):
    options = "int[1]? dim=-1, *, ScalarType? dtype=None, str variant='auto'"

    @row_operator(
        f"forge_test_complex::{name}(Tensor x, {options}) -> Tensor",
        program=program,
        reference=reference,
        converts=True,
    )
    def operator(x, dim=-1, *, dtype=None, variant="auto"):
        return row_output(name, program, x=x, dim=dim, dtypes=(*FLOATS, *COMPLEX), dtype=dtype)

    return operator


total = declared("total", Sum(), lambda x, dim, dtype: torch.sum(x, dim, dtype=dtype))
squares = declared("squares", Squares(), lambda x, dim, dtype: torch.sum(x * x, dim, dtype=dtype))
product = declared("product", Product(), lambda x, dim, dtype: torch.prod(x, dim, dtype=dtype))

ARCH = "sm_90a"


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize(
    "shape, dim",
    [((64, 1000), 1), ((64, 1001), 0), ((3, 5, 7), (0, 2)), ((3, 5, 7), None), ((2, 2**21), 1), ((9, 1), 1)],
)
def test_a_sum_is_planned_as_that_of_the_real_view(shape, dim, dtype):
    x = torch.empty(shape, dtype=dtype, device="meta")
    dims = tuple(range(x.ndim)) if dim is None else dim
    offset = torch.empty(x.numel() + 1, dtype=dtype, device="meta")[1:].view(shape)
    for laid_out in (x, x.mT.contiguous().mT, offset, x[..., :1].expand(shape)):
        found = total.explain(laid_out, dim, arch=ARCH)
        # The kernel, its configuration and key, the integers it is launched with, bytes and workspace.
        assert found == total.explain(torch.view_as_real(laid_out), dims, arch=ARCH)
    assert total.explain(x, dim, arch=ARCH).read == x.nbytes


def test_each_variant_is_served_or_refused_as_of_the_real_view():
    x, served = torch.empty(64, 1000, dtype=torch.complex64, device="meta"), []
    for variant in total.variants():
        try:
            real = total.explain(torch.view_as_real(x), 1, variant=variant, arch=ARCH)
        except UnsupportedError:
            with pytest.raises(UnsupportedError):
                total.explain(x, 1, variant=variant, arch=ARCH)
        else:
            served.append(variant)
            assert total.explain(x, 1, variant=variant, arch=ARCH) == real
    assert "column" in served and len(served) < len(total.variants())


def test_parts_are_converted_as_they_are_loaded():
    x = torch.empty(64, 1000, dtype=torch.complex64, device="meta")
    binding = total.explain(x, dtype=torch.complex128, arch=ARCH).config.binding
    assert (binding.dtypes, binding.via) == ((torch.float32, torch.float64), torch.float64)
    assert total.explain(x, arch=ARCH).config.binding.via is None


def test_an_output_may_have_any_strides():
    x = torch.empty(64, 1000, dtype=torch.complex64, device="meta")
    out = torch.empty(64, 2, dtype=torch.complex64, device="meta")[:, 1]
    named = {"dim": 1, "dtype": None, "variant": "auto"}
    planned = total.table.planned(spec_for(ARCH), out, {"x": x, **named})
    real = total.table.planned(spec_for(ARCH), torch.view_as_real(out), {"x": torch.view_as_real(x), **named})
    assert planned == real != total.table.planned(spec_for(ARCH), None, {"x": x, **named})


def test_a_conjugated_or_negated_view_is_explained_as_what_it_is_resolved_to():
    x = torch.randn(6, 10, dtype=torch.complex64)
    plain = total.explain(x, arch=ARCH)
    assert total.explain(x.conj(), arch=ARCH) == plain
    assert total.explain(torch._neg_view(x), arch=ARCH) == plain
    torch.testing.assert_close(total(x.conj()), x.conj().sum(-1))
    torch.testing.assert_close(total(torch._neg_view(x)), -x.sum(-1))


@pytest.mark.parametrize("operator, dtype", [(squares, None), (total, torch.float32)], ids=["squares", "to real"])
def test_what_is_no_sum_of_parts_is_refused_with_the_way_out(operator, dtype):
    x = torch.ones(6, 10, dtype=torch.complex64)
    with pytest.raises(UnsupportedError, match=r"torch\.view_as_real\(x\), or set FORGE_BACKEND=ref"):
        operator.explain(x, dtype=dtype, arch=ARCH)
    with pytest.raises(UnsupportedError, match="real numbers to complex ones"):
        total.explain(x.real, dtype=torch.complex64, arch=ARCH)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("shape, dim", [((64, 1000), 1), ((64, 1001), 0), ((3, 5, 7), (0, 2)), ((2, 2**21), 1)])
def test_a_program_of_parts_is_planned_with_a_view_of_each(shape, dim, dtype):
    x = torch.empty(shape, dtype=dtype, device="meta")
    dims = (dim,) if isinstance(dim, int) else dim
    for laid_out in (x, x.mT.contiguous().mT, x[1:], x[..., :1].expand(shape)):
        y = torch.empty([n for i, n in enumerate(laid_out.shape) if i not in dims], dtype=dtype, device="meta")
        views = [torch.view_as_real(t)[..., k] for t in (laid_out, y) for k in (0, 1)]
        named = dict(zip(Parts().operands.tensors, views, strict=True))
        planned = plan_call("product", Parts(), named, dims, spec_for(ARCH), order=tuple(named))
        told = product.explain(laid_out, dim, arch=ARCH)
        assert (told.config, told.arguments, told.workspace) == (planned.config, planned.arguments, planned.workspace)
        assert told.read == planned.read


def test_a_launch_is_passed_one_pointer_to_both_parts():
    from forge_core.rows.kernel import RowKernel, example_arguments

    for dtype, size in zip(COMPLEX, (4, 8), strict=True):
        for variant, scratch in (("stream", ()), ("split", (9000,))):
            x = torch.empty(2, 2**21, dtype=dtype, device="meta")
            told = product.explain(x, variant=variant, arch=ARCH)
            launch = (1000, 5000, *scratch, *told.arguments, "stream")
            pointers, length, *_, numbers = RowKernel.unpack(told.config, launch)
            assert pointers == (1000, 1000 + size, 5000, 5000 + size) and (length, numbers) == (2**21, ())
            assert len(example_arguments(told.config)) == len(launch)


def test_a_mixed_call_of_parts_is_refused():
    with pytest.raises(UnsupportedError, match="real numbers to complex ones"):
        product.explain(torch.ones(6, 10), dtype=torch.complex64, arch=ARCH)
