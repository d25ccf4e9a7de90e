from __future__ import annotations

import pytest
import torch

from forge_core import dtypes


def test_movable_is_every_dtype_of_whole_bytes():
    assert set(dtypes.CUTE_NAMES) <= dtypes.MOVABLE
    assert {torch.complex32, torch.complex64, torch.complex128, torch.float8_e8m0fnu} <= dtypes.MOVABLE
    assert {dtype.itemsize for dtype in dtypes.MOVABLE} == {1, 2, 4, 8, 16}
    # torch gives them an itemsize, but an element is no whole number of bytes, or means nothing without its scale.
    for name in ("int4", "uint7", "float4_e2m1fn_x2", "bits8", "bits1x8", "qint32", "quint4x2"):
        assert getattr(torch, name, None) not in dtypes.MOVABLE
    # Of a newer torch: no dtype needs a line of its own.
    assert not dtypes._NOT_MOVABLE.fullmatch("bcomplex32")


@pytest.mark.parametrize("dtype", sorted(dtypes.MOVABLE, key=str))
def test_every_name_is_parsed_back(dtype):
    assert dtypes.parse(str(dtype)) is dtype
    assert dtypes.parse(str(dtype).removeprefix("torch.")) is dtype
    assert dtypes.parse(dtypes.short_name(dtype)) is dtype


@pytest.mark.parametrize("name, dtype", [("fp16", torch.float16), ("fp32", torch.float32), ("fp64", torch.float64)])
def test_the_names_of_messages_and_pages_are_parsed(name, dtype):
    assert dtypes.parse(name) is dtype
    with pytest.raises(ValueError, match=r"unknown dtype 'fp12'; known: .*bfloat16, bool, "):
        dtypes.parse("fp12")


def test_short_names_are_unique():
    assert len({dtypes.short_name(dtype) for dtype in dtypes.MOVABLE}) == len(dtypes.MOVABLE)
    assert dtypes.short_name(torch.bfloat16) == "bf16"
    assert dtypes.short_name(torch.int8) == "int8"


@pytest.mark.usefixtures("dsl")
@pytest.mark.parametrize("dtype", sorted(dtypes.CUTE_NAMES, key=str))
def test_the_dsl_has_every_named_type_in_the_right_width(dtype):
    # The DSL's boolean is one bit of arithmetic; in memory it takes the byte that torch gives it.
    width = 8 if dtype is torch.bool else dtypes.cute_dtype(dtype).width
    assert width == 8 * dtype.itemsize
