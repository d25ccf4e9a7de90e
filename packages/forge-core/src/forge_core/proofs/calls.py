"""A call as text, and the launch that an operator plans for it without a GPU.

    float32[4096,1000] -1 None 'auto'                       a contiguous tensor, dim, dtype, variant
    bfloat16[64,100|128,1]+2 0 None 'split' -> ...          strides, address modulo 16, and an ``out``

The text holds all that a launch depends on: dtypes, sizes, strides, alignment, every other argument, and the default
dtype if it is not float32.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from forge_core.device import Device
from forge_core.errors import ForgeError
from forge_core.op import Operator
from forge_core.op.plan import Plan
from forge_core.op.table import ALIGNMENT_MASK
from forge_core.proofs.declare import ProofError, digest_of

_TENSOR = re.compile(r"(\w+)\[([\d,]*)(?:\|([\d,]*))?\](?:\+(\d+))?")
_BRACKETS = re.compile(r"\[([^]]*)\]")
_DEFAULT = "default="


def describe(named: dict[str, Any], out: torch.Tensor | None) -> str:
    """A call as text, from all arguments as the operator's schema binds them, and its ``out`` if any."""
    default = torch.get_default_dtype()
    words = [f"{_DEFAULT}{default}"] if default is not torch.float32 else []
    words += [_word(value) for value in named.values()]
    return " ".join([*words, *(["->", _word(out)] if out is not None else [])])


def _word(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        plain = tuple(value) if isinstance(value, tuple) else value
        return repr(plain).replace(" ", "")
    strides = value.stride()
    laid_out = f"|{','.join(map(str, strides))}" if strides != _contiguous(value.shape) else ""
    offset = value.data_ptr() & ALIGNMENT_MASK
    sizes = ",".join(map(str, value.shape))
    return f"{str(value.dtype).removeprefix('torch.')}[{sizes}{laid_out}]{f'+{offset}' if offset else ''}"


def _contiguous(sizes: Sequence[int]) -> tuple[int, ...]:
    return torch.empty(sizes, device="meta").stride()


def _value(word: str) -> Any:
    match = _TENSOR.fullmatch(word)
    if match is not None:
        dtype = getattr(torch, match[1])
        sizes, strides = ([int(n) for n in (numbers or "").split(",") if n] for numbers in match.group(2, 3))
        strides = strides if match[3] is not None else list(_contiguous(sizes))
        offset = int(match[4] or 0) // dtype.itemsize
        reach = 1 + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True)) if math.prod(sizes) else 0
        # A meta tensor's address is its offset in bytes, which gives it the alignment of the tensor on the GPU.
        return torch.empty(offset + reach, dtype=dtype, device="meta").as_strided(sizes, strides, offset)
    if word.startswith("torch."):
        return getattr(torch, word.removeprefix("torch."))
    return ast.literal_eval(word)


def grouped(calls: Iterable[str]) -> dict[str, list[str]]:
    """Calls by what they have in common: the text with ``[*]`` for what stands in brackets -> that, for each call."""
    found: dict[str, list[str]] = {}
    for call in calls:
        found.setdefault(_BRACKETS.sub("[*]", call), []).append(" ".join(_BRACKETS.findall(call)))
    return found


def ungrouped(groups: dict[str, list[str]]) -> list[str]:
    """The calls of :func:`grouped`, sorted."""
    calls = []
    for call, each in groups.items():
        for insides in each:
            whole = call
            for inside in insides.split(" "):
                whole = whole.replace("[*]", f"[{inside}]", 1)
            calls.append(whole)
    return sorted(calls)


def plan(operator: Operator, call: str, device: Device) -> Plan:
    """The launch that an operator plans on a device for a call as text; raises ProofError if it refuses the call."""
    words = call.split(" ")
    default = torch.float32
    if words[0].startswith(_DEFAULT):
        default = getattr(torch, words.pop(0).removeprefix(f"{_DEFAULT}torch."))
    out = None
    if "->" in words:
        *words, _, word = words
        out = _value(word)
    parameters = operator.schema.parameters
    if len(words) != len(parameters):
        raise ProofError(f"{operator.schema.qualified}: {call}: expected {len(parameters)} arguments")
    named = dict(zip(parameters, map(_value, words), strict=True))
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        return operator.table.planned(device, out, named)
    except ForgeError as error:
        raise ProofError(f"{operator.schema.qualified}: {call}: {error}") from error
    finally:
        torch.set_default_dtype(before)


def values(config: Any) -> Any:
    """The values of a configuration as JSON, without the names of its classes and fields.

    A field with ``metadata={"added": True}`` counts only if it has not its default, so that adding it leaves valid what
    is proven of other configurations.
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        fields = [(field, getattr(config, field.name)) for field in dataclasses.fields(config)]
        return [values(own) for field, own in fields if not field.metadata.get("added") or own != field.default]
    if isinstance(config, enum.Enum):
        return config.name
    if isinstance(config, (tuple, list)):
        return [values(item) for item in config]
    return config if config is None or isinstance(config, (bool, int, str)) else str(config)


def run_digest(launch: Plan) -> str:
    """The digest of a launch: variant, configuration, integers, workspace."""
    return digest_of(
        [launch.variant, values(launch.config), values(launch.arguments), launch.workspace, launch.numbered]
    )[:16]
