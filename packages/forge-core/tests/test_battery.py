"""The battery is tested: a right operator passes all of it, and of each wrong one exactly the right checks fail."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
import torch

from forge_core.errors import ArgumentError, CacheError, CompileError
from forge_core.testing import Case, Planted, Subject, assert_same_bits, battery, conformance, relaid, tree_bound
from forge_core.testing.battery import CHECKS, Trial
from forge_core.testing.conformance_calls import refused
from forge_core.testing.conformance_gradients import check_vmap
from forge_core.testing.conformance_memory import check_empty
from forge_core.testing.planted import GENERAL, forgotten_stream, frozen_input

_numbers = itertools.count()


# ------------------------------------------------------------------------------------------------- a right operator


def body(x, dim):
    """Each element's distance from the mean along a dimension."""
    return (x - x.mean(dim, keepdim=True)).contiguous()


def written(x, dim, out):
    out.copy_(body(x, dim))


def fake(x, dim):
    return x.new_empty(x.shape)


def reference(x, dim):
    return (x - torch.mean(x, dim, keepdim=True)).contiguous()


def floor(x, dim):
    wide = x.double()
    mean = tree_bound(wide.abs().sum(dim, keepdim=True), x.shape[dim], torch.float32) / x.shape[dim]
    return mean + 2 * torch.finfo(torch.float32).eps * (wide.abs() + wide.mean(dim, keepdim=True).abs())


def samples(device):
    generator = torch.Generator(device).manual_seed(0)
    for shape in ((3, 100), (3, 5000)):
        yield torch.randn(shape, device=device, generator=generator), -1


def pulled(grad, dim):
    return grad - grad.mean(dim, keepdim=True)


def centred(run=body, like=fake, write=written, pull=pulled, **changed):
    """A subject around a registered operator, with its parts as they should be or exchanged."""
    name = f"centred{next(_numbers)}"
    library = torch.library.Library("forge_battery_test", "FRAGMENT")
    library.define(f"{name}(Tensor x, int dim) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    library.define(f"{name}_out(Tensor x, int dim, *, Tensor(a!) out) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        library.impl(name, run, key)
        library.impl(f"{name}_out", lambda x, dim, *, out: write(x, dim, out), key)
    qualified = f"forge_battery_test::{name}"
    torch.library.register_fake(qualified, like, lib=library)
    torch.library.register_fake(f"{qualified}_out", lambda x, dim, *, out: None, lib=library)

    def keep(ctx, inputs, output):
        ctx.dim = inputs[1]

    torch.library.register_autograd(
        qualified,
        lambda ctx, grad: (pull(grad, ctx.dim), None),
        setup_context=keep,
        lib=library,
    )
    _libraries.append(library)
    overload = getattr(torch.ops.forge_battery_test, name).default
    into = getattr(torch.ops.forge_battery_test, f"{name}_out").default
    words = {
        "reference": reference,
        "cases": [Case((4, 6, 10), (-1,)), Case((4, 6, 10), (0,)), Case((37,), (0,))],
        "overload": overload,
        "out": into,
        "out_overload": into,
        "title": "centred",
    }
    return Subject(changed.pop("call", overload), samples, floor, **{**words, **changed})


_libraries: list[torch.library.Library] = []
RIGHT = centred()


@pytest.mark.parametrize("check", battery(RIGHT))
def test_a_right_operator_passes(check):
    check()


# -------------------------------------------------------------------------------------------------- wrong operators


def failing(subject):
    """The names of the checks that fail on the CPU."""
    found = set()
    subject = replace(subject, cases=subject.cases[:1])
    for name, check in CHECKS.items():
        if "cpu" in check.devices and not check.lacks(subject):
            try:
                check.run(subject, torch.device("cpu"))
            except AssertionError:
                found.add(name)
    return found


def nan_swallowed(x, dim):
    return body(x.nan_to_num(nan=0.0), dim)


def offset_ignored(x, dim):
    start = x.storage_offset() - x.storage_offset() % 4
    # Only of contiguous tensors: a kernel has another way for the others.
    return body(x.as_strided(x.shape, x.stride(), start) if x.is_contiguous() else x, dim)


def strides_ignored(x, dim):
    dense = torch.empty(x.shape, device="meta").stride()
    fits = x.numel() <= x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    return body(x.as_strided(x.shape, dense) if fits else torch.zeros(x.shape), dim)


class Unsteady:
    """The order of the sum differs from call to call: by less than any bound sees."""

    def __init__(self):
        self.calls = itertools.count()

    def __call__(self, x, dim):
        out = body(x, dim)
        if out.numel() and out.view(-1)[0].isfinite():
            out.view(-1)[0].nextafter_(torch.tensor(float("inf") if next(self.calls) % 2 else -float("inf")))
        return out


class Shared:
    """One workspace for all calls, whichever thread they come from."""

    def __init__(self):
        self.place = {}

    def __call__(self, x, dim):
        self.place["x"] = x
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.002)
        return body(self.place["x"], dim)


def long_rows_in_half(x, dim):
    """What is added up beyond a thousand elements is added up in bf16."""
    if x.numel() and x.shape[dim] > 1000:
        return (x - x.bfloat16().cumsum(dim).select(dim, -1).unsqueeze(dim).float() / x.shape[dim]).contiguous()
    return body(x, dim)


def refuses_nothing(x, dim):
    if x.numel() == 0:
        raise TypeError("a grid of no blocks")
    return body(x, dim)


def input_written(x, dim):
    out = body(x, dim)
    x[(0,) * x.ndim if x.numel() else ...] = 7.0
    return out


def permuted_fake(x, dim):
    return x.new_empty(tuple(reversed(x.shape))).permute(*reversed(range(x.ndim)))


def another_dtype(x, dim):
    return x.new_empty(x.shape, dtype=torch.float64)


def nothing_written(x, dim, out):
    pass


def too_much_written(x, dim, out):
    out.copy_(body(x, dim))
    if out.storage_offset():
        out.as_strided((1,), (1,), 0).zero_()


def broken_graph(overload):
    def call(x, dim):
        torch._dynamo.graph_break()
        return overload(x, dim)

    return call


def shape_in_code(overload):
    def call(x, dim):
        return overload(x, dim) if x.shape[-1] != 128 else overload(x * 1, dim)

    return call


def two_nodes(overload):
    def call(x, dim):
        return overload(x, dim).clone()

    return call


#: The wrong operator, and the checks of the CPU that fail, all and no others.
WRONG = {
    "nan is swallowed": (lambda: centred(nan_swallowed), {"nan_and_inf"}),
    "the offset is ignored": (lambda: centred(offset_ignored), {"misaligned_offset"}),
    "the strides are ignored": (lambda: centred(strides_ignored), {"strides"}),
    "two calls differ": (lambda: centred(Unsteady()), {"determinism"}),
    "threads share a workspace": (lambda: centred(Shared()), {"threads"}),
    "long rows in bf16": (lambda: centred(long_rows_in_half), {"float64_error"}),
    "empty tensors are refused": (lambda: centred(refuses_nothing), {"empties"}),
    "fake strides": (lambda: centred(like=permuted_fake), {"fake_strides", "opcheck"}),
    "fake dtype": (lambda: centred(like=another_dtype), {"fake_strides", "opcheck"}),
    "out is not written": (lambda: centred(write=nothing_written), {"out_form", "out_compiles"}),
    "more than out is written": (lambda: centred(write=too_much_written), {"out_form"}),
    "the graph breaks": (
        lambda: replace(RIGHT, operator=broken_graph(RIGHT.operator)),
        {"fullgraph", "dynamic_shapes"},
    ),
    "a shape in the code": (lambda: replace(RIGHT, operator=shape_in_code(RIGHT.operator)), {"dynamic_shapes"}),
    "the gradient": (
        lambda: centred(pull=lambda grad, dim: grad),
        {"gradients", "second_derivatives", "fullgraph", "threads"},
    ),
    "the second derivative": (
        lambda: centred(pull=lambda grad, dim: pulled(grad.detach(), dim) + 0 * grad),
        {"second_derivatives"},
    ),
    "two nodes": (lambda: replace(RIGHT, operator=two_nodes(RIGHT.operator)), {"export"}),
}


@pytest.mark.parametrize("fault", WRONG)
def test_of_a_wrong_operator_exactly_the_right_checks_fail(fault):
    make, expected = WRONG[fault]
    # An older opcheck does not compare strides.
    optional = {"opcheck"} if fault == "fake strides" and torch.__version__ < "2.11" else set()
    assert expected - optional <= failing(make()) <= expected


def test_an_input_that_is_written_is_seen():
    assert "inputs_untouched" in failing(centred(input_written))
    with pytest.raises(AssertionError, match="in the memory of tensor 0"):
        CHECKS["inputs_untouched"].run(replace(RIGHT, operator=lambda x, dim: x.view(-1)), torch.device("cpu"))


def test_wrong_values_fail_where_values_are_looked_at():
    found = failing(centred(lambda x, dim: body(x, dim) * 1.001))
    assert {"values", "float64_error", "strides", "misaligned_offset", "fullgraph", "export", "threads"} <= found
    assert not found & {"determinism", "fake_strides", "inputs_untouched"}


def test_calls_that_vmap_maps_wrongly_are_seen():
    sets = [(torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)),) for seed in range(3)]
    right = partial(body, dim=0)

    def compare(got, tensors):
        assert_same_bits(got, right(*tensors))

    check_vmap(right, right, sets, compare)
    for wrong in (lambda x: body(x, -1), lambda x: right(x).flip(0)):
        for functions in ((right, wrong), (wrong, right)):
            with pytest.raises(AssertionError, match="elements differ"):
                check_vmap(*functions, sets, compare)


@pytest.mark.parametrize(
    "error, text",
    [
        (None, "and it is served"),
        (RuntimeError("launch failure"), "expected a ArgumentError, got RuntimeError: launch failure"),
        (ArgumentError(op="op", argument="x", expected="elements", got="none"), r"the message lacks .*'y'"),
    ],
)
def test_what_is_not_refused_as_it_should_be_is_seen(error, text):
    call = raising(error) if error else torch.zeros
    with pytest.raises(AssertionError, match=text), refused("a call", ArgumentError, "op", "'y'"):
        call(())


# -------------------------------------------------------------------------------------------------- on a GPU, and as if


def test_a_current_device_that_changes_is_seen(monkeypatch):
    current = [0]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    check = CHECKS["current_device"].run
    check(RIGHT, torch.device("cpu"))

    def wrong(x, dim):
        current[0] = 1
        return body(x, dim)

    with pytest.raises(AssertionError, match="was 0 before the call and is 1 after it"):
        check(replace(RIGHT, operator=wrong), torch.device("cpu"))


def test_a_replay_that_computes_from_another_address_is_seen(monkeypatch):
    def recorded(call, args):
        out = call(*args)
        return lambda: out.copy_(call(*args)), out

    monkeypatch.setattr(conformance, "capture", recorded)
    check = CHECKS["graph_replay"].run
    check(RIGHT, torch.device("cpu"))
    with pytest.raises(AssertionError, match="results are off"):
        check(replace(RIGHT, operator=frozen_input(RIGHT.operator)), torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("plant, check", [(frozen_input, "graph_replay"), (forgotten_stream, "side_stream")])
def test_faults_of_streams_and_graphs_are_seen(plant, check):
    subject = replace(RIGHT, launches=[Case((600, 2000), (-1,))])
    CHECKS[check].run(subject, torch.device("cuda"))
    with pytest.raises(AssertionError):
        CHECKS[check].run(replace(subject, operator=plant(subject.operator)), torch.device("cuda"))


@pytest.mark.gpu
def test_calls_that_differ_from_stream_to_stream_are_seen():
    def wrong(x, dim):
        return body(x, dim) + (torch.cuda.current_stream() != torch.cuda.default_stream()) * 1e-7

    with pytest.raises(AssertionError, match="from four streams gave other bits"):
        CHECKS["determinism"].run(replace(RIGHT, operator=wrong), torch.device("cuda"))


# ------------------------------------------------------------------------------------------------- the planted faults


def test_a_planted_fault_that_is_not_found_fails():
    def harmless(right):
        return partial(right)

    def small(right):
        return lambda x, dim: right(x, dim) * (1 + 2**-23)

    with pytest.raises(AssertionError, match="the planted harmless changes nothing in any case"):
        Trial(RIGHT, "values", "cpu", Planted(harmless))()
    with pytest.raises(AssertionError, match="determinism does not refuse the planted small"):
        Trial(RIGHT, "determinism", "cpu", Planted(small, "determinism"))()


@pytest.mark.parametrize("fault", [f for f in GENERAL if f.found_by == "float64_error"], ids=lambda fault: fault.name)
def test_a_bound_that_hides_a_fault_of_the_error_fails(fault):
    Trial(RIGHT, "float64_error", "cpu", fault)()
    # Proportional to the largest result of the case, not to the element.
    loose = replace(RIGHT, floor=lambda x, dim: 2.0**-4 * x.double().abs().max())
    with pytest.raises(AssertionError, match=f"float64_error does not refuse the planted {fault.name}, torch.float32"):
        Trial(loose, "float64_error", "cpu", fault)()


def test_samples_of_a_declared_dtype_are_needed():
    with pytest.raises(AssertionError, match=r"centred: no samples of torch\.float64"):
        CHECKS["float64_error"].run(replace(RIGHT, dtypes=(torch.float64,)), torch.device("cpu"))


def test_an_error_is_not_taken_for_a_refusal():
    def breaks(right):
        return lambda x, dim: right(x, dim, dim)

    with pytest.raises(RuntimeError):
        Trial(RIGHT, "values", "cpu", Planted(breaks))()


# -------------------------------------------------------------------------------------------------- what it is made of


def by_id(*subjects):
    return {param.id: param for param in battery(*subjects)}


#: Checks and faults of operators of forge_core.op alone.
OF_OPERATORS = (
    "drawn",
    "value",
    "traced",
    "forward_mode",
    "tangent_lost",
    "vmap",
    "refusals",
    "bad_out",
    "backends",
    "explain",
)


def test_each_property_is_a_test_of_its_own_with_its_marks():
    tests = by_id(RIGHT)
    for name, param in tests.items():
        gpu = [mark for mark in param.marks if mark.name == "gpu"]
        assert bool(gpu) == name.endswith("-cuda")
        of_operators = any(f"-{each}-" in name for each in OF_OPERATORS)
        assert bool([mark for mark in param.marks if mark.name == "skip"]) == of_operators
    assert tests["centred-second_device-cuda"].marks[0].kwargs == {"count": 2}
    assert {"centred-values-float32-cpu", "centred-side_stream-cuda", "centred-planted-stale_output-cpu"} <= set(tests)
    assert "centred-side_stream-cpu" not in tests
    assert sum("-planted-" in name for name in tests) == sum(1 if fault.gpu else 2 for fault in GENERAL)
    both = by_id(replace(RIGHT, dtypes=(torch.float32, torch.float64), laid_out_dtypes=(torch.float64,)))
    assert {"centred-values-float64-cpu", "centred-strides-float64-cuda"} <= set(both)
    assert "centred-strides-float32-cpu" not in both
    # Faults of the error are tried in each dtype, the others in all of them at once.
    assert {f"centred-planted-rounded_twice-{name}-cpu" for name in ("float32", "float64")} <= set(both)
    assert "centred-planted-stale_output-cpu" in both


def test_what_does_not_apply_is_skipped_with_its_reason():
    def bare(x, dim):
        return body(x, dim)

    reasons = {"empties": "a mean of nothing is not defined here", "offset_ignored": "it reads single elements"}
    tests = by_id(
        Subject(bare, reference=reference, cases=[Case((4,), (0,))], dtypes=[torch.int32], inapplicable=reasons)
    )
    told = {name: mark.kwargs["reason"] for name, p in tests.items() for mark in p.marks if mark.name == "skip"}
    assert told["bare-empties-cpu"] == "does not apply: a mean of nothing is not defined here"
    assert told["bare-planted-offset_ignored-cuda"] == "does not apply: it reads single elements"
    assert told["bare-opcheck-cpu"] == "does not apply: no registered overload is declared"
    assert told["bare-out_form-cpu"] == "does not apply: the operator has no out form"
    assert told["bare-nan_and_inf-cpu"] == "does not apply: no floating-point dtype is declared"
    assert not [name for name in told if "values" in name]


@pytest.mark.parametrize(
    "changed, text",
    [
        ({"cases": ()}, "at least one case"),
        ({"reference": None}, "expected a reference"),
        ({"inapplicable": {"stride": "no"}}, r"\['stride'\] are no checks"),
        ({"inapplicable": {"strides": " "}}, "a reason for each"),
        ({"planted": [Planted(frozen_input, "replay")]}, r"\['replay'\]; there are"),
    ],
)
def test_a_declaration_that_cannot_be_tested_is_refused(changed, text):
    with pytest.raises(ValueError, match=text):
        battery(replace(RIGHT, **changed))


def test_two_subjects_of_one_name_are_refused():
    with pytest.raises(ValueError, match="different names"):
        battery(RIGHT, RIGHT)
    battery(RIGHT, replace(RIGHT, title="another"))


@pytest.mark.parametrize("shape", [(), (5,), (1, 7), (4, 6), (3, 4, 5)], ids=str)
def test_relaid_keeps_the_values(shape):
    x = torch.randn(shape)
    names = set()
    for name, found in relaid(x):
        names.add(name)
        if name.startswith("expanded"):
            wanted = x
            for dim, step in enumerate(found.stride()):
                if step == 0 and x.shape[dim] > 1:
                    wanted = wanted.narrow(dim, 0, 1)
            assert torch.equal(found, wanted.expand(shape))
        else:
            assert_same_bits(found.contiguous(), x)
    assert {"contiguous", "offset_1", "offset_3"} <= names
    assert len(names) >= (3 if not shape else 5)


# -------------------------------------------------------------- an operator that fails has not refused empty tensors

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
