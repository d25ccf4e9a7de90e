"""The environment of a record: the machine, the versions and the sources."""

from __future__ import annotations

import hashlib
import platform
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import torch

from forge_core.env_check.facts import driver, installed
from forge_core.errors import BenchmarkError
from forge_core.toolchain import package_folder

NOT_READ = "not read"
NOT_INSTALLED = "not installed"


class Environment(msgspec.Struct, frozen=True):
    """The machine, the versions and the sources; ``"none"``, ``"not installed"`` or ``"not read"`` where there is none.

    Attributes:
        device: ``"cuda"`` or ``"cpu"``.
        cuda: the CUDA version that torch was built for.
        dsl: the CuTe DSL's version.
        commit: the checkout's commit, or why it is not known (see :func:`stamp`).
        dirty: whether the checkout had changes that were not committed; None where it is not known.
        sources: for each package, a SHA-256 over its files' names and contents.
        peers: the versions of the installed packages that peers need; older records have none.
    """

    device: str
    gpu: str
    driver: str
    cuda: str
    torch: str
    dsl: str
    triton: str
    python: str
    system: str
    commit: str
    dirty: bool | None
    sources: dict[str, str]
    peers: dict[str, str] = {}

    @property
    def has_commit(self) -> bool:
        """Whether `commit` is a commit."""
        return re.fullmatch(r"[0-9a-f]{40}", self.commit) is not None

    @property
    def machine(self) -> str:
        """The GPU's name, or "CPU"."""
        return self.gpu if self.device == "cuda" else "CPU"

    def revision(self, unknown: str) -> str:
        """The beginning of the commit, or `unknown`, and whether there were changes."""
        name = self.commit[:12] if self.has_commit else unknown
        return f"{name} with changes" if self.dirty else name


def read_environment(device: torch.device, packages: Sequence[str], peers: Iterable[str] = ()) -> Environment:
    """The environment of a run: its device, the packages measured by import name, the distributions of the peers."""
    cuda = device.type == "cuda"
    commit, dirty = _checkout((*packages, "forge_core")[0])
    return Environment(
        device=device.type,
        gpu=torch.cuda.get_device_name(device) if cuda else "none",
        driver=(driver().version or NOT_READ) if cuda else "none",
        cuda=str(torch.version.cuda or "none"),
        torch=str(torch.__version__),
        dsl=installed("nvidia-cutlass-dsl") or NOT_INSTALLED,
        triton=installed("triton") or NOT_INSTALLED,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        commit=commit,
        dirty=dirty,
        sources={name: _digest(name) for name in sorted({"forge_core", *packages})},
        peers={name: version for name in sorted(set(peers)) if (version := installed(name))},
    )


def _digest(package: str) -> str:
    folder = package_folder(package)
    if folder is None:
        return NOT_READ
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".yaml", ".toml") and "__pycache__" not in path.parts:
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _checkout(package: str) -> tuple[str, bool | None]:
    """The commit of the package's checkout, and whether it has changes that are not committed."""
    folder = package_folder(package)
    if folder is None or not _tracked(folder):
        return "not a checkout", None
    commit, status = git(folder, "rev-parse", "HEAD"), git(folder, "status", "--porcelain")
    return commit.stdout.strip() or NOT_READ, None if status.returncode else bool(status.stdout)


def _tracked(folder: Path) -> bool:
    """Whether git tracks a package's files; an installed one may be inside another project's checkout."""
    return git(folder, "ls-files", "--error-unmatch", "__init__.py").returncode == 0


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs git in a folder; where it is not installed, it fails."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def sources_here(sources: dict[str, str]) -> str:
    """The packages whose sources here differ from those of a record."""
    return ", ".join(package for package, digest in sources.items() if _digest(package) != digest)


def stamp(environment: Environment) -> Environment:
    """An environment read without git, with this checkout's commit.

    Raises:
        BenchmarkError: the sources differ, or have changes that are not committed, or this is no checkout.
    """
    for package, digest in environment.sources.items():
        folder = package_folder(package)
        if folder is None or _digest(package) != digest:
            raise BenchmarkError(f"the record was made from other sources of {package} than those of this checkout")
        if not _tracked(folder):
            raise BenchmarkError(f"{package} is not in a git checkout here, so there is no commit to write")
        if git(folder, "status", "--porcelain", ".").stdout:
            raise BenchmarkError(f"{package} has changes here that are not committed: commit them, then stamp")
    commit, _ = _checkout(next(iter(environment.sources)))
    return msgspec.structs.replace(environment, commit=commit, dirty=False)
