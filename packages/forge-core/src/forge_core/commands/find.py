"""Explaining the call that a command line names.

An operator is named as in a package's benchmarks (``transpose``, ``sum_rows``), where shape, dtype and layout are the
whole call, or as a public operator of a package (``reduce_sum``, ``forge_week1::sum``), with further arguments by name.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import click
import torch

from forge_core import dtypes
from forge_core.bench import Bench, Case
from forge_core.bench.inputs import random_tensor
from forge_core.bench.plan import discover
from forge_core.bench.schema import parse_shape
from forge_core.cli import ARCH, did_you_mean, with_options
from forge_core.errors import ArgumentError
from forge_core.op import Explanation, Operator

#: Errors of a call that does not match a signature, by Python or ``Schema.bind``; others are the program's own.
_SIGNATURE = re.compile(r"[\w.<>]+\(\) (missing|takes|got) ")


def _pairs(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"expected NAME=VALUE, got {text!r}", ctx=context, param=parameter)
        pairs[name] = value
    return pairs


#: The argument and the options that name a call, as :func:`explained` takes them.
call_options = with_options(
    click.argument("operator"),
    click.option("--shape", required=True, help="The first input's sizes, for example 4096x4096."),
    click.option("--dtype", required=True, help="Its dtype, for example bfloat16."),
    click.option("--layout", default="contiguous", help="contiguous (default), permuted, offset, sliced or stepped."),
    click.option("--arch", type=ARCH, default="sm_90a", help="The architecture, or a GPU such as H100."),
    click.option("--variant", default="auto", show_default=True, help="The kernel to look at."),
    click.option("--arg", "arguments", multiple=True, callback=_pairs, help="A further argument, NAME=VALUE."),
)


def _operators_of(benches: Sequence[Bench]) -> dict[str, Operator]:
    """The public operators of the packages, by exported name and by qualified name."""
    found: dict[str, Operator] = {}
    for bench in benches:
        module = importlib.import_module(bench.package)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, Operator):
                found.setdefault(name, value)
                found.setdefault(value.schema.qualified, value)
    return found


def explained(
    operator: str,
    *,
    shape: str,
    dtype: str,
    layout: str = "contiguous",
    variant: str = "auto",
    arch: str,
    arguments: Mapping[str, str] | None = None,
) -> Explanation:
    """What a call would run; the arguments are those of :func:`call_options`.

    Raises:
        click.UsageError: there is no such operator, shape, dtype, layout or variant, or it takes no such arguments.
        ForgeError: as the call itself.
    """
    benches = discover()
    benched = {} if arguments else {each.name: each for bench in benches for each in bench.operators}
    public = _operators_of(benches)
    if operator not in benched and operator not in public:
        known = [name for name in {**benched, **public} if "::" not in name]
        hint = did_you_mean(operator.rpartition("::")[2], known)
        raise click.UsageError(f"OPERATOR: expected one of {', '.join(known)}, got {operator!r}. {hint}".rstrip())
    try:
        sizes, kind = parse_shape(shape), dtypes.parse(dtype)
        x = random_tensor(sizes, kind, device=torch.device("meta"), generator=torch.Generator(), layout=layout)
    except ValueError as error:
        text = f"expected a shape, a dtype and a layout such as 4096x4096 and bfloat16, got {shape} {dtype} {layout}"
        raise click.UsageError(f"{text}: {error}") from error
    try:
        if operator in benched:
            try:
                return benched[operator].planned(Case(operator, sizes, kind, layout), variant, arch=arch)
            except TypeError as error:
                if isinstance(error, ArgumentError) or not _SIGNATURE.match(str(error)):
                    raise
                text = f"OPERATOR: expected its benchmark's inputs to be a call of it, got: {error}"
                way = "OperatorBench.inputs makes them, by default one tensor"
                raise click.UsageError(f"{text}; {way}.") from error
        schema = public[operator].schema
        values = {key: _value(key, text) for key, text in (arguments or {}).items()}
        values |= {"variant": variant} if "variant" in schema.parameters else {}
        try:
            schema.bind((x,), values)
        except TypeError as error:
            text = f"--arg: expected the arguments of {schema.text}, each as NAME=VALUE"
            raise click.UsageError(f"{text}: {error}.") from error
        return public[operator].explain(x, arch=arch, **values)
    except ArgumentError as error:
        raise click.UsageError(str(error)) from error


def _value(name: str, text: str) -> Any:
    try:
        return dtypes.parse(text) if name == "dtype" else ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise click.UsageError(f"--arg {name}: expected a Python literal, got {text!r}") from error
