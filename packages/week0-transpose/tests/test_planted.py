"""The tests are tested: planted wrong transpositions are refused by the assertion that the right one passes."""

from __future__ import annotations

import pytest
import torch

import forge_week0_transpose as week0
from forge_core.testing import assert_same_bits, random_bits
from forge_core.testing.conformance import check_side_stream
from forge_core.testing.planted import PLANTED, forgotten_stream, stale_output

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def expected(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float32, torch.complex128], ids=str)
@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_refused(fault: str, dtype: torch.dtype, device: str) -> None:
    wrong = PLANTED[fault](week0.transpose)
    for shape in ((40, 56), (33, 65), (3, 16, 24)):
        x = random_bits(shape, dtype, device)
        assert_same_bits(week0.transpose(x), expected(x))
        with pytest.raises(AssertionError):
            assert_same_bits(wrong(x), expected(x))


@pytest.mark.parametrize("device", DEVICES)
def test_a_stale_output_is_refused_on_fresh_inputs(device: str) -> None:
    wrong = stale_output(week0.transpose)
    first, second = (random_bits((32, 48), torch.float32, device, seed=seed) for seed in (0, 1))
    assert_same_bits(wrong(first), expected(first))
    with pytest.raises(AssertionError):
        assert_same_bits(wrong(second), expected(second))


@pytest.mark.gpu
def test_a_forgotten_stream_is_noticed() -> None:
    def make(seed: int) -> tuple[torch.Tensor]:
        return (random_bits((256, 512), torch.float32, "cuda", seed=seed),)

    check_side_stream(week0.transpose, make, expected, assert_same_bits)
    with pytest.raises(AssertionError):
        check_side_stream(forgotten_stream(week0.transpose), make, expected, assert_same_bits)


def test_the_oracle_sees_what_equality_does_not() -> None:
    nan = torch.full((2, 2), float("nan"))
    assert_same_bits(nan, nan.clone())
    other = nan.clone()
    other.view(torch.int32)[0, 1] ^= 1
    with pytest.raises(AssertionError, match="1 of 4 elements differ"):
        assert_same_bits(other, nan)
    with pytest.raises(AssertionError):
        assert_same_bits(torch.tensor([-0.0]), torch.tensor([0.0]))
    with pytest.raises(AssertionError, match="strides"):
        assert_same_bits(torch.zeros(3, 4).t(), torch.zeros(4, 3))
    with pytest.raises(AssertionError, match="dtype"):
        assert_same_bits(torch.zeros(1), torch.zeros(1, dtype=torch.float64))
    with pytest.raises(AssertionError, match="shape"):
        assert_same_bits(torch.zeros(1), torch.zeros(2))
