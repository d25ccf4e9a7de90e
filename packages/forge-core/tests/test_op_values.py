"""Operators are pickled, copied, traced by torch.fx and dispatched to ``__torch_function__`` like functions."""

from __future__ import annotations

import copy
import io
import pickle
import sys
import types
from typing import Any, NamedTuple

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from forge_core.op import Operator, eager, operator, schema
from forge_core.op.rules import Rules
from forge_core.op.table import LaunchTable

week0 = pytest.importorskip("forge_week0_transpose")
week1 = pytest.importorskip("forge_week1_reduce")
week2 = pytest.importorskip("forge_week2_softmax")


class Case(NamedTuple):
    op: Operator
    arguments: tuple[Any, ...] = ()

    def inputs(self, rows: int = 3) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(rows)
        return tuple(torch.randn(rows, 5, generator=generator) for _ in self.op.schema.tensors)

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        return self.op(*tensors, *self.arguments, **options)

    def reference(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.op._rules.refer(self.op.schema.bind((*tensors, *self.arguments), {}))


OPERATORS = (week0.copy, week0.transpose, week0.copy_transpose)
OPERATORS += (week1.reduce_sum, week1.mean, week1.prod, week1.amax, week1.amin, week2.softmax, week2.log_softmax)
WITH_DIM = (week2.logsumexp, week2.softmax_backward, week2.log_softmax_backward)
CASES = [*map(Case, OPERATORS), *(Case(op, (-1,)) for op in WITH_DIM)]
cases = pytest.mark.parametrize("case", CASES, ids=[case.op.__name__ for case in CASES])


class Net(torch.nn.Linear):
    def forward(self, x):
        return self.op(super().forward(x), 0)


def stored(value: Any, protocol: int | None = None) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))  # noqa: S301  # its own bytes


@cases
def test_it_is_pickled_by_its_name_and_copied_as_itself(case: Case) -> None:
    for _ in range(2):  # before a call and after it
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert stored(case.op, protocol) is case.op
            assert stored(case.op.out, protocol) == case.op.out
        assert copy.copy(case.op) is copy.deepcopy({"op": [case.op]})["op"][0] is case.op
        case(*case.inputs())
    net, file = Net(5, 5), io.BytesIO()
    net.op, net.by_name = case.op, {"op": case.op}
    torch.save(net, file)
    file.seek(0)
    for again in (copy.deepcopy(net), torch.load(file, weights_only=False), stored(net)):
        assert again.op is again.by_name["op"] is case.op
        assert again.weight is not net.weight


def test_what_is_not_found_by_its_name_is_not_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    @operator("forge_core_values::local(Tensor x) -> Tensor", reference=torch.neg, plan=print, variants={})
    def local(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(x.shape)

    def refused(got: str) -> None:
        with pytest.raises(pickle.PicklingError, match=rf"forge_core_values\.local: .* got {got}.*at the top level"):
            pickle.dumps(local)

    assert stored(week2.softmax_online) is week2.softmax  # an alias
    refused("nothing of that name")
    assert copy.copy(local) is copy.deepcopy(local) is local
    module = types.ModuleType("forge_core_values")
    module.renamed = local
    local.__module__, local.__qualname__ = module.__name__, "local"
    refused("no module 'forge_core_values'")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    refused("nothing of that name")
    module.local = print
    refused("another object, <built-in function print>")
    module.local = types.SimpleNamespace(inside=local)
    local.__qualname__ = "local.inside"
    assert stored(local) is local


PROGRAM = """
import multiprocessing, os, pickle, torch
from forge_core.op import operator
from forge_week0_transpose import transpose
from forge_week1_reduce import reduce_sum
from forge_week2_softmax import softmax
@operator("forge_core_values::own(Tensor x) -> Tensor", reference=torch.neg, plan=print, variants={})
def own(x):
    return x.new_empty(x.shape)
def called(*ops):
    return ops, [op(torch.arange(4.0).view(2, 2)).tolist() for op in ops]
if __name__ == "__main__":
    ops = (transpose, reduce_sum, softmax)
    for method in ("fork", "spawn") if hasattr(os, "fork") else ("spawn",):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.apply(called, ops) == called(*ops)  # operators are equal where they are the same
            try:
                assert pool.apply(called, (own,)) == called(own) and method == "fork"
            except multiprocessing.pool.MaybeEncodingError as caught:
                assert "'__mp_main__.own'" in str(caught) and "worker process" in str(caught) and method == "spawn"
    del __file__
    try:
        multiprocessing.get_context("spawn").Process(target=own).start()
    except pickle.PicklingError as caught:
        assert "interactive main program" in str(caught)
        print("done")
"""


@pytest.mark.slow
def test_workers_get_the_operators_of_their_own_process(python, tmp_path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    assert python("-W", "ignore", tmp_path / "program.py") == "done\n"


@cases
def test_symbolic_trace_records_the_operator(case: Case) -> None:
    tensors, expected = case.inputs(), case.reference(*case.inputs())
    name = f"{case.op.__module__}.{case.op.__name__}".replace(".", "_")

    def of(place: int) -> Any:
        return lambda x: case(*tensors[:place], x, *tensors[place + 1 :]) + 1

    for place, one in enumerate(tensors):
        graph = fx.symbolic_trace(of(place))
        (node,) = [node for node in graph.graph.nodes if node.target is case.op]
        assert node.op == "call_function"
        assert f" {name}(" in graph.code
        assert graph.graph.python_code("self").globals[name] is case.op
        for again in (graph, copy.deepcopy(graph), stored(graph)):
            assert torch.equal(again(one), expected + 1)
    out = torch.zeros_like(expected)
    graph = fx.symbolic_trace(lambda x, y: (case.op.out(*tensors[:-1], x, *case.arguments, out=y), x)[1])
    graph.graph.eliminate_dead_code()
    graph.recompile()
    stored(graph)(one, out)
    assert torch.equal(out, expected)


def test_symbolic_trace_of_a_module_and_of_keywords() -> None:
    net, x = Net(5, 5), torch.randn(3, 5)
    net.op = week1.reduce_sum
    assert torch.equal(stored(fx.symbolic_trace(net))(x), net(x))
    assert torch.equal(fx.symbolic_trace(lambda x: week2.softmax(x=x, dim=x.dim() - 1))(x), x.softmax(-1))


@pytest.mark.parametrize(("mode", "rows"), [("real", 3), ("fake", 3), ("symbolic", 7)])
@cases
def test_make_fx_records_the_registered_operator(case: Case, mode: str, rows: int) -> None:
    graph = make_fx(case, tracing_mode=mode)(*case.inputs())
    assert case.op._op in [node.target for node in graph.graph.nodes]
    assert torch.equal(graph(*case.inputs(rows)), case.reference(*case.inputs(rows)))


calls: list[Any] = []


class Seen(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        calls.append(func)
        return super().__torch_function__(func, types, args, kwargs)


class Duck:
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func, args, kwargs


class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        calls.append(func)
        return func(*args, **(kwargs or {}))


def called() -> list[Any]:
    return [calls.pop(0) for _ in range(len(calls))]


@cases
def test_a_subclass_an_object_and_a_mode_get_the_operator(case: Case) -> None:
    (op, arguments), tensors, duck = case, case.inputs(), Duck()
    expected = case.reference(*tensors)
    for place, one in enumerate(tensors):
        passed = [*tensors[:place], one.as_subclass(Seen), *tensors[place + 1 :]]
        got, out = case(*passed), torch.zeros_like(expected)
        assert (called(), type(got)) == ([op], Seen)
        op.out(*passed, *arguments, out=out)
        assert called() == [op.out]
        assert torch.equal(got.as_subclass(torch.Tensor), expected)
        assert torch.equal(out, expected)
        op(**dict(zip(op.schema.parameters, (*passed, *arguments), strict=False)))
        assert called() == [op]
        passed[place] = duck
        assert case(*passed, key=duck) == (op, (*passed, *arguments), {"key": duck})
    op.out(*tensors, *arguments, out=out.as_subclass(Seen))
    assert called() == [op.out]
    assert op.out(*tensors, out=duck) == (op.out, tensors, {"out": duck})
    with Mode(), Mode():
        assert torch.equal(case(*tensors), expected)
        assert op.out(*tensors, *arguments, out=out) is out
    assert [func for func in called() if func in (op, op.out)] == [op, op, op.out, op.out]


def test_the_eager_path_launches_what_has_no_torch_function_by_the_parameters_own_names(
    pretend_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = []
    two = schema.Schema("ns::f(Tensor x, Tensor y, int dim=-1, *, str variant='auto') -> Tensor")
    rules = Rules(two, torch.empty_like, torch.neg, print, {})
    launches = LaunchTable(rules)
    monkeypatch.setattr(launches, "find_or_compile", lambda *call: launched.append(call[1:]))
    monkeypatch.setattr(launches, "run", lambda *call: None)
    path, x, three = eager.EagerPath(rules, launches), torch.ones(2), torch.tensor(3)
    duck, seen = Duck(), three.as_subclass(Seen)
    for args, named in (((x, duck), {}), ((x, x, seen), {}), ((x, x), {"variant": duck}), ((x, x), {"dim": seen})):
        assert path.call(args, named) is path.call_out(x, args, named) is eager.NOT_SERVED
    assert path.call_out(duck, (x, x), {}) is eager.NOT_SERVED
    assert launched == []
    path.call((x, x), {"dim": three})
    path.call_out(x, (x, x, three), {})
    path.call((x, x), {"axis": 1})
    path.call_out(x, (x, x), {"axis": 0, "variant": "auto"})
    by_name = [((x, x), {"dim": 1}), ((x, x), {"dim": 0, "variant": "auto"})]
    assert launched == [((x, x), {"dim": 3}), ((x, x, 3), {}), *by_name]


def test_what_dynamo_traces_does_without_a_strict_zip(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.9, the oldest supported version, treats any ``strict=`` of a traced zip as True."""
    monkeypatch.setattr(schema, "zip", lambda *each, **given: zip(*each, strict=bool(given)), raising=False)
    x = torch.ones(2, 3)
    assert week1.reduce_sum.schema.traced((x, 1), {"dtype": float}) == ((x, [1]), {"dtype": torch.float64})
