"""Calls in the forms that PyTorch's functions take, and errors of the kinds that they raise, with the way out."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from forge_core.errors import (
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    ForgeError,
    GradientError,
    LayoutError,
    ShapeError,
)

week2 = pytest.importorskip("forge_week2_softmax")
week3 = pytest.importorskip("forge_week3_norm")
ops = pytest.importorskip("forge_week3_norm.ops")

NORMS = {"rms_norm": week3.rms_norm, "layer_norm": week3.layer_norm}
norms = pytest.mark.parametrize("name", NORMS)


def randn(*shape, **options):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(**options)


@pytest.mark.parametrize("where", ["eager", "compiled", "fake"])
def test_a_tensor_without_data_beside_one_with_data_is_refused(where):
    """The dispatcher serves such a call by the fake, whose output has no values."""
    x, w, bare, total = randn(4, 6), randn(6), torch.empty(6, device="meta"), torch.empty(4, 6, device="meta")
    calls = [
        lambda: week3.rms_norm(x, (6,), bare),
        lambda: week3.layer_norm(x, (6,), w, bare),
        lambda: week3.rms_norm(x, (6,), w, residual=total),
        lambda: week2.softmax_backward(x, total, 1),
        lambda: week3.rms_norm(total, (6,), w),
    ]
    mode = FakeTensorMode(allow_non_fake_inputs=True) if where == "fake" else contextlib.nullcontext()
    for call in calls:
        run = torch.compile(call, backend="aot_eager") if where == "compiled" else call
        # Under torch.compile the message is dynamo's, of a call that failed with fake tensors.
        text = "fake tensor" if where == "compiled" else "expected a tensor on (cpu|meta)"
        with mode, pytest.raises(RuntimeError, match=text):
            run()
    if where == "compiled":
        assert_close(
            torch.compile(lambda: week3.rms_norm(x, (6,), w), backend="aot_eager")(), week3.rms_norm(x, (6,), w)
        )
    for call in (calls[0], calls[4]):
        with pytest.raises(DeviceError, match="no data: load it"):
            call()


@norms
def test_sizes_and_numbers_in_the_forms_that_torch_takes(name):
    x, theirs = randn(4, 6), getattr(torch.nn.functional, name)
    for sizes in ((np.int64(6),), [torch.tensor(6)], (4, np.int32(6))):
        assert_close(NORMS[name](x, sizes, eps=1e-5), theirs(x, tuple(map(int, sizes)), eps=1e-5))
    for eps in (np.float32(1e-3), np.float64(1e-3), torch.tensor(1e-3, dtype=torch.float64)):
        for _ in range(17):  # also where the call may become the guarded one
            assert_close(NORMS[name](x, (6,), eps=eps), theirs(x, (6,), eps=float(eps)))
    for _ in range(17):
        assert NORMS[name](x.double(), (6,), out_dtype=float).dtype is torch.float64
    with pytest.raises(ArgumentTypeError, match=r"tuple of ints, got \(True,\). Pass x.shape\[-1:\]"):
        NORMS[name](randn(3, 1), (True,))
    for eps in ("1e-5", torch.tensor(1j), torch.ones(2), torch.tensor(1.0, requires_grad=True)):
        with pytest.raises(ArgumentTypeError, match="'eps': expected an argument of type float"):
            NORMS[name](x, (6,), eps=eps)


@norms
def test_the_first_argument_has_torchs_name_too(name):
    x, w = randn(4, 6), randn(6)
    assert_close(NORMS[name](input=x, normalized_shape=(6,), weight=w), NORMS[name](x, (6,), w))
    compiled = torch.compile(lambda x, w: NORMS[name](input=x, normalized_shape=(6,), weight=w), backend="aot_eager")
    assert_close(compiled(x, w), NORMS[name](x, (6,), w))
    told = NORMS[name].explain(input=x.to("meta"), normalized_shape=(6,), arch="sm_90a")
    assert told == NORMS[name].explain(x.to("meta"), (6,), arch="sm_90a")
    with pytest.raises(TypeError, match="input"):
        NORMS[name](x, (6,), input=x)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_errors_are_of_the_kind_that_torch_raises():
    x = randn(4, 6)
    leaf, nested = x.clone().requires_grad_(), torch.nested.nested_tensor([randn(2, 3), randn(1, 3)])
    calls = [
        (LayoutError, lambda: week2.softmax(torch.eye(4).to_sparse(), 1)),
        (LayoutError, lambda: week2.softmax.out(x, 1, out=torch.empty(1).expand(4, 6))),
        (LayoutError, lambda: week3.layer_norm(nested, (3,))),
        (LayoutError, lambda: week3.rms_norm(x, (3,), nested)),
        (LayoutError, lambda: week3.rms_norm(x, (6,), residual=x.to_sparse(), batch_invariant=True)),
        (DeviceError, lambda: week2.softmax.out(x, 1, out=torch.empty(4, 6, device="meta"))),
        (ShapeError, lambda: week3.rms_norm(x, (6,), residual=randn(3, 6))),
        (ShapeError, lambda: week3.rms_norm(x, (5,))),
        (GradientError, lambda: week2.softmax.out(leaf, 1, out=torch.empty(4, 6))),
        (GradientError, lambda: ops.rms_norm_y.out(leaf, out=torch.empty(4, 6))),
    ]
    for kind, call in calls:
        with pytest.raises(kind) as caught:
            call()
        assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, ForgeError)
    out = torch.empty(4, 6)
    assert ops.rms_norm_y.out(x, out=out) is out
    assert_close(out, ops.rms_norm_y(x))


@norms
def test_a_message_names_the_argument_of_the_call_and_the_way_out(name):
    x, w, op = randn(4, 6), randn(6), NORMS[name]
    for call, kind, text in (
        (lambda: op(x, (6,), w.double()), DTypeError, r"'weight': .* got torch.float64. Convert it with weight.to"),
        (lambda: op(x.double(), (6,), w), DTypeError, r"'weight': .* got torch.float32. Convert it with weight.to"),
        (lambda: op(x, (6,), w.int()), DTypeError, r"'weight': .* Convert it with weight.to"),
        (lambda: op(x, (6,), out_dtype="bf16"), ArgumentTypeError, "'out_dtype'"),
        (lambda: op(x, (6,), out_dtype=np.float32), ArgumentTypeError, "'out_dtype'"),
        (lambda: op(x, (6,), residual=x, residual_dtype=np.float32), ArgumentTypeError, "'residual_dtype'"),
        (lambda: op(x, (6,), out_dtype=torch.int32), DTypeError, "'out_dtype'"),
        (lambda: op(x, (6,), residual=x.numpy()), ArgumentTypeError, "'residual': .* Convert it with torch.as_tensor"),
        (lambda: op(x, (6,), residual=x.numpy(), batch_invariant=True), ArgumentTypeError, "'residual'"),
        (lambda: op(None, (6,)), ArgumentTypeError, "got NoneType.$"),
    ):
        with pytest.raises(kind, match=text) as caught:
            call()
        assert str(caught.value).startswith(f"{name}: ")
    with pytest.raises(TypeError, match=r"'out'; call softmax.out"):
        week2.softmax(x, 1, out=x)
