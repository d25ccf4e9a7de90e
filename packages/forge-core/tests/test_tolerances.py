"""The rule of forge_core.testing.tolerances: what it accepts, and what it refuses in each dtype."""

from __future__ import annotations

import pytest
import torch

from forge_core.bench import gate
from forge_core.testing import Subject, assert_near_float64
from forge_core.testing.planted import one_row_scaled, rounded_twice, small_results_doubled, small_results_zeroed
from forge_core.testing.softmax_bounds import softmax_bound
from forge_core.testing.subject import bounds_of
from forge_core.testing.tolerances import half_ulp, product_bound

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
#: The rows of week 2's samples.
SHAPES = (((300, 64), -1), ((33, 4097), -1), ((3, 2**15), -1), ((4097, 40), 0), ((70, 1031), 0))
CPU = torch.device("cpu")


def samples(device):
    for dtype in FLOATS:
        for shape, dim in SHAPES:
            generator = torch.Generator(device).manual_seed(shape[1])
            yield (3 * torch.randn(shape, dtype=torch.float64, device=device, generator=generator)).to(dtype), dim


def softmax(x, dim):
    """Computed in fp32 or fp64 and rounded once, along contiguous rows, as the kernels do."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).movedim(dim, -1).contiguous()
    return torch.softmax(wide, -1).to(x.dtype).movedim(-1, dim).contiguous()


def floor(x, dim):
    return softmax_bound(x.double(), dim, torch.promote_types(x.dtype, torch.float32))


def unlike(x, dim):
    """A reference in float64 alone, so that nothing is accepted for being equal to PyTorch's result."""
    return softmax(x, dim) if x.dtype is torch.float64 else torch.full_like(x, float("nan"))


SOFTMAX = Subject(softmax, samples, floor, reference=unlike)


def below_a_thousandth_zeroed(right):
    def wrong(x, dim):
        y = right(x, dim)
        return y.masked_fill(y < 1e-3, 0)

    return wrong


def below_half_a_thousandth_doubled(right):
    def wrong(x, dim):
        y = right(x, dim)
        return torch.where(y < 5e-4, 2 * y, y)

    return wrong


FAULTS = (
    small_results_zeroed,
    small_results_doubled,
    one_row_scaled,
    rounded_twice,
    below_a_thousandth_zeroed,
    below_half_a_thousandth_doubled,
)


def of(dtype):
    return [args for args in samples(CPU) if args[0].dtype == dtype]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_right_softmax_is_accepted(dtype):
    for args in of(dtype):
        share = SOFTMAX.judge(softmax(*args), args, {}, "softmax")
        # The reference of fp64 is the same function.
        assert share == 0 if dtype is torch.float64 else 0.01 < share <= 1


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_fault_is_refused_in_every_sample(dtype, fault):
    wrong = fault(softmax)
    for args in of(dtype):
        with pytest.raises(AssertionError, match="results are off"):
            SOFTMAX.judge(wrong(*args), args, {}, "softmax")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_small_result_has_a_small_allowance(dtype):
    exact = torch.tensor([1.0, 2.0**-10], dtype=torch.float64)
    right = exact.to(dtype)
    floor = torch.finfo(dtype).eps * exact
    assert assert_near_float64(right, exact, right, floor=floor) == 0
    for element in (0, 1):
        got = right.clone()
        got[element] *= 1 + torch.finfo(dtype).eps
        share = assert_near_float64(got, exact, right, floor=floor)
        assert share == pytest.approx(1 / 1.5)
        got[element] *= 1 + 2 * torch.finfo(dtype).eps
        with pytest.raises(AssertionError, match=rf"1 of 2 results are off; first at \({element},\)"):
            assert_near_float64(got, exact, right, floor=floor)


def test_the_largest_error_of_pytorch_makes_no_room():
    exact = torch.tensor([1.0, 1.0], dtype=torch.float64)
    peer = torch.tensor([1.5, 1.0])
    with pytest.raises(AssertionError, match="1 of 2 results are off"):
        assert_near_float64(torch.tensor([1.0, 1.001]), exact, peer, floor=0.0)
    # Its own result is accepted, and shows in the share.
    assert assert_near_float64(peer, exact, peer, floor=0.0) == pytest.approx(0.5 / 2**-24)


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    "got, exact, peer, accepted",
    [
        (NAN, NAN, NAN, True),
        (INF, INF, INF, True),
        (INF, 1e300, INF, True),  # overflows fp32 for PyTorch too
        (INF, 1.0, 1.0, False),
        (NAN, 1.0, 1.0, False),
        (1.0, NAN, NAN, False),
        (1.0, INF, INF, False),
        (-INF, INF, INF, False),
        (INF, 3.4e38, 3.4e38, False),
    ],
)
def test_nan_infinities_and_overflow(got, exact, peer, accepted):
    tensors = torch.tensor([got]), torch.tensor([exact], dtype=torch.float64), torch.tensor([peer])
    for floor in (1e-6, torch.tensor([1e-6], dtype=torch.float64), INF):
        if accepted:
            assert assert_near_float64(*tensors, floor=floor) == 0
        else:
            with pytest.raises(AssertionError, match="1 of 1 results are off"):
                assert_near_float64(*tensors, floor=floor)


def test_shapes_and_dtypes():
    x, wide = torch.ones(3), torch.ones(3, dtype=torch.float64)
    with pytest.raises(AssertionError, match=r"expected the shape \(2,\) of float64, got \(3,\)"):
        assert_near_float64(x, wide[:2], x, floor=0.0)
    with pytest.raises(AssertionError, match=r"expected the shape \(1,\) of PyTorch, got \(3,\)"):
        assert_near_float64(x, wide, x[:1], floor=0.0)
    with pytest.raises(AssertionError, match=r"expected dtype torch\.float16, got torch\.float32"):
        assert_near_float64(x, wide, x.half(), floor=0.0)
    assert assert_near_float64(x[:0], wide[:0], x[:0], floor=0.0) == 0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_half_an_ulp(dtype):
    info = torch.finfo(dtype)
    values = torch.tensor([1.0, 1.5, 2.0, info.max], dtype=torch.float64)
    assert half_ulp(values, dtype).tolist() == [info.eps / 2, info.eps / 2, info.eps, info.max / (2 / info.eps - 1) / 2]
    if dtype is not torch.float64:  # whose smallest number has no half
        subnormal = torch.tensor([0.0, info.smallest_normal / 4], dtype=torch.float64)
        assert half_ulp(subnormal, dtype).tolist() == [info.smallest_normal * info.eps / 2] * 2


def test_a_product_s_bound_counts_the_factors_that_round():
    x = torch.tensor([[1.0, -1.0, 2.0, 0.5], [1.5, 1.0, 1.0, 1.0], [1.5, 1.5, 3.0, 1.0]], dtype=torch.float64)
    eps = torch.finfo(torch.float32).eps
    assert product_bound(x, 1, torch.float32).tolist() == [0.0, 0.0, 2 * eps * 6.75]


def test_the_largest_bound_of_each_dtype():
    found = bounds_of(SOFTMAX, CPU)
    assert list(found) == ["bfloat16", "float16", "float32", "float64"]
    assert found["float32"] == max(float(floor(*args).max()) for args in of(torch.float32))
    assert bounds_of(Subject(softmax, samples), CPU) == {}
    constant = Subject(torch.sum, lambda device: [(torch.ones(3), 0)], lambda x, dim: 0.5)
    assert bounds_of(constant, CPU) == {"float32": 0.5}


def test_the_gate_of_benchmarks_compares_piece_by_piece(monkeypatch):
    monkeypatch.setattr(gate, "PIECE", 5000)
    x, dim = of(torch.float32)[0]
    y = softmax(x, dim)
    assert gate.near(SOFTMAX, (x,), (dim,), y, y) == ""
    for row, part in ((0, 0), (299, 234)):  # 78 rows a piece
        wrong = y.clone()
        wrong[row] *= 1 + 2**-7
        assert gate.near(SOFTMAX, (x,), (dim,), wrong, y).startswith(f"part from {part}: 64 of ")
    assert "expected (300, 64) torch.float32, got (299, 64)" in gate.near(SOFTMAX, (x,), (dim,), y[1:], y)
    columns, summed = x.abs(), Subject(torch.sum, floor=lambda x, dim: 1e-5 * x.double().sum(dim), reference=torch.sum)
    total = columns.sum(0)
    assert gate.near(summed, (columns,), (0,), total, total, dim=1) == ""
    assert gate.near(summed, (columns,), (0,), total.roll(1), total, dim=1)


def test_what_is_exact_uses_no_allowance():
    subject = Subject(torch.sum, floor=lambda x, dim: 0.5, reference=torch.sum)
    whole = torch.arange(3)
    assert subject.judge(torch.sum(whole, 0), (whole, 0), {}, "sum") == 0
    with pytest.raises(AssertionError, match=r"^sum: .*1 of 1 elements differ"):
        subject.judge(torch.sum(whole, 0) + 1, (whole, 0), {}, "sum")
