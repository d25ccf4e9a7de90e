"""Public functions over several operators: repeated calls of CPU tensors, and all that is unlike the last call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from forge_core.errors import ArgumentTypeError, DeviceError, DTypeError, ShapeError
from forge_core.op import backend, composite
from forge_core.op.repeat import MAX_SHAPES, NOT_SERVED

week3 = pytest.importorskip("forge_week3_norm")


@pytest.fixture
def norm() -> Any:
    """layer_norm without a last call."""
    return composite(*week3.layer_norm._operators)(week3.layer_norm._choose)


def right(got: torch.Tensor, x: torch.Tensor, *rest: Any, **options: Any) -> None:
    torch.testing.assert_close(got, torch.nn.functional.layer_norm(x, (5,), *rest, **options))


def made(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def test_a_call_like_the_last_one_is_served_at_once(norm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        norm(*made((3, 5)), (5,), *made((5,), (5,)), eps=1e-3)
    monkeypatch.setattr(norm, "_choose", None)
    x, w, b = made((3, 5), (5,), (5,))
    for sizes in ((5,), tuple(w.shape)):  # the same constant, and an equal tuple
        right(norm(x, sizes, w, b, eps=1e-3), x, w, b, eps=1e-3)
    for args in ((x, (5.0,), w, b), (x, [5], w, b), (x, (5,), b), (x[:2], (5,), w, b), (x.double(), (5,), w, b)):
        assert norm._guarded.serve(args, {"eps": 1e-3}) is NOT_SERVED
    for options in ({"eps": 1e-5}, {"eps": 1}, {}, {"eps": 1e-3, "cast": "fp32"}):
        assert norm._guarded.serve((x, (5,), w, b), options) is NOT_SERVED
    with pytest.raises(TypeError):
        norm(x.t().contiguous().t(), (5,), w, b, eps=1e-3)


def test_calls_of_several_shapes_in_turn_are_served_at_once(norm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [made((rows, 5), (5,), (5,)) for rows in range(2, 18)]
    for x, w, b in 2 * calls:
        norm(x, (5,), w, b)
    monkeypatch.setattr(norm, "_choose", None)
    for x, w, b in calls:
        right(norm(x, (5,), w, b), x, w, b)


@pytest.mark.filterwarnings("ignore:.*jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_shapes_are_forgotten_and_keep_nothing_alive(norm: Any) -> None:
    w, shapes = torch.ones(5), norm._guarded._by_shape
    for rows in range(MAX_SHAPES + 3):
        norm(torch.ones(rows, 5), (5,), w)
    assert 0 < len(shapes) <= MAX_SHAPES
    shapes.clear()
    torch.jit.trace(lambda x: norm(x, (5,), w), torch.ones(3, 5), check_trace=False)  # its sizes are tensors
    assert all(shape is None for shape in shapes)


def test_other_calls_are_right_and_refused_as_before(norm: Any) -> None:
    x, w, b = made((3, 5), (5,), (5,))
    for _ in range(2):
        right(norm(x, (5,), w, b), x, w, b)
        right(norm(x, (5,), b, w), x, b, w)
        right(norm(x, (5,), w, w), x, w, w)
        right(norm(x.double(), (5,)), x.double())
        right(norm(x.bfloat16(), (5,)), x.bfloat16())
        right(norm(x, [5], weight=w), x, w)
        right(norm(x, (5,), w, b, 1), x, w, b, 1)
        right(norm(x.t().contiguous().t(), (5,), w, b), x, w, b)
        y, total = norm(x, (5,), w, b, residual=x)
        right(y, 2 * x, w, b)
        assert torch.equal(total, 2 * x)
        for error, call in (
            (ArgumentTypeError, lambda: norm(x, (5.0,), w, b)),
            (ShapeError, lambda: norm(x, (4,), w, b)),
            (DTypeError, lambda: norm(x.int(), (5,), w, b)),
            (TypeError, lambda: norm(3, (5,), w, b)),
        ):
            with pytest.raises(error):
                call()


def test_a_number_in_a_tensor_is_read_at_each_call(norm: Any) -> None:
    x, w, b = made((3, 5), (5,), (5,))
    for eps in map(torch.tensor, (1e-3, 10.0, 1e-3)):
        right(norm(x, (5,), w, b, eps), x, w, b, eps.item())
        right(norm(x, (5,), w, b, eps=eps), x, w, b, eps.item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_two_names_of_one_tensor_are_no_two_tensors(norm: Any, dtype: torch.dtype) -> None:
    """After a call with one tensor as weight and bias, one with two takes each for itself."""
    x, w, b = made((3, 5), (5,), (5,), dtype=dtype)
    for _ in range(2):
        norm(x, (5,), w, w)
        right(norm(x, (5,), b, b), x, b, b)
        right(norm(x, (5,), w, b), x, w, b)


def test_what_records_or_transforms_is_not_bypassed(norm: Any) -> None:
    x, w, b = made((3, 5), (5,), (5,))
    again = lambda: norm._guarded.serve((x, (5,), w, b), {})  # noqa: E731
    for _ in range(2):
        norm(x, (5,), w, b)
    assert torch.is_tensor(again())

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[Any] = []
    with Functions():
        norm(x, (5,), w, b)
    assert norm in seen
    with Dispatched():
        norm(x, (5,), w, b)
    assert "forge_week3.layer_norm.default" in seen
    with torch.autograd.forward_ad.dual_level():
        assert again() is NOT_SERVED
    with torch.autocast("cpu"):
        assert again() is NOT_SERVED
    with torch.inference_mode():
        assert again() is NOT_SERVED
    with backend("kernel"), pytest.raises(DeviceError):
        norm(x, (5,), w, b)
    right(torch.func.vmap(lambda x: norm(x, (5,), w, b))(x[None])[0], x, w, b)
    got, want = (torch.func.grad(lambda x, f=f: f(x, (5,), w, b).sin().sum())(x) for f in (norm, torch.layer_norm))
    torch.testing.assert_close(got, want)


def test_autograd_records_a_repeated_call(norm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [t.requires_grad_() for t in made((3, 5), (3, 5), (5,), (5,))]

    def call(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        return norm(x, (5,), w, b, residual=residual)

    want = torch.layer_norm(tensors[0] + tensors[1], (5,), *tensors[2:]).square().sum()
    for _ in range(2):  # misses and hits
        y, total = call(*tensors)
        assert torch.equal(total, tensors[0] + tensors[1]) and total.requires_grad
        for got, grad in zip(
            *(torch.autograd.grad(z, tensors, retain_graph=True) for z in (y.square().sum(), want)), strict=True
        ):
            torch.testing.assert_close(got, grad)
        with torch.no_grad():
            assert not any(t.requires_grad for t in call(*tensors))
        monkeypatch.setattr(norm, "_choose", None)
