"""Fixtures of several modules: programs to run, launches without a GPU, and kernels whose compiler is a fake."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from forge_core.cache import CompileCached, files, sources
from forge_core.cache.store import FORMAT, Store
from forge_core.cli import main
from forge_core.device import SPECS
from forge_core.op import guard, table
from forge_core.settings import VARIABLES

HELPER = """
SCALE = 3
"""

CONFIGS = """
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    tile: int = 16

    @property
    def edge(self):
        return self.tile
"""

KERNELS = """
import os
import time

from PROJECT.configs import Config
from PROJECT.helper import SCALE

from forge_core.cache import Compiled, compile_cached

def note(what):
    with open(os.environ["FAKE_LOG"], "a") as log:
        log.write(f"{what}\\n")


def launcher(text):
    return lambda: int(text.split()[1])


class Fake:
    # Objects are texts: the symbol, and what the kernel computes.

    def compile(self, build, config, key, *, keep=False):
        note(f"compiled {config.tile} {key.arch}")
        time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
        text = f"{key.symbol} {build(config)} {key.arch} ".ljust(5000, "x")
        return Compiled(launch=launcher(text), key=key, seconds=0.5, owner=text)

    def image(self, compiled):
        return compiled.owner.encode(), True

    def load(self, path, symbol, *, linked):
        text = path.read_text()
        if not text.startswith(symbol):
            raise OSError("undefined symbol")
        note(f"loaded {symbol}")
        return launcher(text), None


def build(config):
    if config.tile == 13:
        os._exit(3)  # a compiler that takes the process with it
    return config.edge * SCALE


build = compile_cached(build, compiler=Fake())
"""


REAL_CONFIGS = """
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    threads: int = 128
"""

REAL_KERNELS = """
import cutlass
import cutlass.cute as cute

from PROJECT.configs import Config

from forge_core.cache import Traceable, compile_cached
from forge_core.env_check.kernel import AddOne


@compile_cached
def build(config):
    pointers = [cute.runtime.make_ptr(cutlass.Uint32, 0, cute.AddressSpace.gmem, assumed_align=16) for _ in range(2)]
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=False)
    return Traceable(AddOne(config), (*pointers, cutlass.Int32(1), stream), name="forge_env_check")
"""


@dataclass
class Project:
    """The project on disk, imported.

    Attributes:
        name: the package's name.
        base: a folder that every user reaches, for all of this; pytest's own are closed.
        root: the package's folder.
        cache: the folder that FORGE_CACHE_DIR names.
        log: what the fake compiler did, one line each.
    """

    name: str
    base: Path
    root: Path
    cache: Path
    log: Path

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"{self.name}.{name}")

    @property
    def build(self):
        return self.module("kernels").build

    def config(self, *values):
        return self.module("configs").Config(*values)

    def key(self, *values, arch="sm_90a"):
        return self.build.key(self.config(*values), arch=arch)

    def get(self, *values, arch="sm_90a"):
        """The kernel of a configuration, looked up or compiled."""
        return self.build.get(self.config(*values), arch=arch)

    def python(self, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a program in a new process that finds this project and its cache; `Config` and `build` are there."""
        start = (
            f"import sys\nfrom forge_core.cache import builder_at\nfrom {self.name}.configs import Config\n"
            f"build = builder_at({self.path!r})\n"
        )
        return self.bare_python(start + program, **environment)

    def bare_python(self, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The same for a program that imports what it needs."""
        found = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.root.parent), *filter(None, sys.path)])}
        command = [sys.executable, "-c", program.replace("PROJECT", self.name)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={**found, **environment})

    @property
    def path(self) -> str:
        """The builder's import path."""
        return f"{self.name}.kernels:build"

    @property
    def store(self) -> Store:
        return Store(self.cache / f"kernels-{FORMAT}")

    def stored(self) -> int:
        return len(list(self.store.entries()))

    def entry(self, *values) -> Path:
        """The folder of a kernel in the store."""
        return self.store.root / "sm_90a" / self.key(*values).digest

    def edit(self, old: str, new: str) -> None:
        """Changes the source of the kernels, before they are imported."""
        file = self.root / "kernels.py"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
        sources.STARTED_NS = time.time_ns()

    def did(self, what: str) -> int:
        """How often the fake compiler compiled, or loaded."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return sum(line.startswith(what) for line in lines)

    def fresh(self) -> None:
        """As a new process: nothing in memory, nothing logged yet."""
        self.build.clear()
        files._told.clear()


@pytest.fixture(scope="session")
def forge() -> Callable[..., Result]:
    """Runs ``forge-cute`` with these words, and with these environment variables."""
    return lambda *words, **variables: CliRunner().invoke(main, [*map(str, words)], env=variables)


@pytest.fixture(scope="session")
def python() -> Callable[..., str]:
    """Runs Python with these words, and with these environment variables; gives what it prints."""

    def run(*words: Any, **variables: str) -> str:
        command, environment = [sys.executable, *map(str, words)], {**os.environ, **variables}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def git() -> Callable[..., str]:
    """Runs git in a folder; gives what it prints."""

    def run(folder: Path, *words: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
        done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes a shell script that stands for a program."""

    def write(name: str, commands: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{commands}\n")
        path.chmod(0o755)
        return path

    return write


@pytest.fixture(scope="session")
def dsl() -> None:
    """Skips a test where nothing can be compiled; on Linux, a missing DSL is a failure."""
    if sys.platform != "linux":
        pytest.skip("the CuTe DSL exists for Linux only")


@pytest.fixture
def no_variables(monkeypatch):
    """No FORGE_* variable is set."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)


@pytest.fixture
def project(no_variables, monkeypatch, request):
    """An importable project with a fake compiler, a cache folder of its own, and no FORGE_* variable."""
    texts = {"__init__": "", "helper": HELPER, "configs": CONFIGS, "kernels": KERNELS}
    yield from _project(monkeypatch, request, texts)


@pytest.fixture
def real_project(no_variables, monkeypatch, request):
    """The same with one kernel for the real compiler."""
    yield from _project(monkeypatch, request, {"__init__": "", "configs": REAL_CONFIGS, "kernels": REAL_KERNELS})


def _project(monkeypatch, request, texts) -> Iterator[Project]:
    name = f"fake_kernels_{abs(hash(request.node.nodeid)) % 10**9}"
    base = Path(tempfile.mkdtemp(prefix="forge-test-"))
    base.chmod(0o755)
    made = Project(name, base, base / "project" / name, base / "cache", base / "log")
    made.root.mkdir(parents=True)
    for file, text in texts.items():
        (made.root / f"{file}.py").write_text(text.replace("PROJECT", name))
    made.log.touch()
    made.log.chmod(0o666)
    monkeypatch.syspath_prepend(str(made.root.parent))
    monkeypatch.setenv("FORGE_CACHE_DIR", str(made.cache))
    monkeypatch.setenv("FAKE_LOG", str(made.log))
    monkeypatch.setattr(files, "_told", set())
    # As in a process that starts once the project is there.
    monkeypatch.setattr(sources, "STARTED_NS", time.time_ns())
    yield made
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]
    for path in [base, *base.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(base)


@pytest.fixture
def in_child():
    """Runs a function in a forked process; gives its exit code."""

    def run(function, *args):
        child = multiprocessing.get_context("fork").Process(target=function, args=args)
        child.start()
        child.join(60)
        if child.is_alive():
            child.kill()
            child.join()
            pytest.fail("the child hung")
        return child.exitcode

    return run


@pytest.fixture
def stand_in():
    """Makes the benchmark of a function that stands for an operator with two variants."""
    from forge_core.bench import OperatorBench, one_pass

    def make(name, function, reference=None, **more):
        return OperatorBench(
            name=name,
            call=lambda variant: function,
            variants=lambda: ["naive", "wide"],
            explain=lambda inputs, variant: None,
            reference=reference or function,
            traffic=one_pass,
            **more,
        )

    return make


@pytest.fixture
def foreign(monkeypatch):
    """Makes a path look as if it belonged to another user."""

    def make(path: Path) -> None:
        if os.geteuid() == 0:
            os.lchown(path, 12345, -1)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: 12345)

    return make


@pytest.fixture
def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """CPU tensors launch as if they were on an H200; call it with what stands for all builders of kernels."""

    def plain(x: Any) -> bool:
        listens = type(x) not in guard.PLAIN_TYPES or x.layout is not torch.strided or x.is_nested
        return not (listens or x.is_conj() or x.is_neg())

    def plant(builder: Any) -> None:
        found: Any = builder
        if not isinstance(builder, CompileCached):
            found = SimpleNamespace(get=lambda config, arch: SimpleNamespace(launch=builder(config, arch=arch)))
        monkeypatch.setattr(table, "builder_at", lambda path: found)

    monkeypatch.setattr(table.devices, "query", lambda device: SPECS["H200"])
    monkeypatch.setattr(table, "_current_device", lambda: -1)  # what a CPU tensor's get_device() is
    monkeypatch.setattr(table, "_raw_stream", lambda index: 77)
    monkeypatch.setattr(table, "_new", lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(guard, "plain_cuda", plain)
    return plant
