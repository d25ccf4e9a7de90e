"""The key of a compiled kernel: everything that can change its code, each value with its type.

An incomplete key would launch a kernel that was built for another architecture, dtype or compiler.  So a value of an
unknown type is rejected instead of being converted to text.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import importlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from forge_core.toolchain import host_levels, toolchain

# CUTE_DSL_* variables that do not affect the generated code.  All others are part of the key.
_NOT_IN_KEY = {
    *("CUTE_DSL_CACHE_DIR", "CUTE_DSL_DISABLE_FILE_CACHING", "CUTE_DSL_NO_CACHE", "CUTE_DSL_JIT_CACHE_MAX_ELEMS"),
    *("CUTE_DSL_KEEP", "CUTE_DSL_KEEP_IR", "CUTE_DSL_KEEP_PTX", "CUTE_DSL_KEEP_CUBIN", "CUTE_DSL_DUMP_DIR"),
    *("CUTE_DSL_LOG_LEVEL", "CUTE_DSL_LOG_TO_CONSOLE", "CUTE_DSL_LOG_TO_FILE", "CUTE_DSL_PRINT_IR"),
    *("CUTE_DSL_SHOW_STACKTRACE", "CUTE_DSL_FILTER_STACKTRACE", "CUTE_DSL_JIT_TIME_PROFILING"),
    "CUTE_DSL_LIBS",  # the path of the runtime library, whose version is in the key
    "CUTE_DSL_ARCH",  # the architecture is a field of its own, which is always passed to the compiler
}


def tag(value: Any) -> Any:
    """Encodes a value and its type as JSON, so that ``1``, ``True`` and ``"1"`` differ.

    Args:
        value: None, bool, int, str, a torch dtype, an enum member, or a tuple or frozen dataclass of those.

    Raises:
        TypeError: any other type, whose text may be incomplete or change from run to run.
    """
    if value is None:
        return None
    kind = type(value)
    if kind in (bool, int, str):
        return [kind.__name__, value]
    if kind is torch.dtype:
        return ["dtype", str(value).removeprefix("torch.")]
    if isinstance(value, enum.Enum):
        return ["enum", _class_name(kind), value.name]
    if kind is tuple:
        return ["tuple", [tag(item) for item in value]]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if not kind.__dataclass_params__.frozen:
            raise TypeError(f"{kind.__qualname__} is not a frozen dataclass, so it cannot be part of a kernel's key.")
        # Fields left to their defaults too: a changed default has to change the key.
        fields = {f.name: tag(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return ["dataclass", _class_name(kind), fields]
    raise TypeError(
        f"a value of type {kind.__qualname__} cannot be part of a kernel's key; "
        "use bool, int, str, torch.dtype, an enum, a tuple of those, or a frozen dataclass of those."
    )


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal and of the same types, recursively; ``==`` finds 1 and True equal.

    For values that :func:`tag` takes: whether their tags are equal.
    """
    if a is b:
        return True
    if (kind := type(a)) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(kind):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(kind))
    match a:
        case float():  # -0.0 and 0.0 differ, and NaNs are equal
            return repr(a) == repr(b)
        case dict():  # in order, as a traced loop over it would be
            return same(list(a.items()), list(b.items()))
        case set() | frozenset():
            return same(sorted(a, key=repr), sorted(b, key=repr))
    return bool(a == b)


def _class_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def untag(tagged: Any) -> Any:
    """Decodes what :func:`tag` encoded; imports the modules of its classes, so never use it on untrusted text.

    Raises:
        TypeError: not an encoded value.
    """
    if tagged is None:
        return None
    match tagged:
        case ["bool" | "int" | "str" as kind, value] if type(value).__name__ == kind:
            return value
        case ["dtype", str(name)] if isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        case ["enum", str(path), str(name)]:
            return object_at(path)[name]
        case ["tuple", list(items)]:
            return tuple(untag(item) for item in items)
        case ["dataclass", str(path), dict(fields)]:
            return object_at(path)(**{name: untag(value) for name, value in fields.items()})
    raise TypeError(f"not a tagged value: {json.dumps(tagged)[:200]}")


def object_at(path: str) -> Any:
    """Imports the object at a path ``"module:qualname"``; the module's name need not be an identifier."""
    module, _, qualname = path.partition(":")
    return functools.reduce(getattr, qualname.split("."), importlib.import_module(module))


def modules_of(name: str, config: str) -> tuple[str, ...]:
    """The modules of a builder and of the enums and dataclasses in a configuration, given as it is in a key."""
    # Quotes within strings are escaped, so the pattern matches no string of the configuration.
    return (name.partition(":")[0], *sorted(set(re.findall(r'\["(?:dataclass|enum)","([^":]+):', config))))


def canonical(value: Any) -> str:
    """Canonical JSON, for hashing: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


Pairs = tuple[tuple[str, str], ...]
_TABLES = ("toolchain", "environment", "sources")  # the fields that are pairs of names and values


@dataclass(frozen=True)
class KernelKey:
    """The identity of one compiled kernel."""

    name: str  #: "module:qualname" of the builder
    config: str  #: the configuration: canonical JSON of its tag
    arch: str  #: the target, for example "sm_90a"
    options: str  #: of the compiler
    host: str  #: the processor level that the host code was compiled for; see `toolchain.host_levels`
    toolchain: Pairs  #: name and version of each distribution that takes part in compiling, and the CUDA variant
    environment: Pairs  #: the CUTE_DSL_* variables that can change the code
    sources: Pairs  #: what the kernel is built from; see `sources.Sources.pairs`

    @classmethod
    def make(cls, name: str, config: str, *, arch: str, options: str, sources: Pairs) -> KernelKey:
        """A key with the host level, toolchain and environment of this process."""
        return cls(name, config, arch, options, host_levels()[-1], toolchain(), dsl_environment(os.environ), sources)

    @functools.cached_property
    def digest(self) -> str:
        """A SHA-256 over every field, in hexadecimal."""
        return hashlib.sha256(canonical(dataclasses.asdict(self)).encode()).hexdigest()

    @property
    def symbol(self) -> str:
        """The name of the function in the object, unique to this key."""
        return f"forge_{self.digest[:24]}"

    def compatible_keys(self) -> Iterator[KernelKey]:
        """This key, then those of the same kernel compiled for lower levels of this processor."""
        yield self
        levels = host_levels()
        for host in reversed(levels[: levels.index(self.host)]):
            yield dataclasses.replace(self, host=host)

    def describe(self) -> dict[str, Any]:
        """Every field as JSON values."""
        fields = dataclasses.asdict(self)
        return {**fields, "config": json.loads(self.config), **{name: dict(fields[name]) for name in _TABLES}}

    @classmethod
    def from_description(cls, fields: Mapping[str, Any]) -> KernelKey:
        """The inverse of :meth:`describe`.  Types are not checked; a value of another type changes the digest.

        Raises:
            TypeError, KeyError, AttributeError: it has other fields.
        """
        tables = {name: tuple(sorted(fields[name].items())) for name in _TABLES}
        return cls(**{**fields, "config": canonical(fields["config"]), **tables})


def dsl_environment(environ: Mapping[str, str]) -> Pairs:
    """The CUTE_DSL_* variables that can change the code, sorted."""
    return tuple(
        sorted((k, v) for k, v in environ.items() if k.startswith("CUTE_DSL_") and k not in _NOT_IN_KEY and v != "")
    )
