"""From what is known of a machine to what is wrong with it; reads nothing but its argument.

A fault means that something which should work does not.  A missing GPU is none: every operator has a CPU reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from forge_core.env_check.facts import Facts, Gpu
from forge_core.env_check.rules import (
    DSL_RANGE,
    FFI_MINIMUM,
    MIN_CAPABILITY,
    TORCH_MINIMUM,
    major,
    minimum_driver,
    numbers,
    torch_supports,
    variant_in_use,
)

__all__ = ["Finding", "Level", "diagnose"]


class Level(StrEnum):
    """How much a finding matters; only a fault makes the machine unhealthy."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True)
class Finding:
    """One thing found.

    Attributes:
        topic: what it is about, in one word.
        level: how much it matters.
        message: what was found, in plain words.
        repair: the command that repairs it; every fault and every warning has one.
    """

    topic: str
    level: Level
    message: str
    repair: str = ""


_DRIVER_COMMAND = "sudo apt-get install nvidia-driver-580"


def diagnose(facts: Facts) -> list[Finding]:
    """Every finding, in the order in which one depends on the other."""
    return [
        Finding("python", Level.OK, f"Python {facts.python} at {facts.executable}, forge-cute-core {facts.forge}"),
        *_settings(facts),
        *_torch(facts),
        *_driver(facts),
        *_gpus(facts),
        *_dsl(facts),
        *_ffi(facts),
        *_kernels(facts),
        *_tools(facts),
        *_cache(facts),
    ]


def _settings(facts: Facts) -> Iterator[Finding]:
    if facts.settings_error is not None:
        name = re.search(r"FORGE_\w+", facts.settings_error)
        yield Finding("settings", Level.FAULT, facts.settings_error, f"unset {name[0] if name else 'FORGE_BACKEND'}")


# ------------------------------------------------------------------------------------------------ torch and driver


def _torch_command(driver_cuda: str | None) -> str:
    """The command that installs a torch with a CUDA version that the driver serves."""
    served = numbers(driver_cuda or "13.0")
    build = "cu130" if served >= (13, 0) else "cu128" if served >= (12, 8) else "cu126"
    return f"pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{build}"


def _torch(facts: Facts) -> Iterator[Finding]:
    torch, install = facts.torch, f"pip install 'torch>={TORCH_MINIMUM}'"
    if torch.version is None:
        yield Finding("torch", Level.FAULT, "torch is not installed", install)
    elif torch.error is not None:
        repair = f"pip install --force-reinstall 'torch=={torch.version.partition('+')[0]}'"
        yield Finding("torch", Level.FAULT, f"torch {torch.version} cannot be imported: {torch.error}", repair)
    elif numbers(torch.version) < numbers(TORCH_MINIMUM):
        message = f"torch {torch.version} is too old: {TORCH_MINIMUM} or newer is needed"
        yield Finding("torch", Level.FAULT, message, install)
    elif torch.cuda is not None:
        yield Finding("torch", Level.OK, f"torch {torch.version}, built with CUDA {torch.cuda}")
    elif facts.driver.gpu_count:
        message = (
            f"torch {torch.version} is built without CUDA, but the driver sees {facts.driver.gpu_count} GPU(s): "
            "operators use the CPU reference"
        )
        yield Finding("torch", Level.WARNING, message, _torch_command(facts.driver.cuda))
    else:
        yield Finding("torch", Level.OK, f"torch {torch.version}, built without CUDA")


def _driver(facts: Facts) -> Iterator[Finding]:
    driver, cuda = facts.driver, facts.torch.cuda
    needed = minimum_driver(str(major(cuda))) if cuda else None
    if driver.version is None:
        wanted = f"; CUDA {cuda} needs {needed} or newer" if needed else ""
        yield Finding("driver", Level.NOTE, f"CUDA driver not detected{wanted}")
        return
    found = f"CUDA driver {driver.version}" + (f", serves CUDA up to {driver.cuda}" if driver.cuda else "")
    if needed and numbers(driver.version) < numbers(needed):
        older = minimum_driver("12")
        can_take_older = older is not None and numbers(driver.version) >= numbers(older)
        repair = _torch_command(driver.cuda or "12.6") if can_take_older else _DRIVER_COMMAND
        message = f"{found}; torch's CUDA {cuda} needs {needed} or newer"
        yield Finding("driver", Level.FAULT, message, repair)
        return
    variant = variant_in_use(facts.dsl.variants, driver.cuda)
    releases = [cuda] if cuda else []
    releases += {12: ["12.9"], 13: ["13.0"]}.get(variant or 0, [])
    should_be = max((m for r in releases if (m := minimum_driver(r))), key=numbers, default=None)
    if should_be and numbers(driver.version) < numbers(should_be):
        message = f"{found}; it should be {should_be} or newer, older ones work by CUDA's minor-version compatibility"
        yield Finding("driver", Level.WARNING, message, _DRIVER_COMMAND)
    else:
        yield Finding("driver", Level.OK, found + (f"; {should_be} or newer is needed" if should_be else ""))


def _gpus(facts: Facts) -> Iterator[Finding]:
    if not facts.gpus:
        hidden = facts.driver.gpu_count and facts.torch.cuda is not None
        if hidden:
            message = f"No GPU devices found by torch, but the driver sees {facts.driver.gpu_count}"
            yield Finding("gpu", Level.WARNING, message, "unset CUDA_VISIBLE_DEVICES")
        yield Finding("gpu", Level.NOTE, "No GPU devices found: operators use the CPU reference")
    for gpu in facts.gpus:
        yield _gpu(facts, gpu)


def _gpu(facts: Facts, gpu: Gpu) -> Finding:
    name = f"GPU {gpu.index} ({gpu.name})"
    if gpu.capability < MIN_CAPABILITY:
        message = f"{name}: {gpu.arch} is not supported: sm_80 or newer is needed"
        if facts.backend == "ref":
            return Finding("gpu", Level.NOTE, f"{message}; FORGE_BACKEND=ref, so the reference is used")
        others = ",".join(str(other.index) for other in facts.gpus if other.capability >= MIN_CAPABILITY)
        repair = f"export CUDA_VISIBLE_DEVICES={others}" if others else "export FORGE_BACKEND=ref"
        return Finding("gpu", Level.FAULT, message, repair)
    if not torch_supports(facts.torch.arches, gpu.capability):
        built = ", ".join(facts.torch.arches) or "no GPU"
        message = f"{name}: torch {facts.torch.version} is not built for {gpu.arch} (built for {built})"
        return Finding("gpu", Level.FAULT, message, _torch_command(facts.driver.cuda))
    run = next((k for k in facts.kernels if k.gpu == gpu.index), None)
    dsl = f" and the CuTe DSL ({run.arch})" if run is not None and run.error is None else ""
    return Finding("gpu", Level.OK, f"{name}: {gpu.arch} is supported by torch's build{dsl}")


# --------------------------------------------------------------------------------------------- the DSL and kernels


def _dsl_command(facts: Facts, *, version: str | None = None, fresh: bool = False) -> str:
    """The command that installs the DSL with the libraries that torch's CUDA asks for."""
    cuda = facts.torch.cuda
    extra = "[cu13]" if cuda is not None and major(cuda) >= 13 else ""
    install = f"pip install 'nvidia-cutlass-dsl{extra}{f'=={version}' if version else DSL_RANGE}'"
    if not fresh:
        return install
    # Uninstalling first is what makes a mix go away: files that two distributions own survive a reinstallation.
    names = " ".join(d.name for d in facts.dsl.distributions)
    return f"pip uninstall -y {names} && {install}"


def _some(files: tuple[str, ...]) -> str:
    return f"{len(files)} file(s), for example {files[0]}"


def _dsl(facts: Facts) -> Iterator[Finding]:
    dsl, cuda = facts.dsl, facts.torch.cuda
    version = dsl.version
    if version is None:
        if facts.system == "linux":
            yield Finding("dsl", Level.FAULT, "the CuTe DSL is not installed", _dsl_command(facts))
        else:
            yield Finding("dsl", Level.NOTE, "kernels need Linux: operators use the CPU reference")
        return
    if not (4, 7) <= numbers(version) < (5,):
        message = f"CuTe DSL {version} is not supported: {DSL_RANGE} is needed"
        yield Finding("dsl", Level.FAULT, message, _dsl_command(facts, fresh=True))
        return
    faults = list(_dsl_files(facts, version))
    yield from faults
    if faults:
        return
    driver = facts.driver
    used = variant_in_use(dsl.variants, driver.cuda)
    have = " and ".join(str(v) for v in dsl.variants)
    if used is None:
        message = f"CuTe DSL {version} has libraries for CUDA {have}, but the driver serves CUDA up to {driver.cuda}"
        # With the libraries for CUDA 12 there already, only a newer driver helps.
        repair = _DRIVER_COMMAND if 12 in dsl.variants else f"pip install 'nvidia-cutlass-dsl-libs-cu12=={version}'"
        yield Finding("dsl", Level.FAULT, message, repair)
    elif cuda is not None and major(cuda) not in dsl.variants:
        message = f"CuTe DSL {version} has libraries for CUDA {have}, but torch is built with CUDA {cuda}"
        yield Finding("dsl", Level.FAULT, message, _dsl_command(facts, version=version))
    else:
        match = "" if cuda is None else f", torch is built with CUDA {cuda}"
        yield Finding("dsl", Level.OK, f"CuTe DSL {version} with libraries for CUDA {have}; CUDA {used} in use{match}")


def _dsl_files(facts: Facts, version: str) -> Iterator[Finding]:
    dsl = facts.dsl
    repair = _dsl_command(facts, version=version, fresh=True)
    if len({d.version for d in dsl.distributions}) > 1:
        listed = ", ".join(f"{d.name} {d.version}" for d in dsl.distributions)
        yield Finding("dsl", Level.FAULT, f"the CuTe DSL is installed in several versions: {listed}", repair)
    if dsl.mixed:
        message = f"two variants of the CuTe DSL are mixed on disk: {_some(dsl.mixed)} that both own and differ in"
        yield Finding("dsl", Level.FAULT, message, repair)
    if dsl.altered:
        message = f"the CuTe DSL's files are not what its distributions recorded: {_some(dsl.altered)}"
        yield Finding("dsl", Level.FAULT, message, repair)
    if dsl.missing:
        yield Finding("dsl", Level.FAULT, f"the CuTe DSL's files are missing: {_some(dsl.missing)}", repair)
    if not dsl.variants and not dsl.missing:
        message = f"CuTe DSL {version} has no compiler library for any CUDA version"
        yield Finding("dsl", Level.FAULT, message, repair)


def _ffi(facts: Facts) -> Iterator[Finding]:
    repair = f"pip install 'apache-tvm-ffi>={FFI_MINIMUM}'"
    if facts.tvm_ffi is None:
        if facts.system == "linux":
            yield Finding("tvm-ffi", Level.FAULT, "TVM-FFI is not installed", repair)
        return
    if numbers(facts.tvm_ffi) < numbers(FFI_MINIMUM):
        message = f"TVM-FFI {facts.tvm_ffi} is too old: {FFI_MINIMUM} or newer is needed"
        yield Finding("tvm-ffi", Level.FAULT, message, repair)
        return
    dlpack = f"torch-c-dlpack-ext {facts.dlpack_ext}" if facts.dlpack_ext else "no torch-c-dlpack-ext (optional)"
    yield Finding("tvm-ffi", Level.OK, f"TVM-FFI {facts.tvm_ffi}, {dlpack}")


def _kernels(facts: Facts) -> Iterator[Finding]:
    for run in facts.kernels:
        where = f"for {run.arch}" if run.gpu is None else f"for {run.arch} on GPU {run.gpu}"
        if run.error is not None:
            repair = _dsl_command(facts, version=facts.dsl.version, fresh=True)
            yield Finding("kernel", Level.FAULT, f"a kernel {where} failed: {run.error}", repair)
        else:
            ran = "not run: no GPU" if run.gpu is None else "ran, and every element is right"
            yield Finding("kernel", Level.OK, f"a kernel {where} compiled in {run.seconds or 0.0:.1f} s; {ran}")


# ------------------------------------------------------------------------------------------------ tools and folders


def _tools(facts: Facts) -> Iterator[Finding]:
    for name, path in facts.tools.items():
        found = (
            f"{name} at {path}" if path else f"{name} not found (optional: only profiling and memory checks need it)"
        )
        yield Finding("tool", Level.OK if path else Level.NOTE, found)


def _cache(facts: Facts) -> Iterator[Finding]:
    if facts.cache_writable:
        yield Finding("cache", Level.OK, f"cache folder {facts.cache_dir}")
    else:
        message = f"cache folder {facts.cache_dir} is not writable"
        yield Finding("cache", Level.WARNING, message, 'export FORGE_CACHE_DIR="$(mktemp -d)"')
