from __future__ import annotations

import re
import sys

import pytest
import torch

from forge_core import dtypes

# Every dtype that torch has under a name of its own; torch.half and the like are other names of these.
EVERY = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
needs_dsl = pytest.mark.skipif(sys.platform != "linux", reason="the CuTe DSL needs Linux")


def test_movable_is_every_dtype_of_whole_bytes():
    # Integers of 1 to 7 bits, packed fp4, raw bits and quantised types: torch gives them an itemsize, but an element
    # of theirs is no whole number of bytes, or means nothing without its scale.
    others = {d for d in EVERY if re.fullmatch(r"torch\.(u?int[1-7]|float4_.*|bits.*|q.*)", str(d))}
    assert EVERY - others == dtypes.MOVABLE
    assert {dtype.itemsize for dtype in dtypes.MOVABLE} == {1, 2, 4, 8, 16}


@pytest.mark.parametrize("dtype", sorted(dtypes.MOVABLE, key=str))
def test_every_name_is_parsed_back(dtype):
    assert dtypes.parse(str(dtype)) is dtype
    assert dtypes.parse(str(dtype).removeprefix("torch.")) is dtype
    assert dtypes.parse(dtypes.short_name(dtype)) is dtype


@pytest.mark.parametrize("name, dtype", [("fp16", torch.float16), ("fp32", torch.float32), ("fp64", torch.float64)])
def test_the_names_of_messages_and_pages_are_parsed(name, dtype):
    assert dtypes.parse(name) is dtype
    with pytest.raises(ValueError, match="unknown dtype 'fp12'; known: bfloat16, bool, "):
        dtypes.parse("fp12")


def test_short_names_are_unique():
    assert len({dtypes.short_name(dtype) for dtype in dtypes.MOVABLE}) == len(dtypes.MOVABLE)
    assert dtypes.short_name(torch.bfloat16) == "bf16"
    assert dtypes.short_name(torch.int8) == "int8"


@needs_dsl
@pytest.mark.parametrize("dtype", sorted(dtypes.CUTE_NAMES, key=str))
def test_the_dsl_has_every_named_type_in_the_right_width(dtype):
    # The DSL's boolean is one bit of arithmetic; in memory it takes the byte that torch gives it.
    width = 8 if dtype is torch.bool else dtypes.cute_dtype(dtype).width
    assert width == 8 * dtype.itemsize
