"""The tests are tested: planted wrong transpositions are refused by the assertion that the right one passes."""

from __future__ import annotations

import pytest
import torch

from forge_core.testing import assert_same_bits


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
