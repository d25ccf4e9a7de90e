"""Every error that Forge raises on purpose.

    ForgeError
    |- ArgumentError(ValueError)          a call's argument is not what the operator takes
    |  |- ArgumentTypeError(TypeError)    its Python type
    |  |- ShapeError                      its rank or sizes
    |  |- DimError(IndexError)            a dimension that the tensor does not have, or that is empty
    |  |- RepeatedDimError(RuntimeError)  a dimension given twice
    |  |- DTypeError(RuntimeError)        its dtype
    |  |- LayoutError                     its layout, strides or memory (sparse, quantised, overlapping)
    |  `- DeviceError                     its device
    |- SettingsError(ValueError)          a FORGE_* variable, or a field of Settings, has a value it cannot have
    |- UnsupportedError(RuntimeError)     the request is sound, but not on this device or installation
    |- CompileError(RuntimeError)         a kernel could not be compiled
    |  `- MissingKernelError              it is not there, and compiling is switched off
    |- CacheError(RuntimeError)           a folder of compiled kernels is not safe to load native code from
    `- BenchmarkError(RuntimeError)       a benchmark could not be run, or its result cannot be believed

An `except ForgeError` therefore catches what Forge found wrong and nothing else; the second base keeps code that
expects Python's own exceptions working.  A message always says what was expected, what came, and the way out.
"""

from __future__ import annotations

import functools

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "BenchmarkError",
    "CacheError",
    "CompileError",
    "DTypeError",
    "DeviceError",
    "DimError",
    "ForgeError",
    "LayoutError",
    "MissingKernelError",
    "RepeatedDimError",
    "SettingsError",
    "ShapeError",
    "UnsupportedError",
]


class ForgeError(Exception):
    """The base of all errors that Forge raises on purpose."""


class ArgumentError(ForgeError, ValueError):
    """A call's argument is not what the operator takes; nothing was computed and nothing was written.

    Args:
        op: the operator as the caller wrote it, for example ``"transpose"``.
        argument: the argument's name, for example ``"x"``.
        expected: what the operator takes, as a noun phrase.
        got: what came.
        hint: the way out, as a full sentence; may be empty.
    """

    def __init__(self, *, op: str, argument: str, expected: str, got: str, hint: str = "") -> None:
        self.op = op
        self.argument = argument
        self.expected = expected
        self.got = got
        self.hint = hint
        super().__init__(op, argument, expected, got, hint)

    def __str__(self) -> str:
        text = f"{self.op}: argument '{self.argument}': expected {self.expected}, got {self.got}."
        return f"{text} {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive the default pickling, and errors cross process borders in tests.
        names = ("op", "argument", "expected", "got", "hint")
        return functools.partial(type(self), **{name: getattr(self, name) for name in names}), ()


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument is of another Python type than the operator takes; PyTorch raises a TypeError."""


class ShapeError(ArgumentError):
    """An argument's rank or sizes are not what the operator takes."""


class DimError(ArgumentError, IndexError):
    """A dimension is out of range, or has no elements where some are needed; PyTorch raises an IndexError."""


class RepeatedDimError(ArgumentError, RuntimeError):
    """A dimension was given twice; PyTorch raises a RuntimeError."""


class DTypeError(ArgumentError, RuntimeError):
    """An argument's dtype is not what the operator takes; PyTorch raises a RuntimeError."""


class LayoutError(ArgumentError):
    """An argument's layout, strides or memory are not what the operator takes."""


class DeviceError(ArgumentError):
    """An argument lives on a device that the operator, or the requested backend, does not take."""


class SettingsError(ForgeError, ValueError):
    """A FORGE_* variable, or a field of :class:`forge_core.settings.Settings`, has a value it cannot have."""


class UnsupportedError(ForgeError, RuntimeError):
    """The request is sound, but this device or this installation cannot serve it.

    Args:
        message: what was asked and what was found.
        requirement: what would be needed, for example ``"sm_90 or newer"``; may be empty.
    """

    def __init__(self, message: str, *, requirement: str = "") -> None:
        self.requirement = requirement
        super().__init__(message)


class CompileError(ForgeError, RuntimeError):
    """A kernel could not be compiled.

    Args:
        message: what went wrong.
        key: the description of the kernel's cache key; may be empty.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        self.key = key
        super().__init__(f"{message} [kernel {key}]" if key else message)


class MissingKernelError(CompileError):
    """The kernel is not in the cache, and compiling is switched off.

    Args:
        message: what is missing.
        key: the description of the kernel's cache key.
        command: the command that builds it.
    """

    def __init__(self, message: str, *, key: str = "", command: str = "") -> None:
        self.command = command
        super().__init__(f"{message} Build it with: {command}" if command else message, key=key)


class CacheError(ForgeError, RuntimeError):
    """A folder of compiled kernels cannot be used: another user could write to it, or it is not what it should be.

    Nothing was loaded from it and nothing was written to it.
    """


class BenchmarkError(ForgeError, RuntimeError):
    """A benchmark could not be run, or its result cannot be believed.

    Args:
        message: what went wrong.
        suite: the suite's name; may be empty.
        case: the case's name; may be empty.
        peer: the contender's name; may be empty.
    """

    def __init__(self, message: str, *, suite: str = "", case: str = "", peer: str = "") -> None:
        self.suite = suite
        self.case = case
        self.peer = peer
        where = ", ".join(f"{k} {v}" for k, v in (("suite", suite), ("case", case), ("peer", peer)) if v)
        super().__init__(f"{message} ({where})" if where else message)
