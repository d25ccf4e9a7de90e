from __future__ import annotations

import inspect
import pickle

import pytest

from forge_core import errors

ARGUMENT = {"op": "transpose", "argument": "x", "expected": "2 or more dimensions", "got": "1 dimension"}


def test_the_hierarchy():
    drawn = {
        errors.ArgumentError: (errors.ForgeError, ValueError),
        errors.ArgumentTypeError: (errors.ArgumentError, TypeError),
        errors.ShapeError: (errors.ArgumentError, RuntimeError),
        errors.DTypeError: (errors.ArgumentError, RuntimeError),
        errors.DimError: (errors.ArgumentError, IndexError),
        errors.RepeatedDimError: (errors.ArgumentError, RuntimeError),
        errors.LayoutError: (errors.ArgumentError, RuntimeError),
        errors.DeviceError: (errors.ArgumentError, RuntimeError),
        errors.GradientError: (errors.ArgumentError, RuntimeError),
        errors.SettingsError: (errors.ForgeError, ValueError),
        errors.UnsupportedError: (errors.ForgeError, RuntimeError),
        errors.CompileError: (errors.ForgeError, RuntimeError),
        errors.MissingKernelError: (errors.CompileError,),
        errors.CacheError: (errors.ForgeError, RuntimeError),
        errors.BenchmarkError: (errors.ForgeError, RuntimeError),
    }
    assert {kind: kind.__bases__ for kind in drawn} == drawn
    defined = {k for _, k in inspect.getmembers(errors, inspect.isclass) if issubclass(k, Exception)}
    assert defined == {errors.ForgeError, *drawn}


def test_a_message_says_expected_got_and_the_way_out():
    error = errors.ShapeError(**ARGUMENT, hint="Add a dimension with x[None].")
    assert str(error) == (
        "transpose: argument 'x': expected 2 or more dimensions, got 1 dimension. Add a dimension with x[None]."
    )
    error = errors.ShapeError(**ARGUMENT)
    assert str(error) == "transpose: argument 'x': expected 2 or more dimensions, got 1 dimension."


@pytest.mark.parametrize("kind", [errors.ArgumentError, *errors.ArgumentError.__subclasses__()])
def test_an_argument_error_survives_pickling(kind):
    error = kind(**ARGUMENT, hint="Do that.")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # its own bytes
    assert type(again) is kind
    assert str(again) == str(error)
    assert (again.op, again.argument, again.expected, again.got, again.hint) == (*ARGUMENT.values(), "Do that.")


def test_what_was_needed_can_be_read_from_an_unsupported_error():
    assert errors.UnsupportedError("no.", requirement="sm_90 or newer").requirement == "sm_90 or newer"


def test_a_missing_kernel_names_the_command_that_builds_it():
    error = errors.MissingKernelError("tiled is not in the cache.", key="abc", command="forge-cute build tiled")
    assert str(error) == "tiled is not in the cache. Build it with: forge-cute build tiled [kernel abc]"
    assert (error.key, error.command) == ("abc", "forge-cute build tiled")
    assert str(errors.CompileError("it failed.")) == "it failed."


def test_a_benchmark_error_knows_where_it_happened():
    error = errors.BenchmarkError("wrong result", suite="transpose", case="8192x8192 f32", peer="eager")
    assert (error.suite, error.case, error.peer) == ("transpose", "8192x8192 f32", "eager")
    for part in ("wrong result", "transpose", "8192x8192 f32", "eager"):
        assert part in str(error)
