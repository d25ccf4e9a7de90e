"""The rule of forge_core.testing.tolerances: what it accepts, and what it refuses in each dtype."""

from __future__ import annotations

import pytest
import torch

from forge_core.bench import gate
from forge_core.testing import Subject, assert_near_float64, assert_same_bits
from forge_core.testing.tolerances import half_ulp, product_bound

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
CPU = torch.device("cpu")


def samples(device):
    x = torch.randn(300, 64, dtype=torch.float64, device=device, generator=torch.Generator(device).manual_seed(0))
    return ((x.to(dtype), -1) for dtype in FLOATS)


def floor(x, dim):
    return 2.0**-20 * torch.softmax(x.double(), dim)


SOFTMAX = Subject(torch.softmax, samples, floor, reference=torch.softmax)


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


def test_the_gate_of_benchmarks_compares_piece_by_piece(monkeypatch):
    monkeypatch.setattr(gate, "PIECE", 5000)
    x, dim = next(samples(CPU))[0].float(), -1
    y = torch.softmax(x, dim)
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


def test_bits_differ_where_values_do_not():
    nan = torch.full((2, 2), float("nan"))
    assert_same_bits(nan, nan.clone())
    other = nan.clone()
    other.view(torch.int32)[0, 1] ^= 1
    with pytest.raises(AssertionError, match="1 of 4 elements differ"):
        assert_same_bits(other, nan)
    zero = torch.zeros(3, 4)
    for got, text in ((-zero, "12 of 12 elements differ"), (torch.zeros(4, 3).t(), "strides"), (zero[:1], "shape")):
        with pytest.raises(AssertionError, match=text):
            assert_same_bits(got, zero)
    with pytest.raises(AssertionError, match="dtype"):
        assert_same_bits(zero.double(), zero)
