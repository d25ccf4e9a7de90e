"""What identifies a compiled kernel.

Symptom of an incomplete key: a kernel built for another architecture, dtype or compiler is launched and writes
garbage, or two timings come out the same because both ran one object.  Cause: something that changes the code was
left out of the key.  Invariant kept here: everything that can change the code is in :class:`KernelKey`, each value
with its type, and a value whose type is not registered is refused instead of being turned into some text.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import importlib.metadata
import json
import os
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["KernelKey", "dsl_environment", "tag", "toolchain"]

# CUTE_DSL_ variables that say where or how much is written, not what is generated.  Any other one enters the key.
_NOT_IN_KEY = frozenset(
    {
        "CUTE_DSL_CACHE_DIR",
        "CUTE_DSL_DISABLE_FILE_CACHING",
        "CUTE_DSL_NO_CACHE",
        "CUTE_DSL_JIT_CACHE_MAX_ELEMS",
        "CUTE_DSL_DUMP_DIR",
        "CUTE_DSL_KEEP",
        "CUTE_DSL_KEEP_IR",
        "CUTE_DSL_KEEP_PTX",
        "CUTE_DSL_KEEP_CUBIN",
        "CUTE_DSL_PRINT_IR",
        "CUTE_DSL_LOG_LEVEL",
        "CUTE_DSL_LOG_TO_CONSOLE",
        "CUTE_DSL_LOG_TO_FILE",
        "CUTE_DSL_SHOW_STACKTRACE",
        "CUTE_DSL_FILTER_STACKTRACE",
        "CUTE_DSL_JIT_TIME_PROFILING",
        # The architecture is a field of its own and is always passed to the compiler.
        "CUTE_DSL_ARCH",
    }
)


def tag(value: Any) -> Any:
    """A JSON value that says a key's value and its type, so that ``1``, ``True`` and ``"1"`` differ.

    Args:
        value: None, bool, int, str, a torch dtype, an enum member, a tuple of such, or a frozen dataclass of such.

    Raises:
        TypeError: any other type; its text may not say all that matters, and may change from run to run.
    """
    if value is None:
        return None
    kind = type(value)
    if kind in (bool, int, str):
        return [kind.__name__, value]
    if isinstance(value, torch.dtype):
        return ["torch.dtype", str(value)]
    if isinstance(value, enum.Enum):
        return ["enum", f"{kind.__module__}.{kind.__qualname__}", value.name]
    if kind is tuple:
        return ["tuple", [tag(item) for item in value]]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if not kind.__dataclass_params__.frozen:
            raise TypeError(f"{kind.__qualname__} is not a frozen dataclass, so it cannot be part of a kernel's key.")
        fields = {f.name: tag(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return ["dataclass", f"{kind.__module__}.{kind.__qualname__}", fields]
    raise TypeError(
        f"a value of type {kind.__qualname__} cannot be part of a kernel's key; "
        "use bool, int, str, torch.dtype, an enum, a tuple of those, or a frozen dataclass of those."
    )


@dataclass(frozen=True)
class KernelKey:
    """All that identifies one compiled kernel.

    Attributes:
        name: module and qualified name of the function that builds the kernel.
        config: the tagged configuration (see :func:`tag`), as canonical JSON.
        arch: the target, for example ``"sm_90a"``.
        options: the options given to the compiler.
        toolchain: name and version of each distribution that takes part in compiling.
        environment: the CUTE_DSL_* variables that can change the code.
    """

    name: str
    config: str
    arch: str
    options: str
    toolchain: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]

    @classmethod
    def make(cls, name: str, config: Any, *, arch: str, options: str) -> KernelKey:
        """The key of ``config`` compiled for ``arch`` with ``options`` by what is installed now.

        Raises:
            TypeError: the configuration holds a value that cannot be part of a key.
        """
        return cls(
            name=name,
            config=json.dumps(tag(config), sort_keys=True, separators=(",", ":")),
            arch=arch,
            options=options,
            toolchain=toolchain(),
            environment=dsl_environment(os.environ),
        )

    @functools.cached_property
    def digest(self) -> str:
        """A SHA-256 over every field, in hexadecimal."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Every field and the digest, for people and for JSON."""
        return {
            "digest": self.digest,
            "name": self.name,
            "config": json.loads(self.config),
            "arch": self.arch,
            "options": self.options,
            "toolchain": dict(self.toolchain),
            "environment": dict(self.environment),
        }


@functools.cache
def toolchain() -> tuple[tuple[str, str], ...]:
    """Name and version of the DSL's distributions (the CUDA variant is in their names) and of TVM-FFI."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith("nvidia-cutlass-dsl") or name == "apache-tvm-ffi":
            found[name] = distribution.version
    return tuple(sorted(found.items()))


def dsl_environment(environ: Any) -> tuple[tuple[str, str], ...]:
    """The CUTE_DSL_* variables of a mapping that can change the code, sorted."""
    return tuple(
        sorted((k, v) for k, v in environ.items() if k.startswith("CUTE_DSL_") and k not in _NOT_IN_KEY and v != "")
    )
