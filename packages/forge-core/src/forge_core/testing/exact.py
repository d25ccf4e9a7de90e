"""Comparison of operators that only move data: the same bits, in the same layout."""

from __future__ import annotations

import torch

__all__ = ["assert_same_bits", "assert_same_values"]

# Comparing in pieces bounds the memory of the comparison itself: a result of 8 GiB needs no second 8 GiB.
PIECE_BYTES = 2**28


def assert_same_bits(got: torch.Tensor, expected: torch.Tensor, *, what: str = "result") -> None:
    """Fails unless both tensors have the same shape, dtype, device, strides and bits.

    Bits, not values: NaN payloads and the sign of zero must survive a move, and ``==`` sees neither.

    Args:
        got: what the operator under test returned.
        expected: what it should have returned.
        what: names the result in the message.

    Raises:
        AssertionError: they differ; the message says where first and in how many elements.
    """
    for aspect in ("shape", "dtype", "device", "layout"):
        left, right = getattr(got, aspect), getattr(expected, aspect)
        if left != right:
            raise AssertionError(f"{what}: {aspect}: expected {right}, got {left}")
    # The stride of a dimension of size 1 is never used, and that of an empty tensor neither.
    steps = [s for s, size in zip(got.stride(), got.shape, strict=True) if size > 1]
    wanted = [s for s, size in zip(expected.stride(), expected.shape, strict=True) if size > 1]
    if got.numel() and steps != wanted:
        raise AssertionError(f"{what}: strides: expected {expected.stride()}, got {got.stride()}")
    if got.is_conj() or got.is_neg():
        raise AssertionError(f"{what}: expected materialised values, got a lazily conjugated or negated view")
    left, right = _bytes(got), _bytes(expected)
    for start in range(0, left.numel(), PIECE_BYTES):
        a, b = left[start : start + PIECE_BYTES], right[start : start + PIECE_BYTES]
        if not torch.equal(a, b):
            _fail(got, expected, what)


def assert_same_values(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Fails unless two tensors are of one shape, dtype and device and equal; NaN is equal to NaN, and -0 to 0.

    Args:
        got: what the operator under test returned.
        expected: what it should have returned.

    Raises:
        AssertionError: they differ.
    """
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def _fail(got: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    size = got.element_size()
    differs = (_bytes(got) != _bytes(expected)).view(-1, size).any(dim=1)
    flat = int(differs.nonzero()[0])
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), got.shape))
    raise AssertionError(
        f"{what}: {int(differs.sum())} of {differs.numel()} elements differ; first at {index}: "
        f"expected {expected[index].item()!r}, got {got[index].item()!r}"
    )
