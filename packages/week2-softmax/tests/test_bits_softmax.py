"""The models of week 2's trees, for every variant: on the CPU they are proven, on a GPU the kernels give their bits.

What a GPU computes by IEEE operations alone is compared with the model as it is: additions, products, divisions.  The
exponential is no such operation, so a model of a forward pass is given the GPU's own: a gradient of log_softmax is
``g - exp(y) * sum(g)``, which for g = (-1, 0, 0, ...) is the exponential of y, bit for bit.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

import forge_week2_softmax as week2
from forge_core.device import SPECS, query
from forge_core.errors import UnsupportedError
from forge_core.testing import trees
from forge_core.testing.expectations import compiled_for
from forge_week2_softmax import elements, layouts
from forge_week2_softmax.config import plan_backward, plan_forward
from forge_week2_softmax.configs import ColumnConfig, Config, HeldConfig, PartsConfig, SweepConfig
from forge_week2_softmax.steps import STRANDS, Pairs, Sums, fused
from forge_week2_softmax.trees import MODELS, row

F32 = np.float32
FP32 = trees.sums(F32)

#: For each variant, shapes of matrices and the dimension of a row: lanes, blocks and clusters; rows that begin
#: anywhere; rows read element by element; columns held and read twice, with one row a thread and with four.
SHAPES = {
    "naive": [((3, 5), -1), ((3, 1000), -1), ((3, 4099), -1), ((1000, 12), 0)],
    "online": [((3, 8), -1), ((3, 4096), -1), ((3, 8191), -1), ((3, 50257), -1), ((1000, 12), 0)],
    "single_pass": [
        *(((3, 8), -1), ((3, 100), -1), ((3, 257), -1), ((3, 4096), -1), ((3, 8191), -1), ((3, 16384), -1)),
        # More than there are threads for at once: lanes that do not find the maximum first.
        ((17000, 100), -1),
    ],
    "cluster": [
        *(((3, 2048), -1), ((3, 8191), -1), ((3, 65536), -1), ((70, 50257), -1)),
        # A part of these waits in shared memory.
        *(((9, 2**18), -1), ((9, 200001), -1)),
    ],
    "grid": [((3, 8), -1), ((3, 4096), -1), ((1, 2**18), -1), ((3, 2**17), -1), ((20, 2**16), -1)],
    "split": [((3, 4096), -1), ((3, 50257), -1), ((1, 2**18), -1), ((20, 2**16), -1), ((20, 2**16 + 1), -1)],
    "column": [((100, 64), 0), ((3000, 64), 0), ((1000, 7), 0), ((9, 128), 0)],
}
CASES = [(variant, shape, dim) for variant, shapes in SHAPES.items() for shape, dim in shapes]

OPS = ("softmax", "softmax_backward", "log_softmax_backward")


def told_of(op, variant, shape, dim, device=SPECS["H200"]):
    """What is launched for contiguous tensors that begin at a multiple of 16 bytes."""
    x = torch.empty(shape, device="meta")
    dims = (dim % 2,)
    if op == "softmax":
        return plan_forward(op, x, x, dims, None, device, variant)
    return plan_backward(op.removesuffix("_backward"), x, x, (x,), dims, device, variant)


def parts_of(told):
    return told.arguments[1] if isinstance(told.config, PartsConfig) else 1


def row_config(config):
    return config.row if isinstance(config, PartsConfig) else config


def shifts_of(config):
    own = row_config(config)
    return (0, 1, own.vector - 1) if getattr(own, "edges", False) else (0,)


def shift_of(config, number, length):
    """By how much a row of a contiguous matrix begins after a chunk's first element."""
    own = row_config(config)
    return number * length % own.vector if getattr(own, "edges", False) else 0


def model(told, steps, length, shift=0):
    return row(steps, length, told.config, parts=parts_of(told), shift=shift)


def exponential(x):
    return np.exp2((x * F32(np.log2(np.e))).astype(F32)).astype(F32)


# ---- the models themselves -----------------------------------------------------------------------------------------


def test_every_configuration_has_a_model():
    assert set(MODELS) == set(Config.__args__)


def test_the_shapes_meet_every_kind_of_kernel():
    configs = [told_of("softmax", *case).config for case in CASES]
    held = [config for config in configs if isinstance(config, HeldConfig)]
    assert {config.lanes > 32 for config in held} == {True, False}
    assert {(config.top_first, config.edges) for config in held if 1 < config.lanes <= 32} >= {
        *((True, True), (True, False), (False, False))
    }
    assert {config.edges for config in held} == {True, False}
    assert {(config.staged > 0, config.edges) for config in held if config.blocks > 1} == {
        *product((True, False), repeat=2)
    }
    # More warps in a cluster than lanes in a warp, and fewer.
    assert {config.threads // 32 * config.blocks > 32 for config in held if config.blocks > 1} == {True, False}
    assert {bool(config.reduced_rank) for config in configs if isinstance(config, SweepConfig)} == {True, False}
    columns = [config for config in configs if isinstance(config, ColumnConfig)]
    assert {config.held for config in columns} == {True, False}
    assert {config.vector for config in columns} == {1, 4}


def bytes_of(places, size, shift):
    return sorted((int(place) + shift) * size + byte for place in places[places >= 0] for byte in range(size))


def touched(accesses):
    """For each thread, its bytes."""
    threads = len(accesses[0].places)
    return [
        sorted(a.places[t] + byte for a in accesses if a.places[t] is not None for byte in range(a.width))
        for t in range(threads)
    ]


@pytest.mark.parametrize("variant, shape, dim", [case for case in CASES if np.prod(case[1]) < 30_000], ids=str)
def test_the_models_have_the_elements_of_the_index_maps(variant, shape, dim):
    told = told_of("softmax", variant, shape, dim)
    config, length = told.config, shape[dim]
    own = row_config(config)
    for shift in shifts_of(config):
        if isinstance(config, HeldConfig):
            for rank in range(config.blocks):
                whole, ends = elements.held_elements(config, length, shift=shift, rank=rank)
                mine = [bytes_of(np.append(whole[:, t], ends[:, t]), 4, shift) for t in range(config.lanes)]
                assert mine == touched(layouts.held_accesses(config, length, shift=shift, rank=rank))
        elif isinstance(config, ColumnConfig):
            places = elements.column_elements(config, length)
            mine = [bytes_of(places[..., group], 4, 0) for group in range(config.groups)]
            accesses = layouts.column_accesses(config, length, config.tile, 0)
            row_bytes = config.tile * 4
            first = [each[:: config.vector * 4] for each in touched(accesses)[:: config.lanes]]
            assert [sorted({b // 4 for b in each}) for each in mine] == [[b // row_bytes for b in f] for f in first]
        else:
            parts = parts_of(told)
            for part in range(parts):
                begin, end = layouts.part_of(own, length, part, parts, shift=shift)
                places = elements.sweep_elements(own, length, shift=shift, begin=begin, end=end)
                mine = [bytes_of(places[:, :, t], 4, shift) for t in range(own.threads)]
                accesses = layouts.sweep_accesses(own, length, shift=shift, part=part, parts=parts)
                assert mine == (touched(accesses) if accesses else [[]] * own.threads)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("variant, shape, dim", CASES, ids=str)
def test_every_term_is_counted_once(variant, shape, dim, op):
    told, length = told_of(op, variant, shape, dim), shape[dim]
    # Up to 2^24 whole numbers add up exactly; a number of its own for each place tells them apart.
    marks = (np.arange(length) % 61).astype(F32)
    for shift in shifts_of(told.config):
        if op == "softmax":
            top, total = model(told, Pairs(np.full(length, 7, F32), exponential), length, shift)
            assert (top, total) == (7, length)
            some = np.where(marks % 3 == 0, F32(-2.5), F32(-np.inf))
            top, total = model(told, Pairs(some, exponential), length, shift)
            assert (top, total) == (-2.5, np.isfinite(some).sum())
        else:
            assert model(told, Sums(FP32, marks), length, shift) == (marks.astype(np.int64).sum(),)
            weights = np.ldexp(F32(1), np.arange(length) % 3)
            assert model(told, Sums(FP32, marks, weights), length, shift) == ((marks * weights).astype(int).sum(),)


def test_a_row_of_nothing_but_minus_infinity_has_no_sum():
    for variant, shape, dim in CASES:
        told, length = told_of("softmax", variant, shape, dim), shape[dim]
        assert model(told, Pairs(np.full(length, -np.inf, F32), exponential), length) == (-np.inf, 0)


def test_a_fused_multiply_add_rounds_once():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(4000).astype(F32) * F32(2) ** rng.integers(-20, 20, 4000) for _ in range(2))
    c = (-a * b * (1 + rng.integers(-2, 3, 4000) * F32(2) ** -22)).astype(F32)
    c[::3] = rng.standard_normal(len(c[::3])).astype(F32)
    a, b = a.astype(F32), b.astype(F32)
    # Ties of fp32 that the product decides, far below the last bit.
    a[:8], b[:8], c[:8] = 2.0**-30, [1, -1] * 4, [1 + 2.0**-24 * 0, 1, 1, 1, 2.0**24, 2.0**24, 3, 5]
    got = fused(a, b, c)
    for x, y, z, result in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        near = [float(np.nextafter(result, F32(side))) for side in (-np.inf, np.inf)]
        error = abs(Fraction(float(result)) - exact)
        assert all(error <= abs(Fraction(other) - exact) for other in near)
    assert fused(F32([0, 1]), F32([0, 2]), F32([3, np.inf])).tolist() == [3, np.inf]


@pytest.mark.parametrize("variant, shape, dim", CASES, ids=str)
def test_a_lane_that_is_left_out_is_noticed(variant, shape, dim, monkeypatch):
    length = shape[dim]
    told = told_of("softmax", variant, shape, dim)
    x = np.zeros(length, F32)
    of, together = Pairs.of, Pairs.together

    def without_one(groups):
        groups = [places.copy() for places in groups]
        lanes = groups[0].shape[1]
        has = np.flatnonzero((groups[0] >= 0).any(0))
        for places in groups:
            places[:, has[len(has) // 2] if len(has) else lanes - 1] = -1
        return groups

    if told.config.__class__ is SweepConfig and told.config.idea == "naive":
        monkeypatch.setattr(Pairs, "_own", lambda self, places: np.where(places == length // 2, -np.inf, F32(0)))
    monkeypatch.setattr(Pairs, "of", lambda self, groups: of(self, without_one(groups)))
    monkeypatch.setattr(Pairs, "together", lambda self, groups, lanes: together(self, without_one(groups), lanes))
    assert model(told, Pairs(x, exponential), length) != (0, length)


# ---- the kernels ---------------------------------------------------------------------------------------------------


def on_gpu(op, variant, shape, dim):
    """What runs for a case; skips it where this GPU has no clusters, which the operator says."""
    try:
        return told_of(op, variant, shape, dim, query(torch.device("cuda", torch.cuda.current_device())))
    except UnsupportedError:
        assert variant == "cluster" and torch.cuda.get_device_capability() < (9, 0)
        pytest.skip("clusters need sm_90 or newer")


def some_rows(shape, dim):
    """Some rows of a matrix, by number."""
    count = shape[0] if dim == -1 else shape[1]
    return sorted({0, 1 % count, count // 2, count - 1})


def row_of(x, dim, number):
    return x.select(1 if dim == 0 else 0, number).contiguous().numpy()


def same_rows(got, dim, want):
    for number, expected in want.items():
        np.testing.assert_array_equal(row_of(got, dim, number), expected, err_msg=f"row {number}")


def randn(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.gpu
@pytest.mark.parametrize("variant, shape, dim", CASES, ids=str)
def test_sums_of_gradients_have_the_models_bits(variant, shape, dim):
    # exp(0) is 1, so where the output is 0 everywhere the gradient of log_softmax is g - sum(g): only additions.
    told = on_gpu("log_softmax_backward", variant, shape, dim)
    grad, length = randn(shape, shape[dim]), shape[dim]
    got = week2.log_softmax_backward(grad.cuda(), torch.zeros(shape, device="cuda"), dim, variant=variant).cpu()
    want = {}
    for number in some_rows(shape, dim):
        own = row_of(grad, dim, number)
        want[number] = own - model(told, Sums(FP32, own), length, shift_of(told.config, number, length))[0]
    same_rows(got, dim, want)


@pytest.mark.gpu
@pytest.mark.parametrize("variant, shape, dim", CASES, ids=str)
def test_sums_of_exact_products_have_the_models_bits(variant, shape, dim):
    # Products with powers of two are exact, so that it does not matter which of them the compiler fuses.
    told = on_gpu("softmax_backward", variant, shape, dim)
    grad, length = randn(shape, shape[dim]), shape[dim]
    powers = np.ldexp(np.sign(randn(shape, 1).numpy()), np.rint(3 * randn(shape, 2).numpy()).astype(np.int32))
    y = torch.from_numpy(powers)
    got = week2.softmax_backward(grad.cuda(), y.cuda(), dim, variant=variant).cpu()
    want = {}
    for number in some_rows(shape, dim):
        g, p = row_of(grad, dim, number), row_of(y, dim, number)
        want[number] = p * (g - model(told, Sums(FP32, g, p), length, shift_of(told.config, number, length))[0])
    same_rows(got, dim, want)


def loads_of(config):
    """Loads of a thread whose products are added at once; 0 where the ends of a row are added apart."""
    own = row_config(config)
    if isinstance(own, ColumnConfig) or (isinstance(own, HeldConfig) and own.edges) or own.vector != 4:
        return 0
    return own.chunks if isinstance(own, HeldConfig) else own.unroll


#: Cases whose running sums have two products each or more, and whose code adds the first product to the second; a test
#: reads it off the code.  Elsewhere which of two products is fused differs from sum to sum.
FUSED = [case for case in CASES if loads_of(told_of("softmax_backward", *case).config) in (2, 8)]


def test_there_are_fused_sums_of_rows_in_one_block_in_several_and_in_passes():
    assert {case[0] for case in FUSED} >= {"online", "single_pass", "cluster", "grid", "split"}


def products_in(ptx):
    """For each register of a product, (first factor's load, which element of it, the register that it is added to)."""
    loads, found, names, count = {}, {}, {}, 0
    for line in ptx.splitlines():
        read = re.search(r"ld\.global\S*\s+\{?([^}\]]*?)\}?, \[", line)
        if read:
            words = {name: (count, i) for i, name in enumerate(re.findall(r"[%\w]+", read.group(1)))}
            loads |= words
            # A predicated load has names of its own for its words, which are moved to registers behind it.
            names, count = {name: place for name, place in words.items() if not name.startswith("%")}, count + 1
        moved = re.match(r"\s*mov\.b32\s+(%\w+), (\w+);", line)
        if moved and moved.group(2) in names:
            loads[moved.group(1)] = names[moved.group(2)]
        made = re.match(r"\s*(mul|fma\.rn)\.f32\s+(%\w+), (%\w+), (%\w+)(?:, (%\w+))?;", line)
        if made and made.group(3) in loads and made.group(4) in loads:
            place = min(loads[made.group(3)], loads[made.group(4)])
            found[made.group(2)] = (*place, made.group(5))
    return found


@pytest.mark.parametrize("variant, shape, dim", FUSED, ids=str)
def test_the_first_product_is_added_to_the_second(variant, shape, dim):
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")
    plan = told_of("softmax_backward", variant, shape, dim)
    products = products_in(compiled_for(plan.builder, plan.config, "sm_90a").ptx)
    alone = {register for register, (_, _, added) in products.items() if added is None}
    pairs = [(each[:2], products[each[2]][:2]) for each in products.values() if each[2] in alone]
    assert len(pairs) >= STRANDS
    assert all(first < second for first, second in pairs)


@pytest.mark.gpu
@pytest.mark.parametrize("variant, shape, dim", FUSED, ids=str)
def test_sums_of_fused_products_have_the_models_bits(variant, shape, dim):
    told = on_gpu("softmax_backward", variant, shape, dim)
    if told.config != told_of("softmax_backward", variant, shape, dim).config:
        assert "H200" not in torch.cuda.get_device_name(), "its code is what was read"
        return
    grad, y, length = randn(shape, shape[dim]), randn(shape, 3), shape[dim]
    got = week2.softmax_backward(grad.cuda(), y.cuda(), dim, variant=variant).cpu()
    want = {}
    for number in some_rows(shape, dim):
        g, p = row_of(grad, dim, number), row_of(y, dim, number)
        steps = Sums(FP32, g, p, product=fused)
        want[number] = p * (g - model(told, steps, length, shift_of(told.config, number, length))[0])
    same_rows(got, dim, want)


#: All shapes in fp32, and some of every variant in other types.
TYPED = [(*case, torch.float32) for case in CASES] + [
    (*case, dtype) for dtype in (torch.bfloat16, torch.float64) for case in CASES[1::3]
]


@pytest.mark.gpu
@pytest.mark.parametrize("variant, shape, dim, dtype", TYPED, ids=str)
def test_rows_of_one_value_and_minus_infinity_are_counted(variant, shape, dim, dtype):
    # Every exponential is 1 or 0, so the sum is a count in any order, and the division is IEEE's.
    if on_gpu("softmax", variant, shape, dim) is None:
        return
    kept = randn(shape, shape[dim]) > 0.5
    kept.select(dim, shape[dim] // 2).fill_(value=True)
    value = (3 * randn(shape, 4).select(dim, 0).unsqueeze(dim)).to(dtype)
    x = torch.where(kept, value, torch.tensor(-float("inf"), dtype=dtype))
    acc = torch.float64 if dtype is torch.float64 else torch.float32
    one = (1 / kept.sum(dim, keepdim=True).to(acc)).to(dtype)
    try:
        got = week2.softmax(x.cuda(), dim, variant=variant).cpu()
    except UnsupportedError:
        assert dtype is torch.float64 and variant in ("single_pass", "cluster")  # rows twice as wide
        return
    assert torch.equal(got, torch.where(kept, one, torch.zeros((), dtype=dtype)))


@pytest.mark.gpu
@pytest.mark.parametrize("variant, length", [("single_pass", 2049), ("online", 2048), ("split", 4099)])
def test_the_reciprocal_of_every_count_is_rounded_once(variant, length):
    x = torch.zeros(length, length).masked_fill(torch.ones(length, length).triu(1).bool(), -float("inf"))
    got = week2.softmax(x.cuda(), variant=variant).cpu()
    counts = torch.arange(1, length + 1, dtype=torch.float32).unsqueeze(1)
    assert torch.equal(got, torch.where(x == 0, 1 / counts, torch.zeros(())))


@pytest.mark.gpu
@pytest.mark.parametrize("variant, shape, dim", CASES, ids=str)
def test_the_maximum_of_a_row_is_exact(variant, shape, dim):
    # All others are so far below one element that the sum is 1, whose logarithm is 0: x - max is left, and max.
    if on_gpu("softmax", variant, shape, dim) is None:
        return
    x = randn(shape, shape[dim]) - 300
    place = torch.randint(0, shape[dim], x.select(dim, 0).shape, generator=torch.Generator().manual_seed(1))
    top = randn(place.shape, 2)
    x.scatter_(dim, place.unsqueeze(dim), top.unsqueeze(dim))
    got = week2.log_softmax(x.cuda(), dim, variant=variant).cpu()
    assert torch.equal(got, x - top.unsqueeze(dim))
    assert torch.equal(week2.logsumexp(x.cuda(), dim, variant=variant).cpu(), top)


def gpus_exponential(x):
    """The kernels' exponential, by a gradient: g - exp(y) * sum(g) for g = (-1, 0, 0, ...)."""
    rows = max(-(-x.size // 4095), 1)
    y = np.zeros((rows, 4096), F32)
    y[:, 1:].flat[: x.size] = x.ravel()
    grad = torch.zeros(rows, 4096, device="cuda")
    grad[:, 0] = -1
    # One variant and one length: one kernel, whatever the model asks for.
    found = week2.log_softmax_backward(grad, torch.from_numpy(y).cuda(), -1, variant="online").cpu().numpy()
    return found[:, 1:].ravel()[: x.size].reshape(x.shape)


def received_once(config):
    """Whether a lane receives one pair of its cluster; of several products that it adds, the compiler fuses some."""
    return not isinstance(config, HeldConfig) or config.threads // 32 * config.blocks <= 32


#: Cases in which every step of a forward pass is known.
KNOWN = [case for case in CASES if received_once(told_of("softmax", *case).config)]


def test_there_are_known_forward_passes_of_every_variant():
    assert {case[0] for case in KNOWN} == set(SHAPES)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["random", "rising"])
@pytest.mark.parametrize("variant, shape, dim", KNOWN, ids=str)
def test_softmax_has_the_models_bits_with_the_gpus_exponentials(variant, shape, dim, kind):
    told = on_gpu("softmax", variant, shape, dim)
    if not received_once(told.config):
        assert "H200" not in torch.cuda.get_device_name(), "the cases are those that are known there"
        return
    x, length = 3 * randn(shape, shape[dim]), shape[dim]
    if kind == "rising":  # every merge brings a sum to a larger maximum
        x = x.sort(dim).values
    got = week2.softmax(x.cuda(), dim, variant=variant).cpu()
    want = {}
    for number in some_rows(shape, dim):
        own = row_of(x, dim, number)
        steps = Pairs(own, gpus_exponential)
        top, total = model(told, steps, length, shift_of(told.config, number, length))
        want[number] = gpus_exponential(own - top) * (F32(1) / total)
    same_rows(got, dim, want)


@pytest.mark.gpu
def test_the_gpus_exponential_is_within_its_bound_and_exact_where_it_must_be():
    assert gpus_exponential(F32([0, -np.inf, -200])).tolist() == [1, 0, 0]
    x = -np.abs(np.random.default_rng(2).standard_normal(100_000) * 20).astype(F32)
    exact = np.exp(x.astype(np.float64))
    error = np.abs(gpus_exponential(x) - exact)
    assert (error <= (4 + 3 * np.abs(x)) * 2.0**-24 * exact + 2.0**-126).all()
