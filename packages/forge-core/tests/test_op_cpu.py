"""The eager fast path on plain CPU tensors, and the calls that go through the dispatcher."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from forge_core.errors import ArgumentError, DimError, DTypeError
from forge_core.op import guard, table
from forge_core.op.eager import EagerPath
from forge_core.op.repeat import NOT_SERVED, REFRESH_EVERY
from forge_core.op.rules import Rules
from forge_core.settings import use_settings

week1 = pytest.importorskip("forge_week1_reduce")
week2 = pytest.importorskip("forge_week2_softmax")


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def eager(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op._eager.call(args, kwargs)


def test_a_plain_call_is_the_reference_s() -> None:
    x = torch.randn(3, 5)
    for _ in range(2):  # a miss and a hit
        assert torch.equal(eager(week2.softmax, x, 0), torch.softmax(x, 0))
        assert torch.equal(eager(week2.softmax, x, dim=0), torch.softmax(x, 0))
        assert torch.equal(eager(week1.reduce_sum, x, (0, 1), True), x.sum((0, 1), True))
        assert torch.equal(eager(week2.softmax_backward, x, x, 0), week2.softmax_backward.reference(x, x, 0))
    y = eager(week2.softmax, x.double(), 0)
    assert y.dtype == torch.float64  # a miss: another dtype
    assert eager(week2.softmax, x, 0, torch.float64).dtype == torch.float64


def test_it_is_checked_once_for_all_calls_of_the_same_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(Rules, "run_fake", lambda self, named, *, on_meta: checked.append(named["dim"]))
    path = EagerPath(week2.softmax._rules, week2.softmax.table.anew())
    for dim in (0, 1, 0, 1):
        path.call((torch.randn(2, 3), dim), {})
    assert checked == [0, 1]
    path.call((torch.randn(3, 2).t(), 0), {})
    assert checked == [0, 1, 0]
    with pytest.raises(TypeError):  # True is not a hit for 1
        path.call((torch.randn(2, 3), True), {})
    assert checked == [0, 1, 0, True]
    for _ in range(2):  # a hit once it is normalized
        path.call((torch.randn(2, 3), torch.tensor(1)), {"dtype": float})
    assert checked == [0, 1, 0, True, 1]


def test_a_bad_call_is_refused_each_time() -> None:
    x = torch.randn(3, 5)
    for _ in range(2):
        with pytest.raises(DimError, match="from -2 to 1, got 5"):
            week2.softmax(x, 5)
        with pytest.raises(DTypeError):
            week2.softmax(x.int())
        with pytest.raises(ArgumentError, match="variant"):
            week2.softmax(x, variant="held")
        with pytest.raises(ArgumentError):
            week2.softmax_backward(x, x[0])


def repeated(x: torch.Tensor, *dim: int) -> None:
    """Calls until the cached guard matches."""
    for _ in range(2 * REFRESH_EVERY):
        week2.softmax(x, *dim)


def test_a_repeated_call_is_compared_with_the_last_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 5)
    repeated(x, 0)
    with monkeypatch.context() as patched:
        patched.setattr(guard, "quiet", lambda: pytest.fail("it was asked again"))
        assert torch.equal(week2.softmax(x, 0), torch.softmax(x, 0))
        assert torch.equal(week2.softmax(x, dim=0), torch.softmax(x, 0))
        y = torch.randn(3, 5)
        assert torch.equal(week2.softmax(y, 0), torch.softmax(y, 0))
    for other in (x.t(), x.double(), x[:2], torch.randn(3, 5, requires_grad=True)):
        found = week2.softmax(other, 0)
        assert torch.equal(found, torch.softmax(other, 0)) and found.dtype == other.dtype
        assert found.requires_grad == other.requires_grad
    assert torch.equal(week2.softmax(x, 1), torch.softmax(x, 1))
    with use_settings(backend="ref"):
        assert eager(week2.softmax, x, 0) is NOT_SERVED


def test_a_repeated_call_of_several_tensors_is_compared_with_the_last_one_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    op, x, y = week2.softmax_backward, torch.randn(3, 5), torch.randn(3, 5)
    for _ in range(REFRESH_EVERY + 1):
        op(x, y, 0)
    with monkeypatch.context() as patched:
        patched.setattr(guard, "quiet", lambda: pytest.fail("it was asked again"))
        assert torch.equal(op(y, x, 0), op.reference(y, x, 0))
    for args in ((x, x, 0), (x, y, 1), (x.t(), y.t(), 0), (x.double(), y.double(), 0)):
        assert torch.equal(op(*args), op.reference(*args))
    with torch.autocast("cpu"), Seen() as seen:
        op(x, y, 0)
    assert seen.names[0] == "forge_week2.softmax_backward.default"


def test_a_cpu_call_does_not_initialize_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a CUDA build of PyTorch without a driver it would fail, and a fork after it could not use CUDA."""
    monkeypatch.setattr(table, "_current_device", lambda: pytest.fail("the current CUDA device was asked for"))
    x = torch.randn(3, 5)
    for operator, args in (
        (week2.softmax, (x, 0)),
        (week2.softmax_backward, (x, x, 0)),
        (week1.reduce_sum, (x, (0, 1))),
    ):
        path = EagerPath(operator._rules, operator.table.anew())
        for recorded in (False, True):
            given = tuple(a.clone().requires_grad_(recorded) if a is x else a for a in args)
            for _ in range(2 * REFRESH_EVERY):
                path.call(given, {})
        assert torch.equal(path.call(args, {}), operator.reference(*args))


def test_what_listens_at_the_dispatcher_hears_the_call() -> None:
    x = torch.randn(3, 5)
    repeated(x)
    with Seen() as seen:
        week2.softmax(x)
    assert seen.names == ["forge_week2.softmax.default"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert eager(week2.softmax, x) is NOT_SERVED
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # nested tensors are a prototype
        nested = torch.nested.nested_tensor([x, x[:2]])
    others = (x.to_sparse(), x.to("meta"), torch.randn(2, 2, dtype=torch.complex64).conj(), x.as_subclass(Sub))
    for other in (*others, nested, None, [x]):
        assert eager(week2.softmax, other) is NOT_SERVED
    assert torch.equal(torch.func.vmap(week2.softmax)(x), torch.softmax(x, -1))
    tangents = (torch.func.jvp(softmax, (x,), (x,))[1] for softmax in (week2.softmax, lambda x: x.softmax(-1)))
    torch.testing.assert_close(*tangents)


class Sub(torch.Tensor):
    pass


def test_autograd_differentiates_the_reference_where_that_is_declared() -> None:
    x, z, grad = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5), torch.randn(3, 5)
    want = torch.autograd.grad(torch.softmax(x, -1), x, grad)[0]
    for _ in range(2 * REFRESH_EVERY):
        y = eager(week2.softmax, x)
        assert type(y.grad_fn).__name__ == "SoftmaxBackward0"
        assert torch.equal(torch.autograd.grad(y, x, grad)[0], want)
        with torch.no_grad():
            assert not eager(week2.softmax, x).requires_grad
        # Not declared for the gradient: its own rule, for two tensors, of which one needs a gradient.
        y = eager(week2.softmax_backward, x, z)
        assert type(y.grad_fn).__name__ == "SoftmaxBackwardBackward"
        with torch.no_grad():
            assert not eager(week2.softmax_backward, x, z).requires_grad
    torch.testing.assert_close(torch.autograd.grad(torch.ops.forge_week2.softmax(x), x, grad)[0], want)
    assert torch.autograd.gradgradcheck(week2.softmax, (torch.randn(2, 3, dtype=torch.float64, requires_grad=True),))
