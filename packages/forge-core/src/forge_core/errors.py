"""The exceptions that Forge raises on purpose.

``except ForgeError`` catches all of them and nothing else; each also derives from the exception that Python or PyTorch
raises in the same case.  A message says what was expected, what was given and how to proceed.
"""

from __future__ import annotations


class ForgeError(Exception):
    """The base of all errors that Forge raises on purpose."""


class ArgumentError(ForgeError, ValueError):
    """An argument is not what the operator takes; nothing was computed and nothing was written.

    Args:
        op: the operator as the caller wrote it, for example ``"transpose"``.
        argument: the argument's name, for example ``"x"``.
        expected: what the operator takes, as a noun phrase.
        got: what was passed.
        hint: how to fix the call, as a full sentence; may be empty.
    """

    def __init__(self, op: str, argument: str, expected: str, got: str, hint: str = "") -> None:
        self.op = op
        self.argument = argument
        self.expected = expected
        self.got = got
        self.hint = hint
        super().__init__(op, argument, expected, got, hint)

    def __str__(self) -> str:
        text = f"{self.op}: argument '{self.argument}': expected {self.expected}, got {self.got}."
        return f"{text} {self.hint}" if self.hint else text


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument is of another Python type than the operator takes; PyTorch raises a TypeError."""


class ShapeError(ArgumentError, RuntimeError):
    """An argument's rank or sizes are not what the operator takes; PyTorch raises a RuntimeError."""


class DimError(ArgumentError, IndexError):
    """A dimension is out of range, or has no elements where some are needed; PyTorch raises an IndexError."""


class RepeatedDimError(ArgumentError, RuntimeError):
    """A dimension was given twice; PyTorch raises a RuntimeError."""


class DTypeError(ArgumentError, RuntimeError):
    """An argument's dtype is not what the operator takes; PyTorch raises a RuntimeError."""


class LayoutError(ArgumentError, RuntimeError):
    """An argument's layout, strides or memory are not what the operator takes; PyTorch raises a RuntimeError."""


class DeviceError(ArgumentError, RuntimeError):
    """An argument is on a device that the operator or the backend does not take; PyTorch raises a RuntimeError."""


class GradientError(ArgumentError, RuntimeError):
    """An argument requires a gradient that the operator does not have; PyTorch raises a RuntimeError."""


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
        key: the digest of the kernel's key; may be empty.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        self.key = key
        super().__init__(f"{message} [kernel {key}]" if key else message)


class MissingKernelError(CompileError):
    """The kernel is neither in the cache nor in a bundle, or it cannot be loaded, and compiling is switched off.

    Args:
        message: what is missing.
        key: the digest of the kernel's key.
        command: the command that builds it; may be empty.
    """

    def __init__(self, message: str, *, key: str = "", command: str = "") -> None:
        self.command = command
        super().__init__(f"{message} Build it with: {command}" if command else message, key=key)


class CacheError(ForgeError, RuntimeError):
    """A folder of compiled kernels cannot be used: another user could write to it, or it is not a cache or bundle."""


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
