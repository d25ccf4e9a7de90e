"""The eager fast path without a GPU: plan, compiler and device are replaced by fakes."""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import BaseTorchDispatchMode

from forge_core import use_settings
from forge_core.op import Plan, guard, table
from forge_core.op.eager import EagerPath
from forge_core.op.repeat import NOT_SERVED, REFRESH_EVERY
from forge_core.op.rules import Rules
from forge_core.op.schema import Schema
from forge_core.op.table import LaunchTable

seen: list[tuple[Any, ...]] = []


def keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor, keyword_only_inputs: dict[str, Any]) -> None:
    seen.append((inputs[1:], keyword_only_inputs))
    ctx.save_for_backward(inputs[0], output)
    ctx.factor = inputs[1]


def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    x, output = ctx.saved_tensors
    assert torch.equal(output, x * ctx.factor)
    return grad * ctx.factor, None


def kernel(source: int, target: int, count: int, factor: int, stream: int) -> None:
    """A fake kernel: multiplies fp32 numbers at an address."""
    x, y = ((ctypes.c_float * count).from_address(a) for a in (source, target))
    for i in range(count):
        y[i] = x[i] * factor


def kernel_with_scratch(source: int, target: int, scratch: int, count: int, factor: int, stream: int) -> None:
    """``kernel``, through a workspace."""
    kernel(source, scratch, count, factor, stream)
    kernel(scratch, target, count, 1, stream)


@pytest.fixture
def path(pretend_gpu: Any) -> EagerPath:
    return planted(pretend_gpu)


def planted(pretend_gpu: Any, *, two_passes: bool = False) -> EagerPath:
    schema = Schema("ns::scale(Tensor x, int factor=2, *, str variant='auto') -> Tensor")

    def plan(device: Any, out: torch.Tensor, x: torch.Tensor, factor: int, variant: str) -> Plan:
        workspace = 4 * x.numel() if two_passes else 0
        return Plan("simple", "nowhere:build", None, (x.numel(), factor), "why", 0, 0, workspace)

    def like(x: torch.Tensor, factor: int, variant: str) -> torch.Tensor:
        return x.new_empty(x.shape)

    pretend_gpu(lambda config, arch: kernel_with_scratch if two_passes else kernel)
    seen.clear()
    rules = Rules(schema, like, like, plan, {"simple": None}, keep, backward)
    return EagerPath(rules, LaunchTable(rules))


def test_a_call_that_needs_no_gradient_records_nothing(path: EagerPath) -> None:
    x = torch.randn(3, 4)
    y = path.call((x, 3), {})
    assert torch.equal(y, x * 3)
    assert not y.requires_grad
    x.requires_grad_()
    with torch.no_grad():
        assert not path.call((x,), {}).requires_grad
    assert seen == []


def test_a_call_that_needs_a_gradient_is_recorded_by_the_operator_s_own_rules(path: EagerPath) -> None:
    for leaf in (torch.randn(3, 4, requires_grad=True), torch.nn.Parameter(torch.randn(3, 4))):
        for args, kwargs, factor, variant in (
            ((), {}, 2, "auto"),
            ((5,), {}, 5, "auto"),
            ((), {"factor": 7}, 7, "auto"),
            ((5,), {"variant": "simple"}, 5, "simple"),
        ):
            y = path.call((leaf, *args), kwargs)
            assert torch.equal(y, leaf.detach() * factor)
            assert y.grad_fn is not None
            assert seen[-1] == ((factor,), {"variant": variant})
            (grad,) = torch.autograd.grad(y, leaf, torch.full_like(y, 10.0))
            assert torch.equal(grad, torch.full_like(grad, 10.0 * factor))
    other = torch.randn(3, 4)
    y = path.call((other * leaf, 3), {})
    y.sum().backward()
    assert torch.equal(leaf.grad, 3 * other)


@pytest.mark.parametrize("needs_gradient", [False, True], ids=["without a gradient", "with a gradient"])
@pytest.mark.parametrize("two_passes", [False, True], ids=["one pass", "two passes"])
def test_a_call_is_planned_or_a_hit_and_logged_once(
    pretend_gpu: Any, caplog: pytest.LogCaptureFixture, two_passes: bool, needs_gradient: bool
) -> None:
    path = planted(pretend_gpu, two_passes=two_passes)
    x = torch.randn(3, 4, requires_grad=needs_gradient)
    logged = []
    with caplog.at_level(logging.DEBUG, "forge_core"):
        for factor in (3, 3, 5, 5, 3):
            caplog.clear()
            y = path.call((x, factor), {})
            assert torch.equal(y, x.detach() * factor)
            assert y.requires_grad == needs_gradient
            if needs_gradient:
                (grad,) = torch.autograd.grad(y.sum(), x)
                assert torch.equal(grad, torch.full_like(grad, factor))
            logged.append([record.getMessage() for record in caplog.records])
    planned, hit = ["ns::scale: simple None: why"], ["launch table hit: ns::scale simple"]
    assert logged == [planned, hit, planned, hit, hit]


def test_an_int_by_its_name_is_the_int_by_position(path: EagerPath) -> None:
    x = torch.randn(3, 4)
    table_of = path._table
    assert torch.equal(path.call((x,), {"factor": 3}), x * 3)
    assert len(table_of) == 1
    assert torch.equal(path.call((x, 3), {}), x * 3)
    assert torch.equal(path.call((x,), {"factor": 4}), x * 4)
    assert len(table_of) == 2  # the second call is a hit
    assert torch.equal(path.call((x,), {"factor": 3, "variant": "simple"}), x * 3)
    assert torch.equal(path.call((x, 5), {"variant": "simple"}), x * 5)
    assert len(table_of) == 4
    for args, kwargs in (((x, 3), {"factor": 4}), ((x,), {"speed": 3}), ((x,), {"speed": 3, "factor": 3})):
        with pytest.raises(TypeError):
            path.call(args, kwargs)


def test_an_integer_in_a_tensor_is_its_value(path: EagerPath) -> None:
    x = torch.randn(3, 4)
    for factor in (3, 4, 3):
        assert torch.equal(path.call((x, torch.tensor(factor)), {}), x * factor)
        assert torch.equal(path.call((x,), {"factor": torch.tensor(factor)}), x * factor)
        assert torch.equal(path.call_out(torch.empty(3, 4), (x, torch.tensor(factor)), {}), x * factor)
    leaf = x.requires_grad_()
    (grad,) = torch.autograd.grad(path.call((leaf, torch.tensor(5)), {}).sum(), leaf)
    assert torch.equal(grad, torch.full_like(grad, 5))
    assert seen[-1] == ((5,), {"variant": "auto"})


def test_autograd_watches_over_what_was_kept(path: EagerPath) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    y = path.call((x,), {})
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = path.call((x,), {})
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_negated_and_conjugated_views_take_the_dispatcher_though_their_twins_are_ready(path: EagerPath) -> None:
    plain = torch.ones(4)
    assert torch.equal(path.call((plain,), {}), torch.full((4,), 2.0))
    negated = torch._neg_view(plain.clone())
    for of in (torch.Tensor.size, torch.Tensor.stride, lambda x: (x.dtype, x.device, x.data_ptr() % 16)):
        assert of(negated) == of(plain), "not the twin's key"
    assert path.call((negated,), {}) is NOT_SERVED
    assert torch.equal(path.call((plain,), {}), torch.full((4,), 2.0))

    numbers = torch.ones(4, dtype=torch.complex64)
    assert path.call((numbers,), {}) is not NOT_SERVED
    assert path.call((numbers.conj(),), {}) is NOT_SERVED


def test_an_out_that_needs_a_gradient_takes_the_dispatcher(path: EagerPath) -> None:
    x, out = torch.ones(3), torch.zeros(3)
    assert path.call_out(out, (x, 4), {}) is out
    assert torch.equal(out, torch.full((3,), 4.0))
    assert path.call_out(out, (x.clone().requires_grad_(),), {}) is NOT_SERVED
    assert path.call_out(out.clone().requires_grad_(), (x,), {}) is NOT_SERVED


def test_whatever_listens_at_the_dispatcher_is_noticed() -> None:
    assert guard.quiet()
    found = []
    with BaseTorchDispatchMode():
        found.append(guard.quiet())
    with BaseTorchFunctionMode():
        found.append(guard.quiet())
    torch.set_autocast_enabled("cuda", True)  # torch.autocast fails on a machine without a GPU
    found.append(guard.quiet())
    torch.set_autocast_enabled("cuda", False)
    torch.func.vmap(lambda x: (found.append(guard.quiet()), x)[1])(torch.zeros(2))
    torch.func.grad(lambda x: (found.append(guard.quiet()), x)[1])(torch.zeros(()))
    assert found == [False] * 5
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert guard.quiet(), "the CPU's autocast changes nothing for CUDA tensors"
    assert guard.quiet()


# ----------------------------------------------------------------------------------------------- like the last call


@pytest.fixture
def asked(path: EagerPath, monkeypatch: pytest.MonkeyPatch) -> tuple[EagerPath, list[str]]:
    """A path whose guard matches a 3 x 4 tensor, and the results of ``guard.quiet`` since, empty while it matches."""
    answers: list[str] = []
    quiet = guard.quiet

    def noted() -> bool:
        answers.append("quiet" if quiet() else "not quiet")
        return answers[-1] == "quiet"

    monkeypatch.setattr(guard, "quiet", noted)
    again = EagerPath(path._table._rules, path._table)
    assert torch.equal(again.call((torch.ones(3, 4), 3), {}), torch.full((3, 4), 3.0))
    assert answers == ["quiet"]
    answers.clear()
    return again, answers


def test_a_call_like_the_last_one_is_not_looked_up(asked: tuple[EagerPath, list[str]]) -> None:
    path, answers = asked
    assert guard.tensor_guard is not guard.match_none
    for _ in range(3):
        x = torch.randn(3, 4)
        assert torch.equal(path.call((x, 3), {}), x * 3)
        assert torch.equal(path.call((x,), {"factor": 3}), x * 3)
    assert answers == []


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(3, 5),
        torch.ones(4, 3),
        torch.ones(12),
        torch.ones(4, 3).T,
        torch.ones(3, 8)[:, ::2],
        torch.ones(13)[1:].view(3, 4),  # aligned otherwise
        torch.ones(3, 4, requires_grad=True),
        torch.nn.Parameter(torch.ones(3, 4)),
    ],
    ids=lambda x: f"{type(x).__name__}{list(x.shape)}{x.stride()}+{x.storage_offset()}",
)
def test_another_tensor_is_looked_up(asked: tuple[EagerPath, list[str]], x: torch.Tensor) -> None:
    path, answers = asked
    y = path.call((x, 3), {})
    assert answers == ["quiet"]
    assert y.requires_grad == x.requires_grad
    assert y.shape == x.shape
    if x.is_contiguous():
        assert torch.equal(y, x * 3)


def test_another_factor_is_looked_up(asked: tuple[EagerPath, list[str]]) -> None:
    path, answers = asked
    x = torch.randn(3, 4)
    assert torch.equal(path.call((x, 4), {}), x * 4)
    assert torch.equal(path.call((x,), {}), x * 2)
    assert torch.equal(path.call((x, 3), {}), x * 3)
    assert answers == ["quiet", "quiet"]


@pytest.mark.filterwarnings("ignore:.*(Sparse|nested):UserWarning")
def test_what_is_not_plain_takes_the_dispatcher(asked: tuple[EagerPath, list[str]]) -> None:
    class Subclass(torch.Tensor):
        pass

    path, _ = asked
    x = torch.ones(3, 4)
    assert path.call((), {"x": x}) is NOT_SERVED
    without_strides = [x.to_sparse(), x.to_sparse_csr(), x.to_sparse_bsr((3, 2)), torch.nested.nested_tensor([x])]
    assert all(type(other) in guard.PLAIN_TYPES for other in without_strides)
    for other in (*without_strides, x.as_subclass(Subclass), torch._neg_view(x), x.to_mkldnn(), None, 3, "x", [x]):
        assert path.call((other,), {}) is NOT_SERVED
        assert path.call((other, 3), {}) is NOT_SERVED  # but for its tensor like the last call
    assert torch.equal(path.call((x, 3), {}), x * 3)


@pytest.mark.parametrize(
    "region",
    [
        BaseTorchDispatchMode,
        BaseTorchFunctionMode,
        FakeTensorMode,
        forward_ad.dual_level,
        lambda: torch.device("cpu"),
    ],
    ids=["dispatch mode", "function mode", "fake tensors", "dual level", "default device"],
)
def test_a_like_of_the_last_call_in_a_region_that_listens(asked: tuple[EagerPath, list[str]], region: Any) -> None:
    path, answers = asked
    x = torch.randn(3, 4)
    with region():
        assert path.call((x, 3), {}) is NOT_SERVED
    assert answers == ["not quiet"]
    assert torch.equal(path.call((x, 3), {}), x * 3)
    assert answers == ["not quiet"]


@pytest.mark.filterwarnings("ignore:.*jit.trace:DeprecationWarning")
def test_a_like_of_the_last_call_inside_a_transform(asked: tuple[EagerPath, list[str]]) -> None:
    path, answers = asked
    x, found = torch.randn(3, 4), []

    def inside(z: torch.Tensor) -> torch.Tensor:
        found.append(path.call((x, 3), {}))
        return z.sum()

    torch.func.vmap(inside)(torch.zeros(2, 2))
    torch.func.grad(inside)(torch.zeros(2))
    torch.jit.trace(inside, (torch.zeros(2),), check_trace=False)
    assert found == [NOT_SERVED] * 3
    assert answers == ["not quiet"] * 3


def test_a_like_of_the_last_call_without_a_gradient_to_record(asked: tuple[EagerPath, list[str]]) -> None:
    path, answers = asked
    x = torch.randn(3, 4, requires_grad=True)
    for _ in range(REFRESH_EVERY):
        assert path.call((x, 3), {}).requires_grad
    answers.clear()
    assert path.call((x, 3), {}).requires_grad
    with torch.no_grad():
        assert not path.call((x, 3), {}).requires_grad
    assert answers == [], "the guard matches with and without grad mode"
    with torch.inference_mode():
        assert path.call((x, 3), {}).is_inference()
    assert answers == ["quiet"]


def test_a_backend_that_was_asked_for_is_not_passed_by(asked: tuple[EagerPath, list[str]]) -> None:
    path, _ = asked
    x = torch.randn(3, 4)
    with use_settings(backend="ref"):
        assert path.call((x, 3), {}) is NOT_SERVED
    path._table.chosen = "ref"
    assert path.call((x, 3), {}) is NOT_SERVED


def test_calls_of_two_kinds_in_turns(asked: tuple[EagerPath, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    path, answers = asked
    written: list[Any] = []
    tensor_guard = guard.tensor_guard
    monkeypatch.setattr(guard, "tensor_guard", lambda x: (written.append(x.shape), tensor_guard(x))[1])
    a, b = torch.randn(3, 4), torch.randn(5)
    for _ in range(3 * REFRESH_EVERY):
        assert torch.equal(path.call((a, 3), {}), a * 3)
        assert torch.equal(path.call((b, 3), {}), b * 3)
    assert 3 * REFRESH_EVERY <= len(answers) <= 3 * REFRESH_EVERY + 3, "one of the two is like the last"
    assert len(written) == 3


def test_the_last_call_of_another_device(asked: tuple[EagerPath, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_current_device", lambda: 1)
    path = EagerPath(asked[0]._table._rules, asked[0]._table)
    monkeypatch.setattr(path._table, "launch", lambda out, args, kwargs: "by the table, on its device")
    for _ in range(2):
        assert path.call((torch.ones(3, 4), 3), {}) == "by the table, on its device"


def add_up(x: int, y: int, target: int, count: int, factor: int, stream: int) -> None:
    """Adds fp32 numbers at two addresses, the second ones multiplied."""
    a, b, c = ((ctypes.c_float * count).from_address(each) for each in (x, y, target))
    for i in range(count):
        c[i] = a[i] + factor * b[i]


@pytest.fixture
def of_two(pretend_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[EagerPath, list[Any]]:
    """The path of an operator of two tensors, and the calls that it looked up in the launch table."""
    text = "ns::axpy(Tensor x, Tensor y, int factor=2, float eps=0.5, *, str variant='auto') -> Tensor"

    def plan(device: Any, out: torch.Tensor, x: torch.Tensor, y: torch.Tensor, factor: int, *others: Any) -> Plan:
        return Plan("simple", "nowhere:build", None, (x.numel(), factor), "why", 0, 0)

    def like(x: torch.Tensor, y: torch.Tensor, factor: int, eps: float, variant: str) -> torch.Tensor:
        return x.new_empty(x.shape)

    def store(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor, keyword_only_inputs: dict[str, Any]) -> None:
        seen.append((inputs[2:], keyword_only_inputs))
        ctx.factor = inputs[2]

    def gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return grad, grad * ctx.factor, None, None

    pretend_gpu(lambda config, arch: add_up)
    seen.clear()
    rules = Rules(Schema(text), like, like, plan, {"simple": None}, store, gradients)
    launches, found = LaunchTable(rules), []
    find = launches.find_or_compile
    monkeypatch.setattr(launches, "find_or_compile", lambda *call: found.append(call[1:]) or find(*call))
    return EagerPath(rules, launches), found


def test_a_call_of_two_tensors_is_looked_up_once(of_two: tuple[EagerPath, list[Any]]) -> None:
    path, found = of_two
    x, y = torch.arange(12.0).view(3, 4), torch.arange(7.0, 19.0).view(3, 4)
    for _ in range(3):
        assert torch.equal(path.call((x, y), {}), x + 2 * y)
        assert torch.equal(path.call((y, x, 3, 0.25), {"variant": "auto"}), y + 3 * x)
        assert torch.equal(path.call((x, y), {"factor": 5}), x + 5 * y)
        again = x.clone(), y.clone()  # the same layout elsewhere
        assert torch.equal(path.call(again, {}), x + 2 * y)
    assert len(found) == 3
    path._table.chosen = "ref"
    assert path.call(again, {}) is NOT_SERVED


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: ((x[:2], y[:2]), {}),
        lambda x, y: ((x, y.t().contiguous().t()), {}),
        lambda x, y: ((x, torch.randn(13)[1:].view(3, 4)), {}),
        lambda x, y: ((x, y, True), {}),
        lambda x, y: ((x, y, 2, 2.0), {}),
        lambda x, y: ((x, y, torch.tensor(2)), {}),
        lambda x, y: ((x, y), {"variant": "simple"}),
    ],
)
def test_a_call_of_two_tensors_that_differs_is_looked_up(of_two: tuple[EagerPath, list[Any]], other: Any) -> None:
    path, found = of_two
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    path.call((x, y, 2), {})
    args, kwargs = other(x, y)
    try:
        path.call(args, kwargs)
    except TypeError:
        assert args[2] is True  # a bool is no int
    assert len(found) == 2


def test_a_recorded_call_of_two_tensors(of_two: tuple[EagerPath, list[Any]]) -> None:
    path, found = of_two
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    for _ in range(3):
        out = path.call((x, y, 3), {"eps": 0.125})
        assert seen[-1] == ((3, 0.125), {"variant": "auto"})
        grads = torch.autograd.grad(out, (x, y), torch.ones_like(out))
        assert [torch.equal(g, torch.full_like(g, n)) for g, n in zip(grads, (1.0, 3.0), strict=True)] == [True, True]
    with torch.no_grad():
        assert not path.call((x, y, 3), {"eps": 0.125}).requires_grad
    assert len(found) == 2


def test_what_is_not_plain_takes_the_dispatcher_though_its_like_was_seen(of_two: tuple[EagerPath, list[Any]]) -> None:
    path, found = of_two
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    path.call((x, y), {})
    negated = torch._neg_view(y)
    for args in ((x, negated), (negated, x), (x, y.to_sparse()), (x, FakeTensorMode().from_tensor(y))):
        assert path.call(args, {}) is NOT_SERVED
    with BaseTorchDispatchMode():
        assert path.call((x, y), {}) is NOT_SERVED
    with use_settings(backend="ref"):
        assert path.call((x, y), {}) is NOT_SERVED
    assert len(found) == 1


def test_the_log_tells_a_call_of_two_tensors_that_is_found(
    of_two: tuple[EagerPath, list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = of_two
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    with caplog.at_level(logging.DEBUG, "forge_core"):
        for _ in range(3):
            path.call((x, y), {})
    assert [record.getMessage() for record in caplog.records] == [
        "ns::axpy: simple None: why",
        *["launch table hit: ns::axpy simple"] * 2,
    ]
