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
from typing import Annotated, Any, get_type_hints

from forge_core.device import Arch
from forge_core.errors import SettingsError, UnsupportedError

__all__ = [
    "BYTES",
    "VARIABLES",
    "Settings",
    "Variable",
    "check_names",
    "current",
    "debug_requested",
    "parse_bytes",
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


#: What :func:`parse_bytes` takes, in words.
BYTES = "a number of bytes such as 500M or 2G; 0 for no limit"
_ARCHES = "an architecture such as 'sm_90a', or a GPU such as 'H100'"


def _parse_bool(text: str) -> bool:
    word = text.strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError(text)


_SWITCH = _parse_bool, "0 or 1"


def _parse_backend(text: str) -> str:
    word = text.strip().lower()
    if word not in BACKENDS:
        raise ValueError(text)
    return word


def parse_bytes(text: str) -> int:
    """A number of bytes, written with or without a unit of powers of 1024; raises ValueError for other text."""
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


@dataclass(frozen=True)
class Settings:
    """What can be set from outside: each field by a variable, ``backend`` by FORGE_BACKEND; see :data:`VARIABLES`.

    Each field's default is the behaviour with no variable set.  None for ``backend`` is kernels for CUDA tensors and
    the reference for CPU tensors, for ``cache_dir`` the user's cache folder by ``platformdirs``.
    """

    backend: Annotated[
        str | None,
        (_parse_backend, "'kernel' or 'ref'", "the backend of every operator: kernels, or the PyTorch reference"),
    ] = None
    debug: Annotated[
        bool, (*_SWITCH, "line information and device assertions in kernels; synchronise after each launch")
    ] = False
    arch: Annotated[str | None, (Arch.parse, _ARCHES, "the architecture to compile for where no GPU decides it")] = None
    require_gpu: Annotated[bool, (*_SWITCH, "GPU tests fail instead of being skipped where there is no GPU")] = False
    cache_dir: Annotated[
        Path | None, (_parse_folder, "a folder", "the folder of Forge's files (default: the user's cache folder)")
    ] = None
    cache: Annotated[bool, (*_SWITCH, "whether compiled kernels are kept on disk")] = True
    cache_max_bytes: Annotated[
        int, (parse_bytes, BYTES, "above it the least recently used kernels on disk are removed")
    ] = 2 * 2**30
    bundles: Annotated[
        tuple[Path, ...],
        (_parse_folders, "folders, separated as in PATH", "folders of kernels compiled ahead of time"),
    ] = ()
    jit: Annotated[bool, (*_SWITCH, "whether a kernel that is nowhere to be found may be compiled")] = True

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


#: Every variable that Forge reads.
VARIABLES = tuple(
    Variable(name, *hint.__metadata__[0]) for name, hint in get_type_hints(Settings, include_extras=True).items()
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


#: The ``backend`` field alone, as :func:`current` would give it, in a fraction of the time.
requested_backend: Callable[[], str | None] = _requested("backend")
#: The ``debug`` field alone, likewise.
debug_requested: Callable[[], bool] = _requested("debug")
