"""From an operator's name on the command line to what a call of it would run.

Two kinds of name are understood: what a package's benchmarks name (``transpose``, ``sum_rows``), where a case says it
all, and a public operator of a package (``transpose``, ``reduce_sum``, ``forge_week1::sum``), whose further arguments
are given by name.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from forge_core import dtypes, settings
from forge_core.bench.declare import Bench, Case, OperatorBench, one_random_tensor
from forge_core.bench.inputs import LAYOUTS, random_tensor
from forge_core.bench.plan import discover
from forge_core.bench.schema import parse_shape
from forge_core.cli import did_you_mean
from forge_core.errors import ArgumentError
from forge_core.op import Explanation, Operator

__all__ = ["explain_case", "explain_named", "known_names", "meta_tensor", "operators_of"]


def operators_of(benches: Sequence[Bench]) -> dict[str, Operator]:
    """The public operators of the packages, by the name that a package exports and by the one that torch knows."""
    found: dict[str, Operator] = {}
    for bench in benches:
        module = importlib.import_module(bench.package)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, Operator):
                found.setdefault(name, value)
                found.setdefault(value.schema.qualified, value)
    return found


def known_names(benches: Sequence[Bench]) -> list[str]:
    """The names that :func:`explain_named` takes, each once: without those that are another with its namespace."""
    measured = [operator.name for bench in benches for operator in bench.operators]
    return list(dict.fromkeys([*measured, *(name for name in operators_of(benches) if "::" not in name)]))


def meta_tensor(shape: Sequence[int], dtype: torch.dtype, layout: str = "contiguous") -> torch.Tensor:
    """A tensor without memory, laid out as the benchmarks' inputs are.

    Raises:
        ArgumentError: an unknown layout, or one that this shape cannot have.
    """
    try:
        return random_tensor(shape, dtype, device=torch.device("meta"), generator=torch.Generator(), layout=layout)
    except ValueError as error:
        raise ArgumentError(
            op="inspect",
            argument="layout",
            expected=f"one of {', '.join(LAYOUTS)} for shape {tuple(shape)}",
            got=layout,
        ) from error


def explain_case(operator: OperatorBench, case: Case, variant: str, *, arch: str) -> Explanation:
    """What a case of the benchmarks would run on ``arch``; no memory of the case's size is taken.

    Raises:
        ForgeError: what the call itself would raise.
    """
    # Meta tensors have shapes, strides and storage offsets, which is all that the choice of a kernel depends on.
    inputs: tuple[torch.Tensor, ...] = (meta_tensor(case.shape, case.dtype, case.layout),)
    if operator.inputs is not one_random_tensor:
        inputs = operator.inputs(case, torch.device("meta"), torch.Generator())
    with settings.use_settings(arch=arch):
        explanation: Explanation = operator.explain(inputs, variant)
    return explanation


def explain_named(
    name: str,
    *,
    shape: str,
    dtype: str,
    layout: str = "contiguous",
    variant: str = "auto",
    arch: str,
    arguments: Mapping[str, str] | None = None,
) -> Explanation:
    """What a call of the operator of that name would run.

    Args:
        name: see the module's docstring.
        shape: the first input's sizes, for example ``"4096x4096"``.
        dtype: its dtype, for example ``"bfloat16"``.
        layout: how it lies in memory, one of ``forge_core.bench.inputs.LAYOUTS``.
        variant: ``"auto"`` or a variant's name.
        arch: for example ``"sm_90a"``, or a GPU such as ``"H100"``; see :class:`forge_core.device.Arch`.
        arguments: further arguments of an operator's call by name, as Python literals: ``{"dim": "-1"}``.

    Raises:
        ArgumentError: no operator has that name, or it takes no such argument.
        ForgeError: what the call itself would raise.
    """
    try:
        sizes, kind = parse_shape(shape), dtypes.parse(dtype)
    except ValueError as error:
        raise ArgumentError(
            op="inspect",
            argument="shape or dtype",
            expected="such as 4096x4096 and bfloat16",
            got=f"{shape} {dtype}",
            hint=str(error),
        ) from error
    benches = discover()
    if not arguments:
        for bench in benches:
            if name in bench.by_name:
                case = Case(name, sizes, kind, layout)
                return explain_case(bench.by_name[name], case, variant, arch=arch)
    operator = operators_of(benches).get(name)
    if operator is None:
        raise ArgumentError(
            op="inspect",
            argument="operator",
            expected=f"one of {', '.join(known_names(benches))}",
            got=repr(name),
            hint=did_you_mean(name.rpartition("::")[2], known_names(benches)),
        )
    values = {key: _literal(key, text) for key, text in (arguments or {}).items()}
    unknown = [key for key in values if key not in operator.schema.parameters]
    if unknown:
        raise ArgumentError(
            op="inspect",
            argument="arg",
            expected=f"arguments of {operator.schema.text}",
            got=", ".join(unknown),
        )
    if "variant" in operator.schema.parameters:
        values["variant"] = variant
    x = meta_tensor(sizes, kind, layout)
    try:
        operator.schema.bind((x,), values)
    except TypeError as error:  # as of a Python call whose arguments do not fit
        raise ArgumentError(
            op="inspect",
            argument="arg",
            expected=f"the arguments of {operator.schema.text}, each as --arg NAME=VALUE",
            got=", ".join(f"{key}={value}" for key, value in values.items() if key != "variant") or "none",
            hint=f"{error}.",
        ) from error
    return operator.explain(x, arch=arch, **values)


def _literal(name: str, text: str) -> Any:
    try:
        return dtypes.parse(text) if name == "dtype" else ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise ArgumentError(op="inspect", argument=name, expected="a Python literal", got=repr(text)) from error
