"""Row programs of integers and bools: values and totals are int32 or int64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from forge_core.device import SPECS
from forge_core.errors import UnsupportedError
from forge_core.rows import Binding, Fold, Operands, RowProgram, configurations
from forge_core.rows.operator import row_operator
from forge_core.rows.plan import VARIANTS, plan_call
from forge_core.testing.rows_expected import assert_listed_as_declared

INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class Reduce(RowProgram):
    """A sum in int64, or an extreme in a dtype that holds all values of x."""

    op: str = "sum"

    operands = Operands(("x",), results=("y",))

    @property
    def folds(self):
        return (Fold(self.op, lambda v, row: v.stored("x")),)

    def compute(self, dtypes, via):
        return torch.int64 if self.op == "sum" or dtypes[0] is torch.int64 else torch.int32

    def results(self, constants, row):
        return constants


def declared(op, reference):
    @row_operator(
        f"forge_test_rows::integer_{op}(Tensor x, int dim=-1, *, str variant='auto') -> Tensor",
        program=Reduce(op),
        reference=reference,
    )
    def reduced(x, dim=-1, *, variant="auto"):
        kept = [size for i, size in enumerate(x.shape) if i != dim % x.ndim]
        return x.new_empty(kept, dtype=torch.int64 if op == "sum" else x.dtype)

    return reduced


OPERATORS = {
    "sum": declared("sum", lambda x, dim: x.sum(dim)),
    "max": declared("max", lambda x, dim: x.amax(dim)),
    "min": declared("min", lambda x, dim: x.amin(dim)),
}
SHAPES = (((300, 40), -1), ((5, 1031), -1), ((40, 70001), -1), ((2, 2**20), -1), ((4097, 33), 0), ((90000, 16), 0))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", OPERATORS)
def test_values_have_a_dtype_that_holds_them(op, dtype):
    told = OPERATORS[op].explain(torch.empty(64, 1000, dtype=dtype, device="meta"), arch="sm_90a")
    wide = torch.int64 if op == "sum" or dtype is torch.int64 else torch.int32
    assert told.config.binding.compute is wide


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["A100", "H200"])
@pytest.mark.parametrize("op, dtype", [("sum", torch.int8), ("max", torch.bool), ("min", torch.int64)])
def test_all_listed_kernels_are_as_declared(op, dtype, gpu):
    program = Reduce(op)
    binding = Binding(program, (dtype, torch.int64 if op == "sum" else dtype), program.compute((dtype,), None))
    assert_listed_as_declared(configurations(binding, SPECS[gpu]), SPECS[gpu])


def test_no_row_of_integers_is_held_by_the_whole_gpu():
    x, y = torch.empty(2, 2**20, dtype=torch.int32, device="meta"), torch.empty(2, dtype=torch.int64, device="meta")
    launch = plan_call("sum", Reduce(), {"x": x, "y": y}, (1,), SPECS["H200"])
    assert launch.variant != "grid"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", OPERATORS)
def test_results_are_those_of_pytorch(op, dtype):
    served = set()
    for shape, dim in SHAPES:
        generator = torch.Generator(device="cuda").manual_seed(shape[0])
        low, high = (0, 2) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        x = torch.randint(low, high, shape, device="cuda", generator=generator).to(dtype)
        want = OPERATORS[op].reference(x, dim)
        for variant in ("auto", *VARIANTS):
            try:
                got = OPERATORS[op](x, dim, variant=variant)
            except UnsupportedError:  # a variant that does not fit the shape
                assert variant != "auto"
                continue
            assert torch.equal(got, want), (shape, dim, variant)
            served.add(variant)
    assert served == {"auto", *VARIANTS} - {"grid"}


@dataclass(frozen=True)
class Shares(RowProgram):
    """What a softmax of integers does: values are float32."""

    operands = Operands(("x",), writes=("y",))

    @property
    def folds(self):
        return (Fold("max", lambda v, row: v.x), Fold("sum", lambda v, row, most: v.x, masked=True))

    def map(self, v, constants):
        return (v.x + constants[0] - constants[1],)


@row_operator(
    "forge_test_rows::integer_shares(Tensor x, int dim=-1, *, str variant='auto') -> Tensor",
    program=Shares(),
    reference=lambda x, dim: (x.double() + x.double().amax(dim, True) - x.double().sum(dim, keepdim=True)).float(),
)
def integer_shares(x, dim=-1, *, variant="auto"):
    return torch.empty_like(x, dtype=torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16], ids=str)
def test_integers_become_numbers_with_their_sign(dtype):
    """All values of a dtype; a byte has none: the sums are exact."""
    for shape, dim in (
        ((300, 40), -1),
        ((5, 1031), -1),
        ((40, 2049), -1),
        ((300, 40), 0),
        ((900, 16), 0),
        ((300, 23), 0),
    ):
        generator = torch.Generator(device="cuda").manual_seed(shape[0])
        low, high = (0, 2) if dtype is torch.bool else (torch.iinfo(dtype).min // 8, torch.iinfo(dtype).max + 1)
        high = high if dtype is not torch.int16 else 1000
        x = torch.randint(low, high, shape, device="cuda", generator=generator).to(dtype)
        for variant in ("auto", "stream", "column"):
            if variant != "column" or dim == 0:
                assert torch.equal(integer_shares(x, dim, variant=variant), integer_shares.reference(x, dim)), shape
