"""The facts of a machine: plain data, so that a test can plant any of it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Distribution", "Driver", "Dsl", "Facts", "Gpu", "KernelRun", "Torch"]


@dataclass(frozen=True)
class Torch:
    """The installed PyTorch.

    Attributes:
        version: for example ``"2.13.0+cpu"``; None where it is not installed.
        cuda: the CUDA version it was built with, for example ``"13.0"``; None for a CPU build.
        arches: what its CUDA code was built for, as ``torch.cuda.get_arch_list()`` says.
        error: why it cannot be imported, where it is installed and cannot.
    """

    version: str | None = None
    cuda: str | None = None
    arches: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver.

    Attributes:
        version: for example ``"580.65.06"``; None where none is loaded.
        cuda: the newest CUDA version it serves, for example ``"13.0"``.
        gpu_count: GPUs that the driver sees, whatever ``CUDA_VISIBLE_DEVICES`` hides from programs.
    """

    version: str | None = None
    cuda: str | None = None
    gpu_count: int = 0


@dataclass(frozen=True)
class Gpu:
    """One GPU that torch can use."""

    index: int
    name: str
    capability: tuple[int, int]

    @property
    def arch(self) -> str:
        """Its architecture as a plain name, for example ``"sm_90"``; any capability has one."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


@dataclass(frozen=True)
class Distribution:
    """One installed distribution."""

    name: str
    version: str


@dataclass(frozen=True)
class Dsl:
    """The CuTe DSL.

    Attributes:
        distributions: every installed ``nvidia-cutlass-dsl*``; the CUDA variant is in the names.
        variants: CUDA major versions whose compiler library lies on disk, for example ``(12, 13)``.
        altered: files whose content is not what the one distribution that brought them recorded.
        mixed: files that several distributions brought with different content, so that one of them is broken.
        missing: recorded files that are not there.
    """

    distributions: tuple[Distribution, ...] = ()
    variants: tuple[int, ...] = ()
    altered: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def version(self) -> str | None:
        """The version of ``nvidia-cutlass-dsl`` itself; None where it is not installed."""
        return next((d.version for d in self.distributions if d.name == "nvidia-cutlass-dsl"), None)


@dataclass(frozen=True)
class KernelRun:
    """The outcome of compiling one small kernel, and of running it where there is a GPU.

    Attributes:
        arch: the architecture it was compiled for.
        gpu: the index of the GPU it ran on; None where it was compiled only.
        seconds: time that compiling took.
        error: what went wrong, or None.
    """

    arch: str
    gpu: int | None = None
    seconds: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class Facts:
    """All that is known of a machine.

    Attributes:
        system: ``sys.platform``.
        python, executable: the interpreter's version and path.
        forge, tvm_ffi, dlpack_ext: versions of forge-cute-core, apache-tvm-ffi and torch-c-dlpack-ext.
        torch, driver, gpus, dsl: see their types; ``gpus`` are those that torch can use.
        tools: the path of each profiler, or None.
        cache_dir, cache_writable: the folder of Forge's files, and whether a file can be made there.
        backend: what FORGE_BACKEND asks for.
        settings_error: what is wrong with a FORGE_* variable.
        kernels: the outcome of compiling and running a kernel, for each architecture tried.
    """

    system: str = "linux"
    python: str = "3.11.0"
    executable: str = "python"
    forge: str = ""
    torch: Torch = field(default_factory=Torch)
    driver: Driver = field(default_factory=Driver)
    gpus: tuple[Gpu, ...] = ()
    dsl: Dsl = field(default_factory=Dsl)
    tvm_ffi: str | None = None
    dlpack_ext: str | None = None
    tools: dict[str, str | None] = field(default_factory=dict)
    cache_dir: str = ""
    cache_writable: bool = True
    backend: str | None = None
    settings_error: str | None = None
    kernels: tuple[KernelRun, ...] = ()
