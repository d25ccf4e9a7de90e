"""Operators: schemas, registration, out forms, backends and explanations."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from forge_core import checks
from forge_core.device import Device
from forge_core.errors import ArgumentError, DeviceError, SettingsError, ShapeError
from forge_core.op import Plan, Variant, backend, operator
from forge_core.op.schema import Schema
from forge_core.testing.conformance import check_export, check_fullgraph, check_opcheck

same = torch.testing.assert_close


@dataclass(frozen=True)
class PowerConfig:
    exponent: int


def plan_power(device: Device, out: torch.Tensor, x: torch.Tensor, exponent: int, variant: str) -> Plan:
    return Plan(
        variant="simple" if variant == "auto" else variant,
        builder="forge_core.env_check.kernel:build",
        config=PowerConfig(exponent),
        arguments=(x.numel(),),
        why=f"there is one kernel for {device.arch}",
        read=x.numel() * 4,
        written=out.numel() * 4,
    )


VARIANTS = {"slow": Variant("nowhere:slow", "one thread"), "simple": Variant("nowhere:simple", "many threads")}


@operator(
    "forge_core_test::power(Tensor x, int exponent=2, *, str variant='auto') -> Tensor",
    reference=lambda x, exponent: torch.pow(x, exponent).contiguous(),
    plan=plan_power,
    variants=VARIANTS,
    setup_context=lambda ctx, inputs, keyword_only_inputs, output: (
        ctx.save_for_backward(inputs[0]),
        setattr(ctx, "exponent", inputs[1]),
    ),
    backward=lambda ctx, grad: (
        grad * ctx.exponent * power(ctx.saved_tensors[0], ctx.exponent - 1)
        if ctx.exponent > 1
        else grad * torch.ones_like(ctx.saved_tensors[0]),
        None,
    ),
    vmap=lambda info, in_dims, x, exponent=2, **kwargs: (power(x.movedim(in_dims[0], 0), exponent, **kwargs), 0),
    autocast={"cuda": torch.float32, "cpu": torch.float32},
)
def power(x: torch.Tensor, exponent: int = 2, *, variant: str = "auto") -> torch.Tensor:
    """Raises each element to an integer power."""
    checks.strided("power", "x", x)
    checks.min_rank("power", "x", x, 1)
    return x.new_empty(x.shape)


@operator(
    "forge_core_test::add2(Tensor x, Tensor y) -> Tensor",
    reference=lambda x, y: (x + y).contiguous(),
    plan=plan_power,
    variants=VARIANTS,
)
def add2(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Adds two tensors of one shape; not differentiable."""
    if x.shape != y.shape:
        raise ShapeError(op="add2", argument="y", expected=f"shape {tuple(x.shape)}", got=f"{tuple(y.shape)}")
    return x.new_empty(x.shape)


def right(got: torch.Tensor, args: tuple[Any, ...]) -> None:
    same(got, args[0] ** args[1])


def make(seed: int) -> tuple[Any, ...]:
    return (torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)), 3)


def test_a_schema_is_taken_apart() -> None:
    schema = Schema("ns::f(Tensor x, int dim=-1, *, ScalarType? dtype=None, str variant='auto') -> Tensor")
    assert (schema.namespace, schema.name, schema.qualified) == ("ns", "f", "ns::f")
    assert schema.parameters == ("x", "dim", "dtype", "variant")
    assert schema.positional == 2
    assert schema.defaults == {"dim": -1, "dtype": None, "variant": "auto"}
    assert schema.tensors == ("x",)
    assert schema.out_definition() == (
        "f_out(Tensor x, int dim=-1, *, ScalarType? dtype=None, str variant='auto', Tensor(a!) out) -> ()"
    )
    assert Schema("ns::g(Tensor x, Tensor y) -> Tensor").out_definition() == (
        "g_out(Tensor x, Tensor y, *, Tensor(a!) out) -> ()"
    )


@pytest.mark.parametrize(
    "text",
    ["f(Tensor x) -> Tensor", "ns::f(Tensor(a!) x) -> ()", "ns::f(int n) -> Tensor", "ns::f() -> Tensor"],
)
def test_a_schema_that_cannot_be_served(text: str) -> None:
    with pytest.raises(ValueError, match="operator schema"):
        Schema(text)


def test_binding_is_python_s() -> None:
    schema = Schema("ns::f(Tensor x, int dim=-1, *, str variant='auto') -> Tensor")
    assert schema.bind((1,), {}) == {"x": 1, "dim": -1, "variant": "auto"}
    assert list(schema.bind((1,), {"variant": "v", "dim": 2}).items()) == [("x", 1), ("dim", 2), ("variant", "v")]
    for args, kwargs in (((), {}), ((1, 2, 3), {}), ((1,), {"x": 2}), ((1,), {"nothing": 0})):
        with pytest.raises(TypeError, match=r"f\(\)"):
            schema.bind(args, kwargs)


class Index:
    def __index__(self) -> int:
        return 3


class Three(enum.IntEnum):
    THREE = 3


@pytest.mark.parametrize(
    "three", [np.int64(3), np.uint8(3), torch.tensor(3), torch.tensor(3, dtype=torch.int32), Index(), Three.THREE]
)
def test_integers_of_other_kinds_are_ints(three: Any) -> None:
    schema = Schema("ns::f(Tensor x, int a=0, int[1]? b=None, *, int c=0) -> Tensor")
    x = torch.ones(2, 3)
    args, kwargs = schema.normalize((x, three, (1, three)), {"c": three})
    assert args[0] is x
    assert (args[1:], kwargs) == ((3, (1, 3)), {"c": 3})
    assert [type(v) for v in (args[1], *args[2], kwargs["c"])] == [int] * 4
    assert schema.normalize((x, 1, three), {})[0][2] == 3
    assert torch.equal(power(x + 1, three), (x + 1) ** 3)
    assert torch.equal(power.out(x + 1, exponent=three, out=torch.empty(2, 3)), (x + 1) ** 3)
    assert power.explain(x, three, arch="sm_90a").config == PowerConfig(3)


@pytest.mark.parametrize(
    "value", [True, np.float32(3), torch.tensor(3.0), torch.tensor([3]), torch.tensor(True), np.bool_(True), 3.0, "3"]
)
def test_what_is_no_integer_is_refused_as_pytorch_does(value: Any) -> None:
    with pytest.raises(TypeError, match="'exponent': expected an argument of type int"):
        power(torch.ones(2, 3), value)


def test_plain_arguments_are_passed_on_untouched() -> None:
    schema = Schema("ns::f(Tensor x, int[1]? b=None, *, ScalarType? dtype=None) -> Tensor")
    for args, kwargs in (((torch.ones(2), (0, 1)), {}), ((torch.ones(2), None), {"dtype": torch.float32})):
        got = schema.normalize(args, kwargs)
        assert got[0] is args
        assert got[1] is kwargs


def test_python_s_types_are_dtypes() -> None:
    schema = Schema("ns::f(Tensor x, *, ScalarType? dtype=None, ScalarType other=6) -> Tensor")
    kinds = {float: torch.float64, int: torch.int64, bool: torch.bool}
    for kind, dtype in kinds.items():
        assert torch.zeros(1).to(kind).dtype is dtype
        assert schema.normalize((torch.ones(2),), {"dtype": kind})[1] == {"dtype": dtype}
        assert schema.traced((torch.ones(2),), {"dtype": kind})[1] == {"dtype": dtype}
    named = {"x": torch.ones(2), "dtype": None, "other": torch.float16}
    schema.check("f", named)
    for name, expected in (("dtype", "a torch.dtype, or None, got 'half'"), ("other", "a torch.dtype, got 'half'")):
        with pytest.raises(TypeError, match=expected):
            schema.check("f", {**named, name: "half"})


def test_one_declaration_gives_it_all() -> None:
    x = torch.randn(3, 4)
    same(power(x), x**2)
    same(power(x, 3), x**3)
    same(torch.ops.forge_core_test.power(x, 3), x**3)
    check_opcheck(power, (x.clone().requires_grad_(), 3))
    check_opcheck(add2, (x, x))
    check_fullgraph(power, make, right, backend="aot_eager", dynamic=True)
    check_export(power, torch.ops.forge_core_test.power.default, make, right)
    same(torch.vmap(power, in_dims=1)(x), (x**2).t())
    leaf = x.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda a: power(a, 3), leaf)
    assert torch.autograd.gradgradcheck(lambda a: power(a, 3), leaf)
    same(torch.func.vmap(torch.func.grad(lambda a: power(a, 3).sum()))(x), 3 * x**2)
    assert power.__doc__ == "Raises each element to an integer power."
    assert "forge_core_test::power" in repr(power)


def test_autocast_casts_by_the_rule() -> None:
    x = torch.randn(3, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert power(x).dtype is torch.float32
        assert add2(x, x).dtype is torch.bfloat16  # it has no rule
    assert power(x).dtype is torch.bfloat16


def test_the_out_form() -> None:
    x, out = torch.randn(3, 4), torch.zeros(4, 3).t()
    assert power.out(x, 3, out=out) is out
    same(out, x**3)
    with pytest.raises(ShapeError, match="power_out: argument 'out'"):
        power.out(x, out=torch.zeros(4, 3))
    with pytest.raises(ArgumentError, match=r"power_out: argument 'out': expected a torch\.Tensor, got list"):
        power.out(x, out=[])
    with pytest.raises(ArgumentError, match=r"add2_out: argument 'y'.*need no gradient"):
        add2.out(x, x.clone().requires_grad_(), out=torch.zeros(3, 4))


def test_checks_come_before_the_reference() -> None:
    with pytest.raises(ShapeError, match="power: argument 'x'"):
        power(torch.tensor(1.0))
    with pytest.raises(ShapeError, match="add2: argument 'y'"):
        add2(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ArgumentError, match=r"argument 'variant'.*'slow', 'simple', got 'fast'"):
        power(torch.zeros(3), variant="fast")


def test_backends_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(3)
    power(x)
    monkeypatch.setenv("FORGE_BACKEND", "kernel")  # read at the call
    with pytest.raises(DeviceError, match="backend 'kernel' was asked for"):
        power(x)
    monkeypatch.setenv("FORGE_BACKEND", "triton")
    with pytest.raises(SettingsError, match="FORGE_BACKEND: expected 'kernel' or 'ref', got 'triton'"):
        power(x)
    monkeypatch.delenv("FORGE_BACKEND")
    with pytest.raises(SettingsError, match="backend"), backend("cuda"):
        pass
    with backend("ref"):
        power(x)
    with backend("kernel"), pytest.raises(DeviceError, match="backend 'kernel' was asked for"):
        power(x)
    with pytest.raises(DeviceError, match="variant 'slow' was asked for"):
        power(x, variant="slow")


def test_variants_and_explain() -> None:
    assert power.variants() == {"slow": "one thread", "simple": "many threads"}
    told = power.explain(torch.zeros(3, 4))
    assert (told.backend, told.variant, told.read, told.written) == ("ref", None, 48, 48)
    told = power.explain(torch.zeros(3, 4), 5, arch="sm_90a", variant="slow")
    assert (told.backend, told.variant, told.config, told.arch) == ("kernel", "slow", PowerConfig(5), "sm_90a")
    assert told.as_dict()["config"] == {"exponent": 5}
    assert told.key is not None
    other = power.explain(torch.zeros(3, 4), 5, arch="sm_100a")
    assert other.key != told.key
    with pytest.raises(ArgumentError, match="variant"):
        power.explain(torch.zeros(3), variant="fast")


def test_a_numbered_launch_has_a_workspace() -> None:
    with pytest.raises(ValueError, match=r"Plan: simple: expected a workspace"):
        Plan("simple", "nowhere:build", None, (), "it is so", 0, 0, numbered=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_child_of_a_fork_has_numbers_of_its_own(python: Callable[..., str]) -> None:
    code = "import os; from forge_core.op import table; c = os.fork(); c and os.wait(); print(next(table._numbers))"
    first, second = sorted(map(int, python("-W", "ignore", "-c", code).split()))
    assert second - first > 1
