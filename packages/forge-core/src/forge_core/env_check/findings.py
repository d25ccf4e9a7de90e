"""Diagnoses the facts of a machine, by pure functions.

A fault is something that should work and does not.  A missing GPU is none: every operator has a CPU reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from forge_core.device import MIN_CAPABILITY
from forge_core.env_check.facts import Facts, Gpu
from forge_core.toolchain import DSL_RANGE, FFI_MINIMUM, newest_usable


class Level(StrEnum):
    """The severity of a finding; only a fault makes the machine unhealthy."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True)
class Finding:
    """A finding; every fault and every warning has a command that repairs it."""

    topic: str
    level: Level
    message: str
    repair: str = ""


# The oldest driver by CUDA version; the first prefix that matches counts.  CUDA 12 runs on any driver of its first
# release by minor-version compatibility; the DSL's compiler for CUDA 12 is of release 12.9.
_DRIVERS = (("13", "580.65.06"), ("12.9", "575.51.03"), ("12", "525.60.13"))

_TORCH_MINIMUM = "2.9"
_DRIVER_COMMAND = "sudo apt-get install nvidia-driver-580"

# The arguments of a Finding after its topic.
_Found = tuple[Level, str] | tuple[Level, str, str]


def diagnose(facts: Facts) -> list[Finding]:
    """All findings, causes before their effects."""
    checks = {
        "python": _python,
        "settings": _settings,
        "torch": _torch,
        "driver": _driver,
        "gpu": _gpus,
        "dsl": _dsl,
        "tvm-ffi": _ffi,
        "kernel": _kernels,
        "tool": _tools,
        "cache": _cache,
    }
    return [Finding(topic, *found) for topic, check in checks.items() for found in check(facts)]


def _python(facts: Facts) -> Iterator[_Found]:
    yield Level.OK, f"Python {facts.python} at {facts.executable}, forge-cute-core {facts.forge}"


def _settings(facts: Facts) -> Iterator[_Found]:
    if facts.settings_error is not None:
        name = re.search(r"FORGE_\w+", facts.settings_error)
        yield Level.FAULT, facts.settings_error, f"unset {name[0] if name else 'FORGE_BACKEND'}"


# ------------------------------------------------------------------------------------------------ torch and driver


def _torch_command(driver_cuda: str | None) -> str:
    """The command that installs a torch with a CUDA version that the driver supports."""
    served = _numbers(driver_cuda or "13.0")
    build = "cu130" if served >= (13, 0) else "cu128" if served >= (12, 8) else "cu126"
    return f"pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{build}"


def _torch(facts: Facts) -> Iterator[_Found]:
    torch, gpus, install = facts.torch, facts.driver.gpu_count, f"pip install 'torch>={_TORCH_MINIMUM}'"
    if torch.version is None:
        yield Level.FAULT, "torch is not installed", install
    elif torch.error is not None:
        repair = f"pip install --force-reinstall 'torch=={torch.version.partition('+')[0]}'"
        yield Level.FAULT, f"torch {torch.version} cannot be imported: {torch.error}", repair
    elif _numbers(torch.version) < _numbers(_TORCH_MINIMUM):
        yield Level.FAULT, f"torch {torch.version} is too old: {_TORCH_MINIMUM} or newer is needed", install
    elif torch.cuda is not None:
        yield Level.OK, f"torch {torch.version}, built with CUDA {torch.cuda}"
    elif gpus:
        seen = f"the driver sees {gpus} GPU(s): operators use the CPU reference"
        message = f"torch {torch.version} is built without CUDA, but {seen}"
        yield Level.WARNING, message, _torch_command(facts.driver.cuda)
    else:
        yield Level.OK, f"torch {torch.version}, built without CUDA"


def _driver(facts: Facts) -> Iterator[_Found]:
    driver, cuda = facts.driver, facts.torch.cuda
    needed = minimum_driver(str(_numbers(cuda)[0])) if cuda else None
    if driver.version is None:
        yield Level.NOTE, "CUDA driver not detected" + (f"; CUDA {cuda} needs {needed} or newer" if needed else "")
        return
    found = f"CUDA driver {driver.version}" + (f", serves CUDA up to {driver.cuda}" if driver.cuda else "")
    version = _numbers(driver.version)
    if needed and version < _numbers(needed):
        for_older_cuda = version >= _numbers(minimum_driver("12") or "")
        repair = _torch_command(driver.cuda or "12.6") if for_older_cuda else _DRIVER_COMMAND
        yield Level.FAULT, f"{found}; torch's CUDA {cuda} needs {needed} or newer", repair
        return
    releases = [cuda, {12: "12.9", 13: "13.0"}.get(_variant_in_use(facts) or 0)]
    should_be = max((m for r in releases if r and (m := minimum_driver(r))), key=_numbers, default=None)
    if should_be and version < _numbers(should_be):
        message = f"{found}; it should be {should_be} or newer, older ones work by CUDA's minor-version compatibility"
        yield Level.WARNING, message, _DRIVER_COMMAND
    else:
        yield Level.OK, found + (f"; {should_be} or newer is needed" if should_be else "")


def _gpus(facts: Facts) -> Iterator[_Found]:
    if not facts.gpus:
        if facts.driver.gpu_count and facts.torch.cuda is not None:
            message = f"No GPU devices found by torch, but the driver sees {facts.driver.gpu_count}"
            yield Level.WARNING, message, "unset CUDA_VISIBLE_DEVICES"
        yield Level.NOTE, "No GPU devices found: operators use the CPU reference"
    for gpu in facts.gpus:
        yield _gpu(facts, gpu)


def _gpu(facts: Facts, gpu: Gpu) -> _Found:
    name = f"GPU {gpu.index} ({gpu.name})"
    if gpu.capability < MIN_CAPABILITY:
        message = f"{name}: {gpu.arch} is not supported: sm_80 or newer is needed"
        if facts.backend == "ref":
            return Level.NOTE, f"{message}; FORGE_BACKEND=ref, so the reference is used"
        others = ",".join(str(other.index) for other in facts.gpus if other.capability >= MIN_CAPABILITY)
        return Level.FAULT, message, f"export CUDA_VISIBLE_DEVICES={others}" if others else "export FORGE_BACKEND=ref"
    if not torch_supports(facts.torch.arches, gpu.capability):
        built = ", ".join(facts.torch.arches) or "no GPU"
        message = f"{name}: torch {facts.torch.version} is not built for {gpu.arch} (built for {built})"
        return Level.FAULT, message, _torch_command(facts.driver.cuda)
    run = next((k for k in facts.kernels if k.gpu == gpu.index and k.error is None), None)
    dsl = f" and the CuTe DSL ({run.arch})" if run is not None else ""
    return Level.OK, f"{name}: {gpu.arch} is supported by torch's build{dsl}"


# --------------------------------------------------------------------------------------------- the DSL and kernels


def _dsl_command(facts: Facts, *, version: str | None = None, fresh: bool = False) -> str:
    """The command that installs the DSL with libraries for torch's CUDA version; ``fresh`` uninstalls first."""
    extra = "[cu13]" if _numbers(facts.torch.cuda or "") >= (13,) else ""
    install = f"pip install 'nvidia-cutlass-dsl{extra}{f'=={version}' if version else DSL_RANGE}'"
    # Files that two distributions own survive a reinstallation.
    return f"pip uninstall -y {' '.join(facts.dsl.distributions)} && {install}" if fresh else install


def _dsl(facts: Facts) -> Iterator[_Found]:
    dsl, version, cuda = facts.dsl, facts.dsl.version, facts.torch.cuda
    if version is None:
        if facts.system == "linux":
            yield Level.FAULT, "the CuTe DSL is not installed", _dsl_command(facts)
        else:
            yield Level.NOTE, "kernels need Linux: operators use the CPU reference"
        return
    least, below = map(_numbers, re.findall(r"[\d.]+", DSL_RANGE))
    if not least <= _numbers(version) < below:
        message = f"CuTe DSL {version} is not supported: {DSL_RANGE} is needed"
        yield Level.FAULT, message, _dsl_command(facts, fresh=True)
        return
    broken = list(dsl.broken)
    if len(set(dsl.distributions.values())) > 1:
        listed = ", ".join(f"{name} {version}" for name, version in dsl.distributions.items())
        broken.append(f"the CuTe DSL is installed in several versions: {listed}")
    if not dsl.variants and not broken:
        broken.append(f"CuTe DSL {version} has no compiler library for any CUDA version")
    if broken:
        repair = _dsl_command(facts, version=version, fresh=True)
        yield from ((Level.FAULT, message, repair) for message in broken)
        return
    libraries = f"libraries for CUDA {' and '.join(map(str, dsl.variants))}"
    used = _variant_in_use(facts)
    if used is None:
        # With the libraries for CUDA 12 there already, only a newer driver helps.
        repair = _DRIVER_COMMAND if 12 in dsl.variants else f"pip install 'nvidia-cutlass-dsl-libs-cu12=={version}'"
        message = f"CuTe DSL {version} has {libraries}, but the driver serves CUDA up to {facts.driver.cuda}"
        yield Level.FAULT, message, repair
    elif cuda is not None and _numbers(cuda)[0] not in dsl.variants:
        message = f"CuTe DSL {version} has {libraries}, but torch is built with CUDA {cuda}"
        yield Level.FAULT, message, _dsl_command(facts, version=version)
    else:
        match = f", torch is built with CUDA {cuda}" if cuda else ""
        yield Level.OK, f"CuTe DSL {version} with {libraries}; CUDA {used} in use{match}"


def _ffi(facts: Facts) -> Iterator[_Found]:
    repair = f"pip install 'apache-tvm-ffi>={FFI_MINIMUM}'"
    if facts.tvm_ffi is None:
        if facts.system == "linux":
            yield Level.FAULT, "TVM-FFI is not installed", repair
    elif _numbers(facts.tvm_ffi) < _numbers(FFI_MINIMUM):
        yield Level.FAULT, f"TVM-FFI {facts.tvm_ffi} is too old: {FFI_MINIMUM} or newer is needed", repair
    else:
        dlpack = f"torch-c-dlpack-ext {facts.dlpack_ext}" if facts.dlpack_ext else "no torch-c-dlpack-ext (optional)"
        yield Level.OK, f"TVM-FFI {facts.tvm_ffi}, {dlpack}"


def _kernels(facts: Facts) -> Iterator[_Found]:
    for run in facts.kernels:
        where = f"for {run.arch}" if run.gpu is None else f"for {run.arch} on GPU {run.gpu}"
        if run.error is not None:
            repair = _dsl_command(facts, version=facts.dsl.version, fresh=True)
            yield Level.FAULT, f"a kernel {where} failed: {run.error}", repair
        else:
            ran = "not run: no GPU" if run.gpu is None else "ran, and every element is right"
            yield Level.OK, f"a kernel {where} compiled in {run.seconds or 0.0:.1f} s; {ran}"


# ------------------------------------------------------------------------------------------------ tools and folders


def _tools(facts: Facts) -> Iterator[_Found]:
    missing = "not found (optional: only profiling and memory checks need it)"
    for name, path in facts.tools.items():
        yield (Level.OK, f"{name} at {path}") if path else (Level.NOTE, f"{name} {missing}")


def _cache(facts: Facts) -> Iterator[_Found]:
    if facts.cache_writable:
        yield Level.OK, f"cache folder {facts.cache_dir}"
    else:
        message = f"cache folder {facts.cache_dir} is not writable"
        yield Level.WARNING, message, 'export FORGE_CACHE_DIR="$(mktemp -d)"'


# ----------------------------------------------------------------------------------------- versions and architectures


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 13, 0) of 2.13.0+cpu."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def minimum_driver(cuda: str) -> str | None:
    """The oldest driver that a CUDA version such as ``"12.8"`` runs on; None for an unknown version."""
    return next((driver for prefix, driver in _DRIVERS if f"{cuda}.".startswith(f"{prefix}.")), None)


def _variant_in_use(facts: Facts) -> int | None:
    """The CUDA version of the libraries that the DSL loads."""
    newest = facts.driver.cuda
    return newest_usable(facts.dsl.variants, _numbers(newest)[0] if newest else None)


def torch_supports(arches: tuple[str, ...], capability: tuple[int, int]) -> bool:
    """Whether code built for ``arches`` runs on a GPU.

    Machine code (``sm_``) runs on its major version from its minor version on, with suffix ``a`` only on its own
    capability; PTX (``compute_``) is compiled by the driver for anything newer.
    """
    for kind, major, minor, suffix in re.findall(r"\b(sm|compute)_(\d+)(\d)([af]?)\b", " ".join(arches)):
        built = int(major), int(minor)
        older = built < capability and (kind == "compute" or built[0] == capability[0])
        if built == capability or (older and suffix != "a"):
            return True
    return False
