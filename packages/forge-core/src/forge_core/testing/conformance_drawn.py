"""Random problems: a call of each configuration that they select gives what the reference gives.

Declared calls select the configurations that someone thought of.  Here sizes and layouts are drawn, as for a sweep of a
benchmark, and of each configuration that an operator selects the smallest call in each layout is made, and one of
tensors whose layouts differ.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from forge_core.device import query
from forge_core.errors import UnsupportedError
from forge_core.testing.inputs import LAYOUTS, in_layout, log_uniform, random_bits, random_layout, random_shape
from forge_core.testing.subject import Case, Subject

#: Calls that are planned, and the most bytes of a tensor.
DRAWN, MOST_BYTES = 1500, 2**26
_LEAST_BYTES = 1024


def check_drawn(subject: Subject, device: torch.device) -> None:
    """Checks the smallest call of each configuration and layout, in the first dtype, on problems of the cases' ranks.

    Raises:
        AssertionError: a result is wrong; with the call and its configuration.
    """
    choose, arch = random.Random(subject.name), query(device).arch if device.type == "cuda" else "sm_90a"  # noqa: S311
    smallest: dict[tuple[Any, str], tuple[Case, list[torch.Tensor]]] = {}
    for case, tensors, layout in sorted((_draw(subject, choose) for _ in range(DRAWN)), key=_elements):
        try:
            told = subject.operator.explain(*tensors, *case.args, arch=arch, **case.kwargs)
        except UnsupportedError:  # of rows that it is not for
            continue
        smallest.setdefault((told.config, layout), (case, tensors))
    if not smallest:
        raise AssertionError(f"{subject.name}: it refuses all of {DRAWN} random calls")
    for seed, ((config, layout), (case, laid)) in enumerate(smallest.items()):
        made = subject.make(case, subject.dtypes[0], device, seed)
        tensors = [_relaid(values, like, seed) for values, like in zip(made, laid, strict=True)]
        subject.right(case, f"{layout} {config}")(subject.call(case)(*tensors), tuple(tensors))


def _draw(subject: Subject, choose: random.Random) -> tuple[Case, list[torch.Tensor], str]:
    """A declared case of another shape, and tensors on meta of random layouts, most often of one; and its name."""
    case, dtype = choose.choice(subject.cases), subject.dtypes[0]
    elements = log_uniform(choose, _LEAST_BYTES, MOST_BYTES) // dtype.itemsize
    shape = random_shape(choose, elements, len(case.shape))
    # Small tensors whose sizes say which of the shape's they are.
    small = replace(case, shape=tuple(range(2, 2 + len(shape))))
    made = subject.make(small, dtype, torch.device("cpu"), 0)
    layouts = [random_layout(choose)] * len(made)
    if choose.random() < 0.3:
        layouts = [random_layout(choose) for _ in made]
    tensors = []
    for each, layout in zip(made, layouts, strict=True):
        own = tuple(shape[size - 2] if size > 1 else 1 for size in each.shape)
        tensors.append(in_layout(_on_meta(each.dtype), own, layout if own == shape else LAYOUTS[0]))
    return replace(case, shape=shape), tensors, layouts[0] if len({*layouts}) == 1 else "mixed"


def _on_meta(dtype: torch.dtype) -> Any:
    def fresh(shape: Sequence[int]) -> torch.Tensor:
        return torch.empty(tuple(shape), dtype=dtype, device="meta")

    return fresh


def _elements(call: tuple[Case, list[torch.Tensor], str]) -> int:
    return max(tensor.numel() for tensor in call[1])


def _relaid(values: torch.Tensor, like: torch.Tensor, seed: int) -> torch.Tensor:
    """The values in the layout of another tensor, with random bits in the gaps."""
    span = like.storage_offset() + 1 + sum((n - 1) * step for n, step in zip(like.shape, like.stride(), strict=True))
    flat = random_bits((span,), values.dtype, values.device, seed=seed)  # type: ignore[arg-type]  # no SymInt
    return flat.as_strided(like.shape, like.stride(), like.storage_offset()).copy_(values)
