"""The settings: FORGE_* environment variables, which only this module reads.

Nothing is read at import.  :func:`current` reads the environment at each call, so that a variable set in a notebook
or by a test takes effect; :func:`use_settings` overrides fields in a block of code, for the current context (thread or
task) only.
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

from forge_core.device import Arch, archs_here
from forge_core.errors import SettingsError, UnsupportedError

log = logging.getLogger("forge_core")

PREFIX = "FORGE_"
BACKENDS = ("kernel", "ref")
_BOOLS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)


@dataclass(frozen=True)
class Variable:
    """An environment variable."""

    field: str  #: of Settings
    parse: Callable[[str], Any]
    takes: str  #: the values it accepts, in words
    help: str

    @property
    def name(self) -> str:
        """For example ``"FORGE_BACKEND"``."""
        return PREFIX + self.field.upper()


#: What :func:`parse_bytes` accepts, in words.
BYTES = "a number of bytes such as 500M or 2G; 0 for no limit"
_ARCHES = "an architecture such as 'sm_90a', or a GPU such as 'H100'"


def _word(text: str) -> str:
    return text.strip().lower()


_SWITCH = (lambda text: _BOOLS[_word(text)]), "0 or 1"


def parse_bytes(text: str) -> int:
    """Reads a number of bytes, with an optional unit K, M, G or T of powers of 1024; raises ValueError."""
    word = _word(text).removesuffix("b").removesuffix("i")
    scale = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}.get(word[-1:], 1)
    number = word[:-1].rstrip() if scale > 1 else word
    if not number.isdecimal():
        raise ValueError(text)
    return int(number) * scale


def _folder(text: str) -> Path:
    return Path(text).expanduser()


def _folders(text: str) -> tuple[Path, ...]:
    return tuple(_folder(part) for part in text.split(os.pathsep) if part)


@dataclass(frozen=True)
class Settings:
    """The settings; each field is set by a variable, ``backend`` by FORGE_BACKEND, and defaults to its absence.

    ``backend`` None means kernels for CUDA tensors and the reference for CPU tensors.
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


#: Every variable that Forge reads.
VARIABLES = (
    Variable("backend", _word, "'kernel' or 'ref'", "the backend of every operator: kernels, or the PyTorch reference"),
    Variable("debug", *_SWITCH, "line information and device assertions in kernels; synchronise after each launch"),
    Variable("arch", Arch.parse, _ARCHES, "the architecture to compile for where no GPU decides it"),
    Variable("require_gpu", *_SWITCH, "GPU tests fail instead of being skipped where there is no GPU"),
    Variable("cache_dir", _folder, "a folder", "the folder of Forge's files (default: the user's cache folder)"),
    Variable("cache", *_SWITCH, "whether compiled kernels are kept on disk"),
    Variable("cache_max_bytes", parse_bytes, BYTES, "above it the least recently used kernels on disk are removed"),
    Variable("bundles", _folders, "folders, separated as in PATH", "folders of kernels compiled ahead of time"),
    Variable("jit", *_SWITCH, "whether a kernel that is nowhere to be found may be compiled"),
)

_NO_OVERRIDES: Mapping[str, Any] = MappingProxyType({})
_overrides: ContextVar[Mapping[str, Any]] = ContextVar("forge_settings", default=_NO_OVERRIDES)


def current() -> Settings:
    """The current settings: the environment, overridden by the enclosing :func:`use_settings` blocks.

    Raises:
        SettingsError: a FORGE_* variable has an invalid value.
    """
    check_names()
    settings = Settings()
    for variable in VARIABLES:
        if text := os.environ.get(variable.name):
            try:
                settings = dataclasses.replace(settings, **{variable.field: variable.parse(text)})
            except (ValueError, LookupError, RuntimeError) as error:  # RuntimeError: a home folder of nobody
                told = f"environment variable {variable.name}: expected {variable.takes}, got {text!r}."
                hint = f" {error}" if isinstance(error, UnsupportedError) else ""
                raise SettingsError(told + hint) from None
    changes = _overrides.get()
    return dataclasses.replace(settings, **changes) if changes else settings


def target_archs() -> tuple[str, ...]:
    """The architectures to compile for: FORGE_ARCH, or those of the GPUs that torch can use."""
    arch = current().arch
    return archs_here() if arch is None else (arch,)


@functools.cache
def check_names() -> None:
    """Warns once a process of environment variables that look like misspelt ones of Forge."""
    import difflib  # takes a millisecond, of the ten that a first kernel in the cache takes

    known = {variable.name.removeprefix(PREFIX): variable.name for variable in VARIABLES}
    for name in sorted(set(os.environ) - set(known.values())):
        if name.upper().startswith(PREFIX):
            # Without the prefix, which makes any two names similar.
            near = difflib.get_close_matches(name.upper().removeprefix(PREFIX), known, n=1)
            if near:
                log.warning("environment variable %s is not read by Forge. Did you mean %s?", name, known[near[0]])


@contextlib.contextmanager
def use_settings(**changes: Any) -> Iterator[Settings]:
    """Overrides fields of :class:`Settings` for a block of code, in the current context only.

    Raises:
        SettingsError: an unknown field, or an invalid value.
    """
    known = {f.name for f in dataclasses.fields(Settings)}
    unknown = sorted(set(changes) - known)
    if unknown:
        raise SettingsError(f"use_settings: no field named {', '.join(unknown)}; fields: {', '.join(sorted(known))}.")
    Settings(**changes)  # validates
    token = _overrides.set({**_overrides.get(), **changes})
    try:
        yield current()
    finally:
        _overrides.reset(token)


# `backend` and `debug` are read at every eager call.  `os.environ.get` encodes the name and catches a KeyError, which
# takes 1 us; on POSIX its data is a dict of bytes, where the same look-up takes 0.05 us.
_raw: dict[bytes, bytes] | None = getattr(os.environ, "_data", None) if os.name == "posix" else None


def untouched() -> bool:
    """Whether no ``use_settings`` block is active, and no variable sets ``backend`` or ``debug``, even an empty one."""
    return (
        _overrides.get() is _NO_OVERRIDES
        and _raw is not None
        and b"FORGE_BACKEND" not in _raw
        and b"FORGE_DEBUG" not in _raw
    )


def _requested(name: str) -> Callable[[], Any]:
    variable = f"{PREFIX}{name.upper()}"
    raw, default = variable.encode(), getattr(Settings, name)

    def requested() -> Any:
        changes = _overrides.get()
        if name in changes:
            return changes[name]
        text = os.environ.get(variable) if _raw is None else _raw.get(raw)
        return getattr(current(), name) if text else default

    return requested


#: The same as ``current().backend``, in a fraction of the time.
requested_backend: Callable[[], str | None] = _requested("backend")
#: The same as ``current().debug``, likewise.
debug_requested: Callable[[], bool] = _requested("debug")
