"""The facts of a machine as plain data, and the functions that read them."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import importlib.metadata
import os
import platform
import re
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from forge_core import settings
from forge_core.device import MIN_CAPABILITY, arch_of, gpu_count
from forge_core.env_check.probe import KernelRun, run_in_child
from forge_core.errors import SettingsError
from forge_core.processes import find_tool
from forge_core.toolchain import driver_cuda, installed_variants, load_library, package_folder

TOOLS = ("ncu", "nsys", "compute-sanitizer")
# Without a GPU the kernel is only compiled, which shows whether the compiler works.
DEFAULT_ARCH = "sm_90a"


@dataclass(frozen=True)
class Torch:
    """The installed PyTorch."""

    version: str | None = None  # for example "2.13.0+cpu"; None where it is not installed
    cuda: str | None = None  # the CUDA version that it was built with; None for a CPU build
    arches: tuple[str, ...] = ()  # of torch.cuda.get_arch_list()
    error: str | None = None  # why it cannot be imported


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver."""

    version: str | None = None  # for example "580.65.06"; None where none is loaded
    cuda: str | None = None  # the newest CUDA version that it serves
    gpu_count: int = 0  # those that the driver sees, whatever CUDA_VISIBLE_DEVICES hides


@dataclass(frozen=True)
class Gpu:
    """One GPU that torch can use."""

    index: int
    name: str
    capability: tuple[int, int]

    @property
    def arch(self) -> str:
        """Its architecture without a suffix, for example ``"sm_90"``; any capability has one."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


@dataclass(frozen=True)
class Dsl:
    """The CuTe DSL."""

    distributions: dict[str, str] = field(default_factory=dict)  # version of each installed nvidia-cutlass-dsl*
    variants: tuple[int, ...] = ()  # CUDA major versions whose compiler library is on disk
    broken: tuple[str, ...] = ()  # how files on disk differ from those that the distributions recorded, in words

    @property
    def version(self) -> str | None:
        """The version of ``nvidia-cutlass-dsl`` itself; None where it is not installed."""
        return self.distributions.get("nvidia-cutlass-dsl")


@dataclass(frozen=True)
class Facts:
    """The facts of a machine."""

    system: str = "linux"  # sys.platform
    python: str = "3.11.0"
    executable: str = "python"
    forge: str = ""  # the version of forge-cute-core
    torch: Torch = field(default_factory=Torch)
    driver: Driver = field(default_factory=Driver)
    gpus: tuple[Gpu, ...] = ()  # those that torch can use
    dsl: Dsl = field(default_factory=Dsl)
    tvm_ffi: str | None = None  # the version of apache-tvm-ffi
    dlpack_ext: str | None = None  # the version of torch-c-dlpack-ext
    tools: dict[str, str | None] = field(default_factory=dict)  # the path of each profiler
    cache_dir: str = ""
    cache_writable: bool = True
    backend: str | None = None  # FORGE_BACKEND
    settings_error: str | None = None  # what is wrong with a FORGE_* variable
    kernels: tuple[KernelRun, ...] = ()  # one for each GPU, or one that was only compiled


def collect() -> Facts:
    """Reads all facts; compiles a kernel, and runs it on each GPU."""
    torch, gpus = _torch()
    dsl = read_dsl(importlib.metadata.distributions(), package_folder("nvidia_cutlass_dsl"))
    try:
        current, settings_error = settings.current(), None
    except SettingsError as error:
        current, settings_error = settings.Settings(), str(error)
    asked: list[tuple[str, int | None]] = []
    if torch.version is not None and torch.error is None and dsl.version is not None:
        asked += [(arch_of(gpu.capability), gpu.index) for gpu in gpus if gpu.capability >= MIN_CAPABILITY]
        asked += [] if gpus else [(current.arch or DEFAULT_ARCH, None)]
    return Facts(
        system=sys.platform,
        python=platform.python_version(),
        executable=sys.executable,
        forge=installed("forge-cute-core") or "from source",
        torch=torch,
        driver=driver(),
        gpus=gpus,
        dsl=dsl,
        tvm_ffi=installed("apache-tvm-ffi"),
        dlpack_ext=installed("torch-c-dlpack-ext"),
        tools={name: find_tool(name) for name in TOOLS},
        cache_dir=str(current.folder),
        cache_writable=_writable(current.folder),
        backend=current.backend,
        settings_error=settings_error,
        kernels=tuple(run_in_child(arch, gpu) for arch, gpu in asked),
    )


def installed(name: str) -> str | None:
    """The version of a distribution; None if it is not installed."""
    return next((each.version for each in importlib.metadata.distributions(name=name)), None)


def _writable(folder: Path) -> bool:
    """Whether a file can be made in a folder, or in its nearest parent that exists."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


# -------------------------------------------------------------------------------------------------- torch and driver


def _torch() -> tuple[Torch, tuple[Gpu, ...]]:
    version = installed("torch")
    if version is None:
        return Torch(), ()
    try:
        import torch
    except (ImportError, OSError) as error:
        return Torch(version=version, error=str(error)), ()
    # torch warns of an old driver or an unsupported GPU, which the findings report with a command.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arches = tuple(torch.cuda.get_arch_list())
        gpus = tuple(
            Gpu(i, torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i)) for i in range(gpu_count())
        )
    return Torch(version=str(torch.__version__), cuda=torch.version.cuda, arches=arches), gpus


def driver() -> Driver:
    """The driver, as its own libraries say: a torch built without CUDA is enough, and no context is created."""
    cuda, version, count = driver_cuda(), ctypes.create_string_buffer(96), ctypes.c_uint(0)
    nvml = load_library("libnvidia-ml.so.1", "nvml.dll")
    if nvml is not None and nvml.nvmlInit_v2() == 0:
        nvml.nvmlSystemGetDriverVersion(version, len(version))
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        nvml.nvmlShutdown()
    return Driver(version.value.decode() or _version_from_proc(), f"{cuda[0]}.{cuda[1]}" if cuda else None, count.value)


def _version_from_proc() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    found = re.search(r"Kernel Module\D*([\d.]+)", text)
    return found[1] if found else None


# ----------------------------------------------------------------------------------------------------------- the DSL


def read_dsl(distributions: Iterable[importlib.metadata.Distribution], package: Path | None) -> Dsl:
    """The installed DSL, and whether the package's files on disk are those that its distributions recorded.

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
    broken: dict[str, list[str]] = {}
    for file_name, recorded in sorted(claims.items()):
        (mode, value), path = next(iter(recorded.items()))
        if len(recorded) > 1:
            broken.setdefault("two variants of the CuTe DSL are mixed on disk", []).append(file_name)
        elif not path.is_file():
            broken.setdefault("the CuTe DSL's files are missing", []).append(file_name)
        elif _hash(path, mode) != value:
            broken.setdefault("the CuTe DSL's files are not what its distributions recorded", []).append(file_name)
    told = (f"{what}: {len(files)} file(s), for example {files[0]}" for what, files in broken.items())
    return Dsl(dict(sorted(found.items())), installed_variants(package), tuple(told))


def _hash(path: Path, mode: str) -> str:
    """A file's hash in the format of a RECORD: URL-safe base64 without padding."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, mode).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
