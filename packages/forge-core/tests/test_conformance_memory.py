"""What counts as a refusal: an operator that fails where the reference refuses has not refused."""

from __future__ import annotations

import pytest
import torch

from forge_core.errors import ArgumentError, CacheError, CompileError
from forge_core.testing.conformance_memory import check_empty

EMPTY = (torch.empty(0, 3),)


def raising(error):
    def call(*tensors):
        raise error

    return call


REFUSES = raising(IndexError("nothing to reduce"))


@pytest.mark.parametrize(
    "error",
    [
        CompileError("no kernel"),
        CacheError("no entry"),
        torch.AcceleratorError("launch failure"),
        torch.OutOfMemoryError("no memory"),
    ],
    ids=repr,
)
def test_a_failure_is_no_refusal(error):
    with pytest.raises(AssertionError, match="the operator fails"):
        check_empty(raising(error), REFUSES, EMPTY, "empty")


def test_a_refusal_is_one():
    refusal = ArgumentError(op="op", argument="x", expected="elements", got="none")
    check_empty(raising(refusal), REFUSES, EMPTY, "empty")
    with pytest.raises(AssertionError, match="and the operator does not"):
        check_empty(torch.clone, REFUSES, EMPTY, "empty")
    with pytest.raises(AssertionError, match="the operator refuses it"):
        check_empty(raising(refusal), torch.clone, EMPTY, "empty")


def test_a_reference_that_fails_has_refused_nothing():
    with pytest.raises(torch.OutOfMemoryError):
        check_empty(REFUSES, raising(torch.OutOfMemoryError("no memory")), EMPTY, "empty")
