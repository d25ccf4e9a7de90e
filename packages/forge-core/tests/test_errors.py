from __future__ import annotations

import inspect
import pickle

import pytest

from forge_core import errors
from forge_core.errors import (
    ArgumentError,
    ArgumentTypeError,
    BenchmarkError,
    CacheError,
    CompileError,
    DeviceError,
    DimError,
    DTypeError,
    ForgeError,
    GradientError,
    LayoutError,
    MissingKernelError,
    RepeatedDimError,
    SettingsError,
    ShapeError,
    UnsupportedError,
)

ARGUMENT = {"op": "transpose", "argument": "x", "expected": "2 or more dimensions", "got": "1 dimension"}


def test_the_hierarchy():
    drawn = {
        ArgumentError: (ForgeError, ValueError),
        ArgumentTypeError: (ArgumentError, TypeError),
        ShapeError: (ArgumentError, RuntimeError),
        DTypeError: (ArgumentError, RuntimeError),
        DimError: (ArgumentError, IndexError),
        RepeatedDimError: (ArgumentError, RuntimeError),
        LayoutError: (ArgumentError, RuntimeError),
        DeviceError: (ArgumentError, RuntimeError),
        GradientError: (ArgumentError, RuntimeError),
        SettingsError: (ForgeError, ValueError),
        UnsupportedError: (ForgeError, RuntimeError),
        CompileError: (ForgeError, RuntimeError),
        MissingKernelError: (CompileError,),
        CacheError: (ForgeError, RuntimeError),
        BenchmarkError: (ForgeError, RuntimeError),
    }
    assert {kind: kind.__bases__ for kind in drawn} == drawn
    defined = {k for _, k in inspect.getmembers(errors, inspect.isclass) if issubclass(k, Exception)}
    assert defined == {ForgeError, *drawn}


def test_a_message_says_expected_got_and_the_way_out():
    error = ShapeError(**ARGUMENT, hint="Add a dimension with x[None].")
    assert str(error) == (
        "transpose: argument 'x': expected 2 or more dimensions, got 1 dimension. Add a dimension with x[None]."
    )
    assert str(ShapeError(**ARGUMENT)) == "transpose: argument 'x': expected 2 or more dimensions, got 1 dimension."


@pytest.mark.parametrize("kind", [ArgumentError, ArgumentTypeError, ShapeError, DTypeError, LayoutError, DeviceError])
def test_an_argument_error_survives_pickling(kind):
    error = kind(**ARGUMENT, hint="Do that.")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # its own bytes
    assert type(again) is kind
    assert str(again) == str(error)
    assert (again.op, again.argument, again.expected, again.got, again.hint) == (*ARGUMENT.values(), "Do that.")


def test_what_was_needed_can_be_read_from_an_unsupported_error():
    assert UnsupportedError("no.", requirement="sm_90 or newer").requirement == "sm_90 or newer"


def test_a_missing_kernel_names_the_command_that_builds_it():
    error = MissingKernelError("tiled is not in the cache.", key="abc", command="forge-cute build tiled")
    assert str(error) == "tiled is not in the cache. Build it with: forge-cute build tiled [kernel abc]"
    assert (error.key, error.command) == ("abc", "forge-cute build tiled")
    assert str(CompileError("it failed.")) == "it failed."


def test_a_benchmark_error_knows_where_it_happened():
    error = BenchmarkError("wrong result", suite="transpose", case="8192x8192 f32", peer="eager")
    assert (error.suite, error.case, error.peer) == ("transpose", "8192x8192 f32", "eager")
    for part in ("wrong result", "transpose", "8192x8192 f32", "eager"):
        assert part in str(error)
