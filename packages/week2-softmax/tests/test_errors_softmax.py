"""Bad input gets PyTorch's kind of error, which says what was expected and the way out; nothing is written."""

from __future__ import annotations

import pytest
import torch

import forge_week2_softmax as week2
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
PAIR = (week2.softmax, week2.log_softmax)
FORWARD = (*PAIR, week2.logsumexp)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", FORWARD, ids=lambda op: op.schema.name)
def test_dimensions(op, device):
    x = torch.ones(3, 4, device=device)
    for bad in (2, -3):
        with pytest.raises(IndexError, match="range from -2 to 1") as caught:
            op(x, bad)
        assert isinstance(caught.value, DimError)
        assert str(caught.value).startswith(op.schema.name)
    for wrong in (True, 1.0, "rows"):
        with pytest.raises((ArgumentError, RuntimeError)):
            op(x, wrong)
    op(x, 1)
    for wrong in (True, 1.0):  # also where the equal integer was served before
        with pytest.raises((ArgumentError, RuntimeError)):
            op(x, wrong)
    with pytest.raises(IndexError):
        op(torch.tensor(1.0, device=device), 1)


@pytest.mark.parametrize("device", DEVICES)
def test_dimensions_of_logsumexp(device):
    x = torch.ones(3, 4, device=device)
    with pytest.raises(RuntimeError, match="each dimension once") as caught:
        week2.logsumexp(x, (0, -2))
    assert isinstance(caught.value, RepeatedDimError)
    with pytest.raises(IndexError):
        week2.logsumexp(x, (0, 2))
    with pytest.raises(TypeError, match="dim"):
        week2.logsumexp(x)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", PAIR, ids=lambda op: op.schema.name)
def test_dtypes(op, device):
    for dtype in (torch.int64, torch.bool, torch.uint8):
        with pytest.raises(RuntimeError, match=r"'x'.*dtype= to convert to.*float32") as caught:
            op(torch.ones(3, device=device).to(dtype))
        assert isinstance(caught.value, DTypeError)
    for dtype in (torch.int32, torch.complex64, torch.bool):
        with pytest.raises(DTypeError, match=r"'dtype'.*float16, bfloat16, float32, float64"):
            op(torch.ones(3, device=device), dtype=dtype)
    for dtype in (None, torch.float32):
        with pytest.raises(DTypeError, match="complex64"):
            op(torch.ones(3, device=device, dtype=torch.complex64), dtype=dtype)
    with pytest.raises(DTypeError, match="complex64"):
        week2.logsumexp(torch.ones(3, device=device, dtype=torch.complex64), 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", FORWARD, ids=lambda op: op.schema.name)
def test_layouts_and_types(op, device):
    with pytest.raises(LayoutError, match="to_dense"):
        op(torch.eye(3, device=device).to_sparse(), 0)
    with pytest.raises(ArgumentError, match=r"a torch\.Tensor"):
        op([[1.0]], 0)
    with pytest.raises(ArgumentError, match="'stream', 'column', 'split', 'grid', 'held'"):
        op(torch.ones(3, device=device), 0, variant="fast")


@pytest.mark.parametrize("device", DEVICES)
def test_what_the_gradients_refuse(device):
    grad, y = torch.ones(3, 4, device=device), torch.full((3, 4), 0.25, device=device)
    for op in (week2.softmax_backward, week2.log_softmax_backward):
        with pytest.raises(ShapeError, match="'y'"):
            op(grad, y.t())
        with pytest.raises(DTypeError, match=r"'y'.*dtype of 'grad'"):
            op(grad, y.double())
        with pytest.raises(DTypeError, match="'grad'"):
            op(grad.int(), y.int())
        with pytest.raises(DTypeError, match="'input_dtype'"):
            op(grad, y, input_dtype=torch.int32)
        with pytest.raises(IndexError):
            op(grad, y, 2)
    lse = torch.ones(3, device=device)
    with pytest.raises(ShapeError, match="'grad'"):
        week2.logsumexp_backward(grad, y, lse, 1)
    with pytest.raises(ShapeError, match="'grad'"):
        week2.logsumexp_backward(lse, y, lse, 1, keepdim=True)
    with pytest.raises(DTypeError, match="'lse'"):
        week2.logsumexp_backward(lse, y, lse.double(), 1)


@pytest.mark.gpu
def test_tensors_on_two_devices():
    grad, y = torch.ones(3, 4, device="cuda"), torch.full((3, 4), 0.25)
    with pytest.raises(DeviceError, match="'y'"):
        week2.softmax_backward(grad, y)


def test_kernels_are_refused_on_the_cpu():
    x = torch.ones(3, 4)
    with pytest.raises(DeviceError, match="variant 'online' was asked for"):
        week2.softmax(x, variant="online")
    with backend("kernel"), pytest.raises(DeviceError, match="backend 'kernel' was asked for"):
        week2.log_softmax(x)


def test_a_variant_that_cannot_is_an_error_that_names_those_that_can():
    x = torch.ones(40, 64)
    with pytest.raises(UnsupportedError, match=r"'column' was asked for.*'naive', 'online', 'single_pass', 'stream'"):
        week2.softmax.explain(x, -1, variant="column", arch="sm_90a")
    for variant in ("single_pass", "held", "grid"):
        with pytest.raises(UnsupportedError, match=rf"'{variant}' was asked for.*'stream', 'column'"):
            week2.softmax.explain(x, 0, variant=variant, arch="sm_90a")
    for refused in (x.double(), x.int()):  # the ladder converts nothing, and has no gradient
        with pytest.raises(UnsupportedError, match=r"'online' was asked for.*'stream'"):
            week2.softmax.explain(refused, -1, dtype=torch.float64, variant="online", arch="sm_90a")
    for op in (week2.log_softmax, week2.softmax_backward):
        with pytest.raises(ArgumentError, match="'auto' or one of 'stream'"):
            op(*[x] * (1 + (op is week2.softmax_backward)), -1, variant="online")
    for variant in ("naive", "online", "single_pass", "stream", "split", "held"):
        assert week2.softmax.explain(x, -1, variant=variant, arch="sm_80").variant == variant
    with pytest.raises(UnsupportedError, match="'grid' was asked for"):
        week2.softmax.explain(x, -1, variant="grid", arch="sm_80")


def test_the_registry_of_the_course():
    assert week2.list_softmax_online_backends() == ("kernel", "ref")
    assert week2.get_softmax_online_backend() == "kernel"
    x = torch.randn(3, 5)
    try:
        for name in week2.list_softmax_online_backends():
            week2.set_softmax_online_backend(name)
            assert week2.get_softmax_online_backend() == name
            # CPU tensors are the reference's, whatever serves CUDA tensors.
            assert torch.equal(week2.softmax_online(x), torch.softmax(x, -1))
    finally:
        week2.set_softmax_online_backend("kernel")
    with pytest.raises(ArgumentError, match="'kernel', 'ref'"):
        week2.set_softmax_online_backend("triton")
    assert week2.get_softmax_online_backend() == "kernel"


@pytest.mark.gpu
def test_the_registry_of_the_course_on_a_gpu():
    x = torch.randn(300, 500, device="cuda", requires_grad=True)
    try:
        week2.set_softmax_online_backend("ref")
        assert week2.softmax_online.explain(x).backend == "ref"
        y = week2.softmax_online(x)
        assert torch.equal(y, torch.softmax(x, -1))
        y.backward(x.detach())
        want = torch.ops.aten._softmax_backward_data(x.detach(), y.detach(), -1, x.dtype)
        assert torch.equal(x.grad, want)
        with pytest.raises(ArgumentError, match="'ref', which has no variants"):
            week2.softmax_online(x, variant="online")
        with backend("kernel"):  # a block wins
            assert week2.softmax_online.explain(x).backend == "kernel"
    finally:
        week2.set_softmax_online_backend("kernel")
    assert week2.softmax_online.explain(x).backend == "kernel"
