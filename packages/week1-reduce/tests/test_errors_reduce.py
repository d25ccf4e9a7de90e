"""Bad input gets PyTorch's kind of error, which says what was expected and the way out; nothing is written."""

from __future__ import annotations

import pytest
import torch

import forge_week1_reduce as week1
from forge_core.errors import (
    ArgumentError,
    DeviceError,
    DimError,
    DTypeError,
    LayoutError,
    RepeatedDimError,
    ShapeError,
    UnsupportedError,
)
from forge_core.op import backend

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
UNARY = (week1.reduce_sum, week1.mean, week1.prod, week1.amax, week1.amin)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", UNARY, ids=lambda op: op.schema.name)
def test_dimensions(op, device):
    x = torch.ones(3, 4, device=device)
    for bad in (2, -3, (0, 2)):
        with pytest.raises(IndexError, match="range from -2 to 1") as caught:
            op(x, bad)
        assert isinstance(caught.value, DimError)
        assert str(caught.value).startswith(op.schema.name)
    with pytest.raises(RuntimeError, match="each dimension once") as caught:
        op(x, (0, -2))
    assert isinstance(caught.value, RepeatedDimError)


@pytest.mark.parametrize("device", DEVICES)
def test_an_extreme_of_nothing(device):
    for op in (week1.amax, week1.amin):
        with pytest.raises(IndexError, match="non-zero size"):
            op(torch.empty(3, 0, device=device))
        with pytest.raises(IndexError, match="non-zero size"):
            op(torch.empty(3, 0, device=device), None)


@pytest.mark.parametrize("device", DEVICES)
def test_dtypes(device):
    with pytest.raises(RuntimeError, match="floating-point") as caught:
        week1.mean(torch.ones(3, dtype=torch.int32, device=device))
    assert isinstance(caught.value, DTypeError)
    with pytest.raises(DTypeError, match=r"'dtype'.*floating-point"):
        week1.mean(torch.ones(3, device=device), dtype=torch.int32)
    with pytest.raises(DTypeError, match="float32, float64"):
        week1.amax(torch.ones(3, dtype=torch.complex64, device=device))
    with pytest.raises(DTypeError, match="None or one of bool"):
        week1.reduce_sum(torch.ones(3, device=device), dtype=torch.complex32)
    with pytest.raises(ArgumentError, match=r"'dtype'.*None"):
        week1.reduce(torch.ones(3, device=device), op="amax", dtype=torch.float64)


@pytest.mark.parametrize("device", DEVICES)
def test_names_of_operations(device):
    with pytest.raises(ValueError, match="'sum', 'mean', 'amax', 'amin', 'prod', 'max', 'min'"):
        week1.reduce(torch.ones(3, device=device), op="median")


@pytest.mark.parametrize("device", DEVICES)
def test_layouts_and_types(device):
    with pytest.raises(LayoutError, match="to_dense"):
        week1.reduce_sum(torch.eye(3, device=device).to_sparse())
    with pytest.raises(ArgumentError, match=r"a torch\.Tensor"):
        week1.reduce_sum([[1.0]])


@pytest.mark.parametrize("device", DEVICES)
def test_bad_out(device):
    x = torch.ones(6, 8, device=device)
    storage = torch.ones(60, device=device)
    for out, kind in (
        (None, ArgumentError),
        (torch.zeros(8, device=device), ShapeError),
        (torch.zeros(6, 1, device=device), ShapeError),
        (torch.zeros(6, device=device, dtype=torch.float64), DTypeError),
        (torch.zeros(6, device="meta"), DeviceError),
        (torch.zeros(1, device=device).expand(6), LayoutError),
    ):
        before = None if out is None or out.device.type == "meta" else out.clone()
        with pytest.raises(kind, match=r"reduce_sum_out.*'out'"):
            week1.reduce_sum.out(x, out=out)
        if before is not None:
            assert torch.equal(out, before)
    with pytest.raises(LayoutError, match="apart from that of 'x'"):
        week1.reduce_sum.out(storage[:48].view(6, 8), out=storage[40:46])
    week1.reduce_sum.out(storage[:48].view(6, 8), out=storage[48:54])
    assert torch.equal(storage[48:54], torch.full((6,), 8.0, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_out_refuses_gradients(device):
    x = torch.ones(3, 4, device=device, requires_grad=True)
    out = torch.zeros(3, device=device)
    with pytest.raises(ArgumentError, match="need no gradient"):
        week1.reduce_sum.out(x, out=out)
    assert not out.any()


def test_kernels_are_refused_on_the_cpu():
    x = torch.ones(3, 4)
    with pytest.raises(DeviceError, match="variant 'shuffle' was asked for"):
        week1.reduce_sum(x, variant="shuffle")
    with backend("kernel"), pytest.raises(DeviceError, match="backend 'kernel' was asked for"):
        week1.amax(x)


@pytest.mark.parametrize("device", DEVICES)
def test_unknown_variant(device):
    with pytest.raises(ArgumentError, match="'naive', 'shared', 'shuffle', 'vectorized'"):
        week1.reduce_sum(torch.ones(3, device=device), variant="fast")


def test_a_variant_that_cannot_is_an_error_that_names_those_that_can():
    x = torch.ones(40, 64)
    with pytest.raises(
        UnsupportedError, match=r"needs neighboring rows.*got contiguous rows.*'naive', 'shared', 'shuffle'"
    ):
        week1.reduce_sum.explain(x, -1, variant="column", arch="sm_90a")
    with pytest.raises(UnsupportedError, match="needs contiguous rows; got rows of another stride"):
        week1.reduce_sum.explain(x, 0, variant="held", arch="sm_80")
    for variant in ("naive", "shared", "shuffle", "vectorized", "stream", "split", "held"):
        assert week1.reduce_sum.explain(x, -1, variant=variant, arch="sm_80").variant == variant
