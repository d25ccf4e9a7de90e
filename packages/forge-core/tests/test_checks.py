"""The argument checks."""

from __future__ import annotations

import pytest
import torch

from forge_core import checks
from forge_core.errors import ArgumentError, DeviceError, DTypeError, LayoutError, ShapeError


def like(out: torch.Tensor) -> None:
    checks.like_output("op", out, shape=(3, 4), dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize(
    "out",
    [
        torch.zeros(3, 4),
        torch.zeros(4, 3).t(),
        torch.zeros(3, 9)[:, 1:5],
        torch.zeros(7, 9)[::2, ::2][:3, :4],
        torch.zeros(100).as_strided((3, 4), (9, 2)),
    ],
    ids=["contiguous", "transposed", "cut", "every second", "strided"],
)
def test_outs_that_can_be_written(out: torch.Tensor) -> None:
    like(out)


@pytest.mark.parametrize(
    "out,kind",
    [
        (torch.zeros(4, 3), ShapeError),
        (torch.zeros(12), ShapeError),
        (torch.zeros(3, 4, dtype=torch.float16), DTypeError),
        (torch.zeros(3, 4, device="meta"), DeviceError),
        (torch.zeros(3, 1).expand(3, 4), LayoutError),
        (torch.zeros(1, 4).expand(3, 4), LayoutError),
        (torch.zeros(100).as_strided((3, 4), (3, 1)), LayoutError),
        (torch.zeros(3, 4).to_sparse(), LayoutError),
        (None, ArgumentError),
    ],
)
def test_outs_that_cannot(out: torch.Tensor, kind: type[ArgumentError]) -> None:
    with pytest.raises(kind, match="op: argument 'out': expected"):
        like(out)


def test_an_empty_tensor_shares_nothing() -> None:
    empty = torch.zeros(3).as_strided((0, 3), (1, 0))
    checks.like_output("op", empty, shape=(0, 3), dtype=torch.float32, device=torch.device("cpu"))


def test_a_size_of_one_has_no_stride() -> None:
    checks.like_output(
        "op",
        torch.zeros(4).as_strided((1, 4), (0, 1)),
        shape=(1, 4),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def test_overlap() -> None:
    storage = torch.zeros(100)
    checks.no_overlap("op", storage[:10], "x", storage[10:20])
    checks.no_overlap("op", storage[:0], "x", storage)
    checks.no_overlap("op", torch.zeros(100), "x", storage)
    for out, x in ((storage[:11], storage[10:20]), (storage, storage[50:51]), (storage[::2], storage[1::2])):
        with pytest.raises(LayoutError, match="op: argument 'out': expected memory apart from that of 'x'"):
            checks.no_overlap("op", out, "x", x)


def test_dtype_and_choice() -> None:
    checks.supported_dtype("op", "x", torch.zeros(1), {torch.float32})
    with pytest.raises(DTypeError, match="expected one of the dtypes float32, got float64"):
        checks.supported_dtype("op", "x", torch.zeros(1, dtype=torch.float64), {torch.float32})
    checks.one_of("op", "tile", 16, (16, 32))
    with pytest.raises(ArgumentError, match="op: argument 'tile': expected one of 16, 32, got 8"):
        checks.one_of("op", "tile", 8, (16, 32))
    with pytest.raises(DeviceError, match=r"Move it with y.to\('cuda:0'\)"):
        checks.same_device("op", "y", torch.zeros(1), torch.device("cuda:0"))
    with pytest.raises(DeviceError, match="on meta has no data: load it"):
        checks.same_device("op", "y", torch.zeros(1), torch.device("meta"))
