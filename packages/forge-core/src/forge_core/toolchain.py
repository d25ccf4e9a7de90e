"""The CuTe DSL and TVM-FFI: versions and libraries, without importing them, which takes seconds; processor levels."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from forge_core.errors import UnsupportedError

#: The supported versions of the CuTe DSL and of TVM-FFI.
DSL_RANGE = ">=4.8,<5"
FFI_MINIMUM = "0.1.11"

_RUNTIME = "libcute_dsl_runtime.so"


def require_dsl(name: str) -> None:
    """Raises UnsupportedError, with the command that installs it, if the CuTe DSL is not installed."""
    _require(name, ("cutlass", "tvm_ffi"), "kernels are compiled by the CuTe DSL")


def require_runtime(name: str) -> None:
    """Raises UnsupportedError, likewise, if the libraries that a compiled kernel needs are not installed."""
    _require(name, ("tvm_ffi",), "compiled kernels are loaded by TVM-FFI")
    if runtime_library() is None:
        _require(name, ("nvidia_cutlass_dsl",), f"compiled kernels need {_RUNTIME}, a part of the CuTe DSL")


def _require(name: str, modules: Iterable[str], why: str) -> None:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise UnsupportedError(
            f"{name}: {why}, and {' and '.join(missing)} cannot be imported. "
            f"Install it with: pip install 'nvidia-cutlass-dsl{DSL_RANGE}' 'apache-tvm-ffi>={FFI_MINIMUM}' "
            "(Linux only; elsewhere the CPU reference works).",
            requirement="nvidia-cutlass-dsl and apache-tvm-ffi",
        )


@functools.cache
def toolchain() -> tuple[tuple[str, str], ...]:
    """Name and version of each distribution that takes part in compiling, and the CUDA variant in use.

    Several variants can be installed side by side; when it is imported, the DSL chooses one by the driver.
    """
    variant = cuda_variant()
    found = {} if variant is None else {"cuda": variant}
    # By the folders' names, because importlib.metadata parses files, which takes longer than loading a kernel.
    for folder in sys.path:
        for pattern in ("nvidia_cutlass_dsl*.dist-info", "apache_tvm_ffi-*.dist-info"):
            for info in sorted(Path(folder).glob(pattern)):
                name, _, version = info.name.removesuffix(".dist-info").replace("_", "-").rpartition("-")
                other = re.search(r"-(cu\d+)$", name)
                if other is None or variant in (None, other[1]):
                    found.setdefault(name, version)  # the first on the path is imported
    return tuple(sorted(found.items()))


def package_folder(name: str) -> Path | None:
    """The folder of a top-level package, without importing it; None where there is none."""
    spec = importlib.util.find_spec(name)
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(locations[0]) if locations else None


def installed_variants(folder: Path | None) -> tuple[int, ...]:
    """The CUDA major versions whose compiler library is in the folder of the package ``nvidia_cutlass_dsl``."""
    # The DSL itself finds its libraries by the CUDA version in their names.
    files = folder.glob("dsl_packages/cutlass/_mlir/_mlir_libs/_cutlass_ir.cu*.so") if folder is not None else ()
    return tuple(sorted({int(found[1]) for file in files if (found := re.match(r"_cutlass_ir\.cu(\d+)\.", file.name))}))


def load_library(*names: str) -> ctypes.CDLL | None:
    """The first shared library that can be loaded."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA version that the driver supports, such as (13, 0); creates no context."""
    number, libcuda = ctypes.c_int(0), load_library("libcuda.so.1", "nvcuda.dll")
    if libcuda is None or libcuda.cuDriverGetVersion(ctypes.byref(number)) != 0 or not number.value:
        return None
    return number.value // 1000, number.value % 1000 // 10


def newest_usable(variants: Iterable[int], driver: int | None) -> int | None:
    """The newest of the DSL's CUDA versions that a driver supports, which the DSL loads; None: no such version."""
    return max((v for v in variants if driver is None or v <= driver), default=None)


@functools.cache
def cuda_variant() -> str | None:
    """The installed variant that the DSL loads, ``"cu12"`` or ``"cu13"``; None without any."""
    driver, variants = driver_cuda(), installed_variants(package_folder("nvidia_cutlass_dsl"))
    found = newest_usable(variants, driver[0] if driver else None)
    return f"cu{found}" if found else None


@functools.cache
def runtime_library() -> Path | None:
    """The DSL's runtime library in its wheel, which compiled kernels call; None if it is not installed."""
    for named in os.environ.get("CUTE_DSL_LIBS", "").split(os.pathsep):
        if named.endswith(_RUNTIME):
            return Path(named)
    folder, variant = package_folder("nvidia_cutlass_dsl"), cuda_variant()
    if folder is None:
        return None
    candidates = (folder / (variant or "") / "lib" / _RUNTIME, folder / "lib" / _RUNTIME)
    return next((path for path in candidates if path.exists()), None)


# A launch's host code is compiled for the processor of the machine, so an object can be loaded on processors of its
# level and above; below, it would raise SIGILL.  Levels are listed lowest first, with the flags that Linux reports;
# those of x86-64 are the levels of its psABI, without flags that all such processors have.
_LEVELS: dict[str, tuple[tuple[str, frozenset[str]], ...]] = {
    "x86_64": (
        ("v1", frozenset()),
        ("v2", frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})),
        ("v3", frozenset({"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})),
        ("v4", frozenset({"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"})),
    ),
    "aarch64": (("base", frozenset()), ("sve", frozenset({"sve"})), ("sve2", frozenset({"sve2"}))),
}


def levels_of(machine: str, flags: Collection[str]) -> tuple[str, ...]:
    """The levels of a processor with the flags that Linux reports, lowest first."""
    levels = []
    for name, needed in _LEVELS.get(machine, ((platform.processor() or "base", frozenset[str]()),)):
        if not needed <= set(flags):
            break
        levels.append(f"{sys.platform}-{machine}-{name}")
    return tuple(levels)


@functools.cache
def host_levels() -> tuple[str, ...]:
    """The levels of this machine, lowest first: objects of any of them can be loaded here."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            pairs = (line.partition(":") for line in lines)
            flags = next((value for name, _, value in pairs if name.strip().lower() in ("flags", "features")), "")
    except FileNotFoundError:
        flags = ""
    return levels_of(platform.machine(), flags.split())
