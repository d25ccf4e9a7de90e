"""Ints and dtypes as PyTorch lets them be written, and as a launch's key and a schema have them.

    written                                                     plain
    numpy.int64(1), torch.tensor(1), anything with __index__    1
    float, int, bool (Python's types)                           torch.float64, torch.int64, torch.bool

A number that is not plain must not become part of a key: a tensor there stands for its layout, not for its value.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

__all__ = ["all_plain", "is_int", "plain_dtype", "plain_int"]

_PLAIN = frozenset({int, bool, str, type(None), torch.dtype, torch.SymInt})
_INTS = frozenset({int})


def all_plain(values: tuple[Any, ...]) -> bool:
    """Whether arguments that are no tensors are plain, by their exact types."""
    for value in values:
        kind = type(value)
        if kind not in _PLAIN and not (kind in (tuple, list) and _INTS.issuperset(map(type, value))):
            return False
    return True


def is_int(value: object) -> bool:
    """Whether it is an integer, a symbolic one of a traced graph among them; True is none."""
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def plain_int(value: Any) -> Any:
    """The int that an integer of another kind stands for, as PyTorch takes it; anything else as it is."""
    if isinstance(value, (bool, torch.SymInt)) or not hasattr(value, "__index__"):
        return value
    if isinstance(value, torch.Tensor) and (value.dim() or value.dtype is torch.bool):
        return value
    try:
        return operator.index(value)
    except TypeError:  # a number with a fraction: a tensor of one has the method all the same
        return value


def plain_dtype(value: Any) -> Any:
    """The dtype that a type of Python's stands for; anything else as it is."""
    if value is float:
        return torch.float64
    if value is int:
        return torch.int64
    return torch.bool if value is bool else value
