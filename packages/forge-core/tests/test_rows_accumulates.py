"""Sums over rows beside what is written: norms' gradients in one read, and the kernel whose blocks stay."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import pytest
import torch

from forge_core.cache.parallel import Request, compile_all
from forge_core.cache.store import Store
from forge_core.device import SPECS
from forge_core.errors import UnsupportedError
from forge_core.profiling.compiled import compile_to_look_at
from forge_core.rows import Binding, Fold, Operands, Problem, RowProgram, configurations, rsqrt
from forge_core.rows.operator import PERSISTENT, VARIANTS, row_operator, row_output
from forge_core.rows.plan import plan_call
from forge_core.rows.teams import persistent_configurations
from forge_core.testing.expectations import assert_as_declared, compiled_for
from forge_core.testing.index_maps import check_aligned, check_coalesced
from forge_core.testing.rows_expected import EXPECTED, assert_listed_as_declared

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
H200 = SPECS["H200"]
PATH = PERSISTENT["persistent"].path
CAN_COMPILE = pytest.mark.usefixtures("dsl")


@dataclass(frozen=True)
class NormBackward(RowProgram):
    """With h = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - h mean(g h)); without a mean, no mean(g).

    dweight is the sum of dy h over rows, dbias that of dy.
    """

    centered: bool = True

    merge = "each"

    @property
    def operands(self):
        scalars, sums = (("rstd", "mean"), ("dweight", "dbias")) if self.centered else (("rstd",), ("dweight",))
        return Operands(("dy", "x"), columns=("weight",), scalars=scalars, writes=("dx",), accumulates=sums)

    @property
    def folds(self):
        along = Fold("sum", lambda v, row, *_: v.dy * v.weight * self.hat(v, row), masked=False)
        return (along, Fold("sum", lambda v, row, *_: v.dy * v.weight, masked=False)) if self.centered else (along,)

    def hat(self, v, row):
        return (v.x - row.mean) * row.rstd if self.centered else v.x * row.rstd

    def constants(self, totals, row):
        return row, *(total / row.count for total in totals)

    def map(self, v, constants):
        row, along, *mean = constants
        dx = v.dy * v.weight - self.hat(v, row) * along
        return ((dx - mean[0] if mean else dx) * row.rstd,)

    def accumulate(self, v, constants):
        dweight = v.dy * self.hat(v, constants[0])
        return (dweight, v.dy) if self.centered else (dweight,)


@dataclass(frozen=True)
class LayerNorm(RowProgram):
    """Column operands, and nothing that is summed over rows."""

    operands = Operands(("x",), columns=("weight", "bias"), writes=("y",), results=("mean", "rstd"), numbers=("eps",))
    folds = (
        Fold("count"),
        Fold("sum", lambda v, row, count: v.x, masked=False),
        Fold("sum", lambda v, row, count, total: (v.x - total / count) * (v.x - total / count)),
    )
    merge = "moments"

    def constants(self, totals, row):
        return totals[1] / row.count, rsqrt(totals[2] / row.count + row.eps)

    def results(self, constants, row):
        return constants

    def map(self, v, constants):
        mean, rstd = constants
        return ((v.x - mean) * rstd * v.weight + v.bias,)


def backward_of(dy, x, weight, rstd, mean, dim=(-1,), *, centered=True):
    dims = [d % x.ndim for d in dim]
    rows = [d for d in range(x.ndim) if d not in dims]
    per_row = [n if i in rows else 1 for i, n in enumerate(x.shape)]
    per_place = [n if i in dims else 1 for i, n in enumerate(x.shape)]
    wide = torch.promote_types(x.dtype, FP32)
    dy_, x_ = dy.to(wide), x.to(wide)
    rstd_, mean_ = rstd.to(wide).reshape(per_row), mean.to(wide).reshape(per_row)
    hat, g = (x_ - mean_) * rstd_, dy_ * weight.to(wide).reshape(per_place)
    if x.numel() == 0:
        return torch.empty_like(x), torch.zeros_like(weight), torch.zeros_like(weight)
    mean_g = g.mean(dims, keepdim=True) if centered else 0
    dx = rstd_ * (g - mean_g - hat * (g * hat).mean(dims, keepdim=True))
    sums = [(dy_ * hat).sum(rows), dy_.sum(rows)] if rows else [dy_ * hat, dy_ + 0]
    return dx.to(x.dtype).contiguous(), *(s.to(weight.dtype).contiguous() for s in sums)


@row_operator(
    "forge_test_accumulates::norm_backward(Tensor dy, Tensor x, Tensor weight, Tensor rstd, Tensor mean, "
    "int[1] dim=-1, *, str variant='auto') -> (Tensor dx, Tensor dweight, Tensor dbias)",
    program=NormBackward(),
    reference=backward_of,
    kernels=PERSISTENT,
)
def norm_backward(dy, x, weight, rstd, mean, dim=(-1,), *, variant="auto"):
    dx = row_output("norm_backward", NormBackward(), dim=dim, dy=dy, x=x, weight=weight, rstd=rstd, mean=mean)
    return dx, torch.empty_like(weight), torch.empty_like(weight)


@row_operator(
    "forge_test_accumulates::rms_backward(Tensor dy, Tensor x, Tensor weight, Tensor rstd, int dim=-1, *, "
    "str variant='auto') -> (Tensor dx, Tensor dweight)",
    program=NormBackward(False),
    reference=lambda dy, x, weight, rstd, dim: backward_of(dy, x, weight, rstd, 0 * rstd, (dim,), centered=False)[:2],
    kernels=PERSISTENT,
)
def rms_backward(dy, x, weight, rstd, dim=-1, *, variant="auto"):
    dx = row_output("rms_backward", NormBackward(False), dim=dim, dy=dy, x=x, weight=weight, rstd=rstd)
    return dx, torch.empty_like(weight)


def forward_of(x, weight, bias, eps=1e-5):
    wide = x.to(torch.promote_types(x.dtype, FP32))
    mean, off = wide.mean(-1), wide - wide.mean(-1, keepdim=True)
    rstd = torch.rsqrt(off.square().mean(-1) + eps)
    y = (off * rstd[..., None] * weight + bias).to(x.dtype)
    return y, mean, rstd


@row_operator(
    "forge_test_accumulates::layer_norm(Tensor x, Tensor weight, Tensor bias, float eps=1e-5, *, str variant='auto')"
    " -> (Tensor y, Tensor mean, Tensor rstd)",
    program=LayerNorm(),
    reference=forward_of,
    kernels={**VARIANTS, **PERSISTENT},
)
def layer_norm(x, weight, bias, eps=1e-5, *, variant="auto"):
    y = row_output("layer_norm", LayerNorm(), x=x, weight=weight, bias=bias)
    return y, *(torch.empty(x.shape[:-1], dtype=FP32, device=x.device) for _ in range(2))


def meta(shape, dtype, weight=None, program=NormBackward()):
    """The tensors of a call."""
    x, (rows, length) = torch.empty(shape, dtype=dtype, device="meta"), shape
    named = dict.fromkeys(("dy", "x", "dx"), x)
    named |= {name: torch.empty(rows, device="meta") for name in ("rstd", "mean")}
    column = torch.empty(length, dtype=weight or dtype, device="meta")
    named |= dict.fromkeys(("weight", "dweight", "dbias"), column)
    return {name: named[name] for name in program.operands.tensors}


def planned(*args, gpu="H200", program=NormBackward(), **options):
    return plan_call("norm", program, meta(*args, program=program, **options), (1,), SPECS[gpu])


def binding(program, dtype, weight=FP32):
    own = {"dy": dtype, "x": dtype, "dx": dtype, "y": dtype}
    compute = FP64 if dtype is FP64 else FP32
    given = {name: own.get(name, weight) for name in program.operands.tensors}
    return Binding(program, tuple(given.values()), compute)


# -------------------------------------------------------------------------------------------------------------- plans


def test_sums_over_rows_are_the_last_operands_and_a_place_of_a_row_each():
    names = NormBackward().operands
    assert names.tensors[-2:] == ("dweight", "dbias")
    assert names.accumulated_indices == (6, 7)
    assert names.tensors[names.inputs :] == names.writes + names.results + names.accumulates
    problem = Problem.of(names, [*meta((8, 64), FP32).values()], (8, 64), (1,))
    assert problem.kept[0].strides == (64, 64, 0, 1, 1, 64, 0, 0)
    assert problem.reduced[0].strides == (1, 1, 1, 0, 0, 1, 1, 1)
    assert problem.written_bytes == (8 * 64 + 2 * 64) * 4
    strided = {**meta((8, 64), FP32), "dbias": torch.empty(128, device="meta")[::2]}
    assert Problem.of(names, [*strided.values()], (8, 64), (1,)).kind == "strided"


@pytest.mark.parametrize(
    "shape, dtype, lanes, blocks",
    [
        ((32768, 64), BF16, 4, 1),
        ((32768, 256), FP32, 32, 1),
        ((32768, 4096), BF16, 0, 1),
        ((32768, 8192), FP32, 0, 1),
        ((8192, 32768), BF16, 0, 2),
        ((900, 32768), BF16, 0, 16),
        ((8192, 131072), BF16, 0, 8),
        ((8192, 131072), FP32, 0, 16),
        ((333, 333), BF16, 0, 1),
        ((32768, 3001), BF16, 0, 1),
        ((32768, 5001), BF16, 0, 2),
        ((8192, 32001), FP32, 0, 16),
    ],
)
def test_a_team_has_as_few_blocks_as_hold_a_row_or_all_for_few_rows(shape, dtype, lanes, blocks):
    launch = planned(shape, dtype)
    config = launch.config
    assert (launch.variant, config.lanes, config.blocks) == ("persistent", lanes, blocks)
    assert config.capacity * config.vec >= shape[1]
    threads, teams = launch.arguments[1:3]
    assert launch.workspace == 2 * teams * shape[1] * 4
    assert teams * config.rows_at_once <= shape[0] + config.rows_at_once
    if config.stages:
        assert config.align == ("whole" if shape[1] % config.vec == 0 else "shifted")
        assert config.align == "whole" or teams % config.vec == 0  # a team's rows are equally far from a boundary
        resident = config.resident_blocks(threads, H200)
        assert resident * threads * config.chunks * config.vec * config.binding.loaded_bytes >= 24 * 1024
        assert resident * (config.shared(threads) + 1024) <= H200.smem_per_sm


def test_no_team_has_a_turn_more_than_others_for_the_last_rows():
    for rows in (1, 2, 100, 263, 264, 265, 528, 529, 8192, 32768, 100000):
        config = planned((rows, 4096), BF16).config
        threads, teams = planned((rows, 4096), BF16).arguments[1:3]
        most = H200.sm_count * config.resident_blocks(threads, H200)
        assert teams <= most
        assert -(-rows // teams) == -(-rows // most)


def test_there_are_as_many_clusters_as_gpcs_hold():
    for width, dtype, blocks, most in ((131072, FP32, 16, 7), (65536, FP32, 16, 14), (131072, BF16, 8, 14)):
        config, teams = planned((8192, width), dtype).config, planned((8192, width), dtype).arguments[2]
        assert (config.blocks, teams) == (blocks, most)


def test_a_call_that_is_planned_as_for_many_rows_launches_no_team_without_one():
    for rows in (1, 5, 100000):
        program, many, launch = NormBackward(), planned((32768, 24576), BF16), planned((rows, 24576), BF16)
        tensors = meta((rows, 24576), BF16, program=program)
        invariant = plan_call("norm", program, tensors, (1,), H200, invariant=True)
        assert invariant.config == many.config
        assert invariant.arguments[1:3] == (many.arguments[1], min(rows, launch.arguments[2]))
        assert invariant.workspace == 2 * invariant.arguments[2] * 24576 * 4


def test_clusters_exchange_while_the_next_row_is_folded_if_several_are_in_flight():
    listed = persistent_configurations(binding(NormBackward(), BF16), H200)
    assert {(c.blocks > 1, c.delayed, c.turns) for c in listed if c.stages > 2} == {(False, False, 2), (True, True, 4)}
    assert not any(c.delayed for c in listed if c.stages < 3)


def test_what_no_team_holds_is_refused_with_the_way_out():
    with pytest.raises(UnsupportedError, match=r"no kernel supports.*at most \d+ such elements; got 1000000 elements"):
        planned((100, 1000000), BF16)
    with pytest.raises(UnsupportedError, match="rows of at most"):
        planned((100, 131072), BF16, gpu="A100")


def test_the_kernel_is_there_by_its_name_where_it_can_gain():
    x, weight = torch.empty(1000, 4096, dtype=BF16, device="meta"), torch.empty(4096, device="meta")
    assert layer_norm.explain(x, weight, weight, arch="sm_90a").variant == "held"
    for length, dtype, most in ((24576, BF16, 462), (200000, FP32, 49), (20480, BF16, 10**6)):
        for rows in (1, most, most + 1, most + 2, 2 * most):
            x, weight = (torch.empty(*shape, dtype=dtype, device="meta") for shape in ((rows, length), (length,)))
            found = layer_norm.explain(x, weight, weight, arch="sm_90a").variant
            assert (found == "persistent") == (rows > most and length > 20480), (rows, length)
    assert layer_norm.explain(x, weight, weight, variant="persistent", arch="sm_90a").variant == "persistent"
    assert set(layer_norm.variants()) == {*VARIANTS, "persistent"}
    assert set(norm_backward.variants()) == {"persistent"}
    launch = layer_norm.explain(x, weight, weight, variant="persistent", arch="sm_90a")
    assert not launch.config.workspace


@pytest.mark.parametrize("gpu", SPECS)
@pytest.mark.parametrize("dtype", [BF16, FP32, FP64])
def test_the_list_is_short_and_what_is_chosen_is_in_it(gpu, dtype):
    bound = binding(NormBackward(), dtype)
    listed = configurations(bound, SPECS[gpu])
    assert listed == persistent_configurations(bound, SPECS[gpu])
    assert 8 <= len(listed) <= 48
    assert len({config.kernel_name for config in listed}) == len(listed)
    for config in listed:
        assert config.shared(config.threads) <= SPECS[gpu].smem_per_block
        assert config.registers * config.threads <= 65536
        assert config.stages != 1 or (config.long and config.blocks == 16)


def test_expanded_and_strided_operands_are_read_by_element():
    for dy in (torch.empty(1, 1), torch.empty(64, 1), torch.empty(1, 512)):
        tensors = {**meta((64, 512), BF16), "dy": dy.to("meta").expand(64, 512)}
        launch = plan_call("norm", NormBackward(), tensors, (1,), H200)
        assert launch.config.binding.broadcast == (("dy",) if dy.shape[1] == 1 else ())
    apart = torch.empty(64, 512, 2, device="meta")[..., 0]
    assert plan_call("norm", NormBackward(), {**meta((64, 512), FP32), "x": apart}, (1,), H200).config.vec == 1
    across = torch.empty(512, 64, device="meta").t()
    assert plan_call("norm", NormBackward(), {**meta((64, 512), FP32), "x": across}, (1,), H200).config.reduced


# ---------------------------------------------------------------------------------------------------------- reference


def test_the_reference_is_the_gradient_that_autograd_finds():
    x, dy = (torch.randn(6, 40, dtype=FP64) for _ in range(2))
    x.requires_grad_()
    weight, bias = (torch.randn(40, dtype=FP64, requires_grad=True) for _ in range(2))
    y = torch.nn.functional.layer_norm(x, (40,), weight, bias)
    want = torch.autograd.grad(y, (x, weight, bias), dy)
    mean, rstd = x.detach().mean(1), torch.rsqrt(x.detach().var(1, correction=0) + 1e-5)
    got = norm_backward(dy, x.detach(), weight.detach(), rstd, mean)
    assert all(torch.allclose(a, b) for a, b in zip(got, want, strict=True))


def test_of_each_mapped_example_sums_are_taken_over_its_own_rows():
    dy, x = torch.randn(5, 3, 8), torch.randn(5, 3, 8)
    weight, rstd, mean = torch.randn(8), torch.rand(5, 3), torch.randn(5, 3)
    got = torch.func.vmap(norm_backward, in_dims=(0, 0, None, 0, 0))(dy, x, weight, rstd, mean)
    for i in range(5):
        want = norm_backward(dy[i], x[i], weight, rstd[i], mean[i])
        assert all(torch.equal(a[i], b) for a, b in zip(got, want, strict=True))


# ----------------------------------------------------------------------------------------------------------- kernels


@CAN_COMPILE
@pytest.mark.parametrize("gpu", ["A100", "H200"])
@pytest.mark.parametrize(
    "shape, dtype, weight",
    [((64, 64), BF16, BF16), ((64, 4096), BF16, FP32), ((64, 8192), FP32, FP32), ((64, 333), BF16, BF16)],
)
def test_what_is_chosen_is_as_declared(shape, dtype, weight, gpu):
    assert_listed_as_declared([planned(shape, dtype, weight, gpu=gpu).config], SPECS[gpu])


@CAN_COMPILE
@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["A100", "H200", "B200", "RTX 5090"])
@pytest.mark.parametrize(
    "program, dtype, weight",
    [
        (NormBackward(), BF16, BF16),
        (NormBackward(), BF16, FP32),
        (NormBackward(), FP32, FP32),
        (NormBackward(), FP64, FP64),
        (NormBackward(False), BF16, BF16),
        (NormBackward(False), FP32, BF16),
        (LayerNorm(), BF16, FP32),
        (LayerNorm(), FP32, FP32),
    ],
    ids=str,
)
def test_all_listed_kernels_are_as_declared(program, dtype, weight, gpu):
    assert_listed_as_declared(persistent_configurations(binding(program, dtype, weight), SPECS[gpu]), SPECS[gpu])


@CAN_COMPILE
def test_every_kernel_can_be_stored(tmp_path):
    """What the cache cannot trace back to its source it compiles anew in each process."""
    x, weight = torch.empty(100, 1000, dtype=BF16, device="meta"), torch.empty(1000, dtype=BF16, device="meta")
    forward = layer_norm.explain(x, weight, weight, variant="persistent", arch="sm_90a").config
    chosen = [planned(shape, BF16).config for shape in ((100, 64), (100, 1000), (100, 333))]
    requests = [Request(PATH, config, "sm_90a") for config in (*chosen, forward)]
    outcomes = compile_all(requests, Store(tmp_path / "kernels"), jobs=2)
    assert [(o.status, o.error) for o in outcomes] == [("compiled", "")] * 4


@CAN_COMPILE
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_rows_wait_in_shared_memory_and_are_read_by_16_bytes_without_a_barrier(dtype):
    config = planned((32768, 4096), dtype).config
    ptx = compile_to_look_at(PATH, config, None, arch="sm_90a").ptx
    main = next(part for part in ptx.split(".visible .entry")[1:] if "_finish" not in part.split("(")[0])
    vectors = config.chunks * 2 * (config.vec * dtype.itemsize // 16)
    assert main.count("ld.shared.v4.b32") == 2 * vectors  # for the folds, and for what is written
    assert main.count("bar.sync") == 1  # the exchange's
    assert main.count("cp.async.wait_group") == 1
    assert main.count("st.global.v4") == vectors // 2 + 2 * config.chunks * config.vec // 4


@CAN_COMPILE
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", pytest.param("sm_120a", marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", [(64, 64), (64, 2048), (64, 4096), (64, 333), (64, 1001), (64, 40000)])
def test_every_kernel_is_as_declared(shape, arch):
    for operator, dtype in ((norm_backward, BF16), (rms_backward, FP32), (layer_norm, BF16)):
        x, column = torch.empty(shape, dtype=dtype, device="meta"), torch.empty(shape[1], device="meta")
        scalars = [torch.empty(shape[0], device="meta") for _ in range(1 + (operator is norm_backward))]
        args = (x, column, column) if operator is layer_norm else (x, x, column, *scalars)
        try:
            told = operator.explain(*args, variant="persistent", arch=arch)
        except UnsupportedError:
            assert shape[1] > 8192
            assert arch == "sm_80" or shape[1] > 32768
            continue
        assert_as_declared(compiled_for(told.builder, told.config, arch), EXPECTED, told.config, arch)


def test_a_configuration_is_drawn_and_coalesces():
    # Not by a statement: what this module imports is part of the keys of the kernels of its programs.
    layout = importlib.import_module("forge_core.commands.layout")
    for dtype in (BF16, FP32):
        for config in persistent_configurations(binding(NormBackward(), dtype), H200):
            for panel in layout.kernel_drawing(config, "persistent").panels:
                check_aligned(panel.accesses, what=panel.title)
                check_coalesced(panel.accesses, what=panel.title)


@CAN_COMPILE
def test_a_block_that_adds_up_the_sums_waits_for_all_teams():
    for gpu in ("A100", "H200"):
        ptx = compile_to_look_at(PATH, planned((100, 1024), FP32, gpu=gpu).config, None, arch=SPECS[gpu].arch).ptx
        assert ptx.count("griddepcontrol.wait") == ptx.count("griddepcontrol.launch_dependents") == (gpu == "H200")


# ---------------------------------------------------------------------------------------------------------------- GPU


def inputs(shape, dtype, weight=None, seed=0, offset=0):
    """Rows that begin ``offset`` elements into memory."""
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def normal(*size, at=0):
        count = torch.Size(size).numel()
        return torch.randn(count + at, device="cuda", dtype=FP32, generator=generator).to(dtype)[at:].view(size)

    x, dy = normal(*shape, at=offset), normal(*shape, at=offset)
    column = normal(shape[-1]).to(weight or dtype)
    wide = x.double()
    # Far from the largest number of 16 bits, whatever the width.
    rstd = torch.rsqrt(wide.var(-1, correction=0) + 0.1) if x.numel() else wide.new_ones(shape[:-1])
    scalar = torch.promote_types(dtype, FP32)
    return dy, x, column, rstd.to(scalar), (wide.mean(-1) if x.numel() else 0 * rstd).to(scalar)


def check(operator, args, dim=(-1,)):
    """Against float64, element by element, relatively to the terms that are added; the same bits once more."""
    dy, x, weight, rstd, *mean = (t.double() for t in args)
    mean = mean[0] if mean else torch.zeros_like(rstd)
    want = backward_of(dy, x, weight, rstd, mean, dim, centered=operator is norm_backward)
    again = operator(*args, dim if operator is norm_backward else dim[0])
    got = operator(*args, dim if operator is norm_backward else dim[0])
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
    dims = [d % x.ndim for d in dim]
    rows = [d for d in range(x.ndim) if d not in dims]
    shape = [n if i in rows else 1 for i, n in enumerate(x.shape)]
    hat = (x - mean.view(shape)).abs() * rstd.view(shape).abs()
    wide = weight.abs().reshape([n if i in dims else 1 for i, n in enumerate(x.shape)])
    g = dy.abs() * wide
    terms = rstd.view(shape) * (g + g.mean(dims, keepdim=True) + hat * (g * hat).mean(dims, keepdim=True))
    magnitudes = [terms, (dy.abs() * hat).sum(rows), dy.abs().sum(rows)]
    for name, a, b, scale in zip(("dx", "dweight", "dbias"), got, want, magnitudes, strict=False):
        ulp = {BF16: 2**-8, FP16: 2**-11, FP32: 2**-24, FP64: 2**-53}[a.dtype]
        exact = 2**-53 if x.dtype is FP64 and args[1].dtype is FP64 else 2**-24
        bound = scale * exact * 64 + b.abs() * ulp + 2**-24 * (a.dtype is FP16)
        past = b.abs() >= torch.finfo(a.dtype).max  # which fp16 does not hold
        assert torch.equal(a[past].isinf(), torch.ones_like(past[past])), name
        off = (a.double() - b)[~past].abs() / bound[~past].clamp(min=1e-30)
        worst = off.max() if off.numel() else 0
        assert worst <= 1, (name, tuple(x.shape), args[1].dtype, float(worst))


def check_norm(x, weight, bias, **options):
    """Against float64, relatively to the terms that are added; the same bits once more."""
    got, want = layer_norm(x, weight, bias, **options), forward_of(x.double(), weight.double(), bias.double())
    scale = (want[0] - bias.double()).abs() + bias.double().abs()
    ulp = {BF16: 2**-8, FP16: 2**-11, FP32: 2**-22}[x.dtype]
    assert ((got[0].double() - want[0]).abs() <= scale * (ulp + 2**-20) + 2**-18).all()
    assert all(map(torch.equal, got, layer_norm(x, weight, bias, **options)))
    return got, want


WIDTHS = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 500, 511, 512, 513, 777]
WIDTHS += [1000, 1023, 1024, 1025, 1536, 2047, 2048, 2049, 3000, 4095, 4096, 4097, 5000, 5120, 7168, 8191, 8192, 8193]
WIDTHS += [10000, 12288, 16383, 16384, 16385, 20000]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, FP64], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_gradients_of_any_width(width, dtype):
    for rows in (1, 37, 700):
        check(norm_backward, inputs((rows, width), dtype))
        check(rms_backward, inputs((rows, width), dtype, seed=1)[:4])


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 16, 31, 32, 33, 131, 132, 133, 263, 264, 265, 1000, 4096, 20011, 100000])
def test_gradients_of_any_number_of_rows(rows):
    for width in (64, 96, 333, 1024, 4096):
        if rows * width <= 2**27:
            check(norm_backward, inputs((rows, width), BF16, FP32))
            check(rms_backward, inputs((rows, width), FP32)[:4])


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0, 1, 3, 4, 8])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_gradients_of_rows_at_any_offset(dtype, offset):
    for width in (64, 100, 1000, 1001, 4096, 6000):
        check(norm_backward, inputs((300, width), dtype, offset=offset))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "of_x, of_dy, of_weight", [(BF16, FP32, FP32), (FP32, BF16, BF16), (FP16, FP16, FP32)], ids=str
)
def test_gradients_of_any_mix_of_dtypes(of_x, of_dy, of_weight):
    for shape in ((700, 64), (700, 200), (700, 1000), (300, 1001), (300, 4096), (100, 16384), (40, 40000)):
        dy, x, weight, rstd, mean = inputs(shape, of_x, of_weight)
        check(norm_backward, (dy.to(of_dy), x, weight, rstd, mean))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("width", [16384, 24576, 32768, 50000, 65536, 100000, 131072])
def test_gradients_of_rows_of_clusters(width, dtype):
    for rows in (1, 8, 9, 100, 333, 1057):
        check(norm_backward, inputs((rows, width), dtype))
    check(rms_backward, inputs((500, width), dtype)[:4])


@pytest.mark.gpu
def test_gradients_of_any_strides_and_dims():
    dy, x, weight, rstd, mean = inputs((200, 600), FP32)
    for of_dy, of_x in ((dy.t().contiguous().t(), x), (dy, x.t().contiguous().t()), (dy.repeat(1, 2)[:, :600], x)):
        check(norm_backward, (of_dy, of_x, weight, rstd, mean))
    for expanded in (dy[:1].expand(200, 600), dy[:, :1].expand(200, 600), dy[:1, :1].expand(200, 600)):
        check(norm_backward, (expanded, x, weight, rstd, mean))
    check(norm_backward, (dy, x[:1].expand(200, 600), weight, rstd[:1].expand(200), mean[:1].expand(200)))
    dy, x = (torch.randn(20, 30, 8, 16, device="cuda") for _ in range(2))
    rstd, mean = torch.rand(20, 30, device="cuda"), torch.randn(20, 30, device="cuda")
    check(norm_backward, (dy, x, torch.randn(8, 16, device="cuda"), rstd, mean), (2, 3))
    rstd, mean = torch.rand(30, 16, device="cuda"), torch.randn(30, 16, device="cuda")
    check(norm_backward, (dy, x, torch.randn(20, 8, device="cuda"), rstd, mean), (0, 2))
    rstd, mean = torch.rand(30, 8, 16, device="cuda"), torch.randn(30, 8, 16, device="cuda")
    check(norm_backward, (dy, x, torch.randn(20, device="cuda"), rstd, mean), (0,))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("width", [513, 1001, 3001, 5003, 17001])
def test_what_is_beside_rows_that_begin_anywhere_does_not_count(width, dtype):
    dy, x, *rest = inputs((1500, width), dtype)
    for beside in (0, 8, 16):  # between rows, and before the first and behind the last one
        flat = [torch.full((1500 * (width + beside) + 16,), float("nan"), dtype=dtype, device="cuda") for _ in range(2)]
        apart = [f[8:-8].view(1500, -1)[:, :width].copy_(t) for f, t in zip(flat, (dy, x), strict=True)]
        assert norm_backward.explain(*apart, *rest).config.align == "shifted"
        check(norm_backward, (*apart, *rest))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("width", [513, 1001, 5003, 10007, 50257, 100003])
def test_a_norm_of_many_rows_that_begin_anywhere(width, dtype):
    rows = 2**25 // (width * dtype.itemsize) + 1
    for offset in (0, 1, 8):
        _, x, weight, _, _ = inputs((rows, width), dtype, offset=offset)
        bias = torch.randn_like(weight)
        config = layer_norm.explain(x, weight, bias).config
        assert (config.align, config.columns_realigned) == (("unaligned", False) if offset == 1 else ("shifted", True))
        check_norm(x, weight, bias)


@pytest.mark.gpu
def test_sums_over_no_rows_are_0_and_rows_without_elements_have_none():
    for shape in ((0, 64), (0, 5000), (3, 0), (0, 0)):
        dx, dweight, dbias = norm_backward(*inputs(shape, FP32))
        assert dx.shape == shape
        assert dweight.eq(0).all()
        assert dbias.eq(0).all()


@pytest.mark.gpu
def test_what_is_not_finite_stays_in_its_row_and_its_column():
    for width in (64, 1000, 1001, 4096, 40000):
        dy, x, weight, rstd, mean = inputs((100, width), FP32)
        dy[3, 5] = float("nan")
        dx, dweight, dbias = norm_backward(dy, x, weight, rstd, mean)
        assert dx[3].isnan().all()
        assert dx.isnan().sum() == width
        assert dweight.isnan().nonzero().tolist() == dbias.isnan().nonzero().tolist() == [[5]]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize(
    "width", [1, 5, 64, 100, 333, 1000, 1024, 4096, 5000, 8192, 16384, 20000, 20001, 30000, 65536, 131072, 200000]
)
def test_a_norm_by_blocks_that_stay(width, dtype):
    for rows in (1, 37, 700) if width < 65536 else (1, 37, 300):
        _, x, weight, _, _ = inputs((rows, width), dtype, FP32)
        got, want = check_norm(x, weight, torch.randn_like(weight), variant="persistent")
        assert (got[1].double() - want[1]).abs().max() < 2**-18
        assert ((got[2].double() - want[2]).abs() / want[2]).max() < 2**-18


@pytest.mark.gpu
def test_rows_whose_bytes_are_more_than_2_31():
    dy, x, weight, rstd, mean = inputs((300000, 4096), BF16)
    dx, _, dbias = norm_backward(dy, x, weight, rstd, mean)
    want = backward_of(
        *(t[-100:].double() for t in (dy, x)), weight.double(), *(t[-100:].double() for t in (rstd, mean))
    )
    assert ((dx[-100:].double() - want[0]).abs() <= 2**-7 * want[0].abs() + 2**-10).all()
    exact = dy.sum(0, dtype=FP64)
    assert ((dbias.double() - exact).abs() <= 2**-7 * exact.abs() + 300000 * 2**-24).all()


@pytest.mark.gpu
def test_a_replayed_graph_finds_what_a_call_finds():
    args = inputs((1000, 4096), BF16)
    want, graph = norm_backward(*args), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = norm_backward(*args)
    for _ in range(3):
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_program_with_sums_over_rows_needs_their_kernel():
    schema = "forge_test_accumulates::none(Tensor dy, Tensor x, Tensor weight, Tensor rstd, Tensor mean) -> Tensor dx"
    with pytest.raises(ValueError, match=r"none: expected kernels=PERSISTENT .* got stream"):
        row_operator(schema, program=NormBackward(), reference=backward_of)
