"""Reads what a machine has; judges nothing.

The driver is asked through its own libraries, so that it is seen even where torch was built without CUDA, and without
making a CUDA context.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import importlib.metadata
import importlib.util
import platform
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path

from forge_core import settings
from forge_core.device import MIN_CAPABILITY, arch_of
from forge_core.env_check import probe
from forge_core.env_check.facts import Distribution, Driver, Dsl, Facts, Gpu, KernelRun, Torch
from forge_core.errors import SettingsError
from forge_core.profiling.cuda_tools import find_tool

__all__ = ["collect", "read_dsl"]

TOOLS = ("ncu", "nsys", "compute-sanitizer")

# Where the kernel is only compiled, it has to be for something; any architecture shows that the compiler works.
DEFAULT_ARCH = "sm_90a"


def collect(*, kernels: bool = True) -> Facts:
    """Everything that the check looks at.

    Args:
        kernels: compile a kernel for each architecture, and run it on each GPU.
    """
    torch, gpus = _torch()
    dsl = _dsl()
    try:
        current, settings_error = settings.current(), None
    except SettingsError as error:
        current, settings_error = settings.Settings(), str(error)
    cache_dir = current.folder
    runs: tuple[KernelRun, ...] = ()
    if kernels and torch.version is not None and torch.error is None and dsl.version is not None:
        runs = _try_kernels(gpus, current.arch or DEFAULT_ARCH)
    return Facts(
        system=sys.platform,
        python=platform.python_version(),
        executable=sys.executable,
        forge=_version("forge-cute-core") or "from source",
        torch=torch,
        driver=_driver(),
        gpus=gpus,
        dsl=dsl,
        tvm_ffi=_version("apache-tvm-ffi"),
        dlpack_ext=_version("torch-c-dlpack-ext"),
        tools={name: find_tool(name) for name in TOOLS},
        cache_dir=str(cache_dir),
        cache_writable=_writable(cache_dir),
        backend=current.backend,
        settings_error=settings_error,
        kernels=runs,
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _writable(folder: Path) -> bool:
    """Whether a file can be made in a folder, or, where it does not exist, in the folder that it would be made in."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


# -------------------------------------------------------------------------------------------------- torch and driver


def _torch() -> tuple[Torch, tuple[Gpu, ...]]:
    version = _version("torch")
    if version is None:
        return Torch(), ()
    try:
        import torch
    except (ImportError, OSError) as error:
        return Torch(version=version, error=str(error)), ()
    # torch warns of an old driver or an unsupported GPU; the findings say both, each with its command.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        arches = tuple(torch.cuda.get_arch_list())
        gpus = tuple(Gpu(i, torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i)) for i in range(count))
    return Torch(version=torch.__version__, cuda=torch.version.cuda, arches=arches), gpus


def _library(*names: str) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _driver() -> Driver:
    cuda = None
    number = ctypes.c_int(0)
    libcuda = _library("libcuda.so.1", "nvcuda.dll")
    if libcuda is not None and libcuda.cuDriverGetVersion(ctypes.byref(number)) == 0 and number.value:
        cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
    version, count = _ask_nvml()
    return Driver(version or _version_from_proc(), cuda, count)


def _ask_nvml() -> tuple[str | None, int]:
    """The driver's version and the number of GPUs, from its management library."""
    nvml = _library("libnvidia-ml.so.1", "nvml.dll")
    if nvml is None or nvml.nvmlInit_v2() != 0:
        return None, 0
    try:
        text = ctypes.create_string_buffer(96)
        version = text.value.decode() if nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0 else None
        count = ctypes.c_uint(0)
        return version or None, count.value if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 else 0
    finally:
        nvml.nvmlShutdown()


def _version_from_proc() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"Kernel Module\D*([\d.]+)", text)
    return found[1] if found else None


# ----------------------------------------------------------------------------------------------- the DSL and kernels


def _dsl() -> Dsl:
    spec = importlib.util.find_spec("nvidia_cutlass_dsl")
    places = spec.submodule_search_locations if spec is not None else None
    return read_dsl(importlib.metadata.distributions(), Path(places[0]) if places else None)


def read_dsl(distributions: Iterable[importlib.metadata.Distribution], package: Path | None) -> Dsl:
    """The installed DSL, and whether the files on disk are those that its distributions brought.

    Only files inside the package are compared: installers rewrite scripts, Python writes byte code.

    Args:
        distributions: all that are installed, in the order in which Python finds them.
        package: the folder of the importable package, or None.
    """
    found: dict[str, str] = {}
    claims: dict[str, dict[tuple[str, str], Path]] = {}
    for distribution in distributions:
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if not name.startswith("nvidia-cutlass-dsl") or name in found:
            continue
        found[name] = distribution.version
        for file in distribution.files or ():
            if file.hash is not None and file.parts[0] == "nvidia_cutlass_dsl":
                path = Path(str(distribution.locate_file(file)))
                claims.setdefault(file.as_posix(), {})[(file.hash.mode, file.hash.value)] = path
    altered, mixed, missing = [], [], []
    for file_name, recorded in sorted(claims.items()):
        (mode, value), path = next(iter(recorded.items()))
        if len(recorded) > 1:
            mixed.append(file_name)
        elif not path.is_file():
            missing.append(file_name)
        elif _hash(path, mode) != value:
            altered.append(file_name)
    return Dsl(
        distributions=tuple(Distribution(name, version) for name, version in sorted(found.items())),
        variants=_variants(package),
        altered=tuple(altered),
        mixed=tuple(mixed),
        missing=tuple(missing),
    )


def _variants(package: Path | None) -> tuple[int, ...]:
    """The CUDA major versions in the names of the compiler's libraries, which is how the DSL itself finds them."""
    if package is None:
        return ()
    names = [file.name for file in package.glob("dsl_packages/cutlass/_mlir/_mlir_libs/_cutlass_ir.cu*")]
    return tuple(
        sorted({int(match[1]) for name in names if (match := re.match(r"_cutlass_ir\.cu(\d+)\..*\.so$", name))})
    )


def _hash(path: Path, mode: str) -> str:
    """A file's hash as a RECORD writes it: URL-safe base64 without padding."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, mode).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _try_kernels(gpus: tuple[Gpu, ...], arch: str) -> tuple[KernelRun, ...]:
    """One kernel compiled for each GPU and run on it; where there is none, compiled for ``arch``."""
    supported = [gpu for gpu in gpus if gpu.capability >= MIN_CAPABILITY]
    if not gpus:
        return (probe.run_in_child(arch, None),)
    return tuple(probe.run_in_child(arch_of(gpu.capability), gpu.index) for gpu in supported)
