"""The settings, and the only place that reads the FORGE_* environment variables.

Nothing is read at import.  :func:`current` reads the environment at each call, so that a variable set in a notebook
or by a test takes effect at the next call; :func:`use_settings` overrides fields for a block of code and for the
current context (thread or task) only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from forge_core.device import Arch
from forge_core.errors import SettingsError, UnsupportedError

__all__ = [
    "VARIABLES",
    "Settings",
    "Variable",
    "check_names",
    "current",
    "debug_requested",
    "requested_backend",
    "untouched",
    "use_settings",
]

log = logging.getLogger("forge_core")

PREFIX = "FORGE_"
BACKENDS = ("kernel", "ref")
TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off", ""})


@dataclass(frozen=True)
class Variable:
    """One environment variable: the field it sets, how its text is parsed, what that may be, and what it does."""

    field: str
    parse: Callable[[str], Any]
    takes: str
    help: str

    @property
    def name(self) -> str:
        """Of the environment variable, for example ``"FORGE_BACKEND"``."""
        return PREFIX + self.field.upper()


@dataclass(frozen=True)
class Settings:
    """What can be set from outside.  Each field's default is the behaviour with no variable set.

    Attributes:
        backend: ``"kernel"``, ``"ref"``, or None: kernels for CUDA tensors, the reference for CPU tensors.
        debug: compile with line information and device assertions, and synchronise after each launch.
        arch: the architecture to compile for where no GPU decides it, for example ``"sm_90a"``; also a GPU that
            :mod:`forge_core.device` knows, for example ``"H100"``.
        require_gpu: GPU tests fail instead of being skipped where there is no GPU.
        cache_dir: the folder of Forge's files; None is the user's cache folder by ``platformdirs``.
        cache: whether compiled kernels are kept on disk and looked up there.
        cache_max_bytes: when the kernels on disk take more, the least recently used ones are removed; 0 is no limit.
        bundles: folders of kernels that were compiled ahead of time, looked up after the cache.
        jit: whether a kernel that is in neither may be compiled; otherwise it is a MissingKernelError.
    """

    backend: str | None = None
    debug: bool = False
    arch: str | None = None
    require_gpu: bool = False
    cache_dir: Path | None = None
    cache: bool = True
    cache_max_bytes: int = 2 * 2**30
    bundles: tuple[Path, ...] = ()
    jit: bool = True

    def __post_init__(self) -> None:
        if self.backend is not None and self.backend not in BACKENDS:
            raise SettingsError(f"backend: expected one of {', '.join(BACKENDS)}, got {self.backend!r}.")

    @property
    def folder(self) -> Path:
        """The folder of Forge's files: ``cache_dir``, or the user's cache folder."""
        import platformdirs

        return self.cache_dir or Path(platformdirs.user_cache_dir("forge-cute"))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Reads the settings from a mapping of variables.

        Raises:
            SettingsError: a variable has a value it cannot have; the message names the variable.
        """
        values: dict[str, Any] = {}
        for variable in VARIABLES:
            text = environ.get(variable.name)
            if text is None or text == "":
                continue
            try:
                values[variable.field] = variable.parse(text)
            except (ValueError, UnsupportedError) as error:
                told = f"environment variable {variable.name}: expected {variable.takes}, got {text!r}."
                hint = f" {error}" if isinstance(error, UnsupportedError) else ""
                raise SettingsError(told + hint) from None
        return cls(**values)


def _parse_bool(text: str) -> bool:
    word = text.strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError(text)


def _parse_backend(text: str) -> str:
    word = text.strip().lower()
    if word not in BACKENDS:
        raise ValueError(text)
    return word


def _parse_bytes(text: str) -> int:
    word = text.strip().lower().removesuffix("b").removesuffix("i")
    scale = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}.get(word[-1:], 1)
    number = word[:-1].rstrip() if scale > 1 else word
    if not number.isdigit():
        raise ValueError(text)
    return int(number) * scale


def _parse_folder(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # no such user
        raise ValueError(text) from error


def _parse_folders(text: str) -> tuple[Path, ...]:
    return tuple(_parse_folder(part) for part in text.split(os.pathsep) if part)


#: Every variable that Forge reads, in one table; README shows it.
VARIABLES: tuple[Variable, ...] = (
    Variable(
        "backend",
        _parse_backend,
        "'kernel' or 'ref'",
        "the backend of every operator: kernels, or the PyTorch reference",
    ),
    Variable(
        "debug",
        _parse_bool,
        "0 or 1",
        "line information and device assertions in kernels; synchronise after each launch",
    ),
    Variable(
        "arch",
        Arch.parse,
        "an architecture such as 'sm_90a', or a GPU such as 'H100'",
        "the architecture to compile for where no GPU decides it",
    ),
    Variable("require_gpu", _parse_bool, "0 or 1", "GPU tests fail instead of being skipped where there is no GPU"),
    Variable("cache_dir", _parse_folder, "a folder", "the folder of Forge's files (default: the user's cache folder)"),
    Variable("cache", _parse_bool, "0 or 1", "whether compiled kernels are kept on disk"),
    Variable(
        "cache_max_bytes",
        _parse_bytes,
        "a number of bytes such as 500M or 2G; 0 for no limit",
        "above it the least recently used kernels on disk are removed",
    ),
    Variable("bundles", _parse_folders, "folders, separated as in PATH", "folders of kernels compiled ahead of time"),
    Variable("jit", _parse_bool, "0 or 1", "whether a kernel that is nowhere to be found may be compiled"),
)


_NO_OVERRIDES: Mapping[str, Any] = MappingProxyType({})
_overrides: ContextVar[Mapping[str, Any]] = ContextVar("forge_settings", default=_NO_OVERRIDES)


def current() -> Settings:
    """The settings in force: the environment, then the enclosing :func:`use_settings` blocks.

    Raises:
        SettingsError: a FORGE_* variable has a value it cannot have.
    """
    check_names()
    settings = Settings.from_environ(os.environ)
    changes = _overrides.get()
    return dataclasses.replace(settings, **changes) if changes else settings


@functools.cache
def check_names() -> None:
    """Warns of each environment variable whose name is nearly that of one that Forge reads; once a process."""
    import difflib  # takes a millisecond, and a first kernel that is in the cache ten

    known = {variable.name.removeprefix(PREFIX): variable.name for variable in VARIABLES}
    for name in sorted(set(os.environ) - set(known.values())):
        if name.upper().startswith(PREFIX):
            # Without the prefix, which all names share and which would make any two of them alike.
            near = difflib.get_close_matches(name.upper().removeprefix(PREFIX), known, n=1)
            if near:
                log.warning("environment variable %s is not read by Forge. Did you mean %s?", name, known[near[0]])


@contextlib.contextmanager
def use_settings(**changes: Any) -> Iterator[Settings]:
    """Overrides fields of :class:`Settings` for a block of code, in the current context only.

    Raises:
        SettingsError: an unknown field, or a value it cannot have.
    """
    known = {f.name for f in dataclasses.fields(Settings)}
    unknown = sorted(set(changes) - known)
    if unknown:
        raise SettingsError(f"use_settings: no field named {', '.join(unknown)}; fields: {', '.join(sorted(known))}.")
    Settings(**changes)  # raises before anything is changed
    token = _overrides.set({**_overrides.get(), **changes})
    try:
        yield current()
    finally:
        _overrides.reset(token)


# The two fields below are read at every eager call of every operator.  `os.environ.get` encodes the name and raises
# a KeyError inside, 1 us in all; on POSIX it keeps its data in a dict of bytes, where the same look-up takes 0.05 us.
_raw: dict[bytes, bytes] | None = getattr(os.environ, "_data", None) if os.name == "posix" else None


def untouched() -> bool:
    """Whether nobody set ``backend`` or ``debug``: neither a block around the call nor a variable, empty or not."""
    return (
        _overrides.get() is _NO_OVERRIDES
        and _raw is not None
        and b"FORGE_BACKEND" not in _raw
        and b"FORGE_DEBUG" not in _raw
    )


def requested_backend() -> str | None:
    """The ``backend`` field alone, as :func:`current` would give it, in a fraction of the time."""
    changes = _overrides.get()
    if "backend" in changes:
        backend: str | None = changes["backend"]
        return backend
    text = os.environ.get("FORGE_BACKEND") if _raw is None else _raw.get(b"FORGE_BACKEND")
    return current().backend if text else None


def debug_requested() -> bool:
    """The ``debug`` field alone, as :func:`current` would give it, in a fraction of the time."""
    changes = _overrides.get()
    if "debug" in changes:
        return bool(changes["debug"])
    text = os.environ.get("FORGE_DEBUG") if _raw is None else _raw.get(b"FORGE_DEBUG")
    return current().debug if text else False
