"""A cached builder in one process, and the real compiler."""

from __future__ import annotations

import logging
import multiprocessing
import threading
from dataclasses import dataclass

import pytest

from forge_core import toolchain as toolchains
from forge_core.cache import CompileCached, Compiled, KernelKey, Traceable, compile_cached, compile_lock
from forge_core.errors import CompileError, UnsupportedError
from forge_core.settings import use_settings


@dataclass(frozen=True)
class Config:
    tile: int = 16
    padded: bool = True


class Counting:
    """A compiler that counts what it is asked for."""

    def __init__(self):
        self.made = []

    def compile(self, build, config, key, *, keep=False):
        self.made.append((config, key.arch, "--enable-assertions" in key.options))
        return Compiled(launch=lambda *args: args, key=key, seconds=0.0)


@pytest.fixture
def counted():
    """A cached builder whose compiler is replaced by one that counts."""

    def build(config):
        """What to trace."""
        raise AssertionError("the compiler is replaced")

    made = compile_cached(build, compiler=Counting())
    made.made = made._compiler.made
    return made


def test_the_decorator_keeps_name_and_docstring(counted):
    assert isinstance(counted, CompileCached)
    assert counted.__doc__ == "What to trace."
    assert counted.name == f"{__name__}:counted.<locals>.build"


def test_an_equal_configuration_needs_no_key_and_one_of_other_types_is_another(counted, monkeypatch):
    first = counted(Config(), arch="sm_90a")
    make = KernelKey.make
    keys = []
    monkeypatch.setattr(KernelKey, "make", lambda *args, **kwargs: keys.append(args) or make(*args, **kwargs))
    assert counted(Config(), arch="sm_90a") is first
    assert keys == []
    one, true = Config(tile=1), Config(tile=True)
    assert one == true
    assert counted(one, arch="sm_90a") is not counted(true, arch="sm_90a")
    assert counted(Config(tile=True), arch="sm_90a") is counted(true, arch="sm_90a") is not counted(one, arch="sm_90a")
    assert len(counted.made) == 3
    with pytest.raises(TypeError, match="a value of type list cannot be part of a kernel's key"):
        counted(Config(tile=[1]), arch="sm_90a")


def _compile_in_child(build, answer):
    answer.put(build(Config(), arch="sm_90a")(1, 2))


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_during_a_compilation_does_not_lock_the_child(counted):
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    with compile_lock():
        child = context.Process(target=_compile_in_child, args=(counted, answer), daemon=True)
        # The lock is reentrant, so it has to be another thread that forks while this one holds it.
        thread = threading.Thread(target=child.start)
        thread.start()
        thread.join()
        assert answer.get(timeout=20) == (1, 2)
    child.join(timeout=20)
    assert child.exitcode == 0


def test_without_the_dsl_the_error_says_how_to_get_it(monkeypatch):
    @compile_cached
    def build(config):
        raise AssertionError("not reached")

    monkeypatch.setattr(toolchains.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UnsupportedError, match=r"cutlass and tvm_ffi cannot be imported\. Install it with: pip install"
    ):
        build(Config(), arch="sm_90a")


# ------------------------------------------------------------------------------------------------- the real compiler


@pytest.mark.usefixtures("dsl")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_a_kernel_is_compiled_for_what_was_asked(arch, caplog):
    from forge_core.env_check.kernel import AddOneConfig, build

    with caplog.at_level(logging.DEBUG, logger="forge_core"):
        compiled = build.compile(AddOneConfig(), arch=arch)
    assert f".target {arch}" in compiled.ptx
    assert "forge_env_check" in compiled.ptx
    assert "cutlass" not in compiled.ptx.split(".entry")[1].split("(")[0]
    assert compiled.seconds > 0
    assert compiled.key.arch == arch
    assert f"[{arch}]" in caplog.text


@pytest.mark.usefixtures("dsl")
def test_what_the_config_says_is_in_the_code():
    from forge_core.env_check.kernel import AddOneConfig, build

    ptx = {threads: build.compile(AddOneConfig(threads), arch="sm_90a").ptx for threads in (64, 256)}
    assert ".reqntid 64" in ptx[64].replace(", 1, 1", "")
    assert ".reqntid 256" in ptx[256].replace(", 1, 1", "")


@pytest.mark.usefixtures("dsl")
def test_debug_compiles_line_information():
    from forge_core.env_check.kernel import AddOneConfig, build

    plain = build.compile(AddOneConfig(), arch="sm_90a").ptx
    with use_settings(debug=True):
        debug = build.compile(AddOneConfig(), arch="sm_90a").ptx
    assert ".loc" in debug
    assert "kernel.py" in debug
    assert ".loc" not in plain


@pytest.mark.usefixtures("dsl")
def test_a_kernel_that_does_not_compile_is_a_compile_error():
    @compile_cached
    def build(config):
        return Traceable("not a function", (), name="broken")

    with pytest.raises(
        CompileError, match=r"(?s)build does not compile for sm_90a: .* \(of Config\(tile=16, padded=True\)\)"
    ) as caught:
        build(Config(), arch="sm_90a")
    assert caught.value.key == build.key(Config(), arch="sm_90a").digest
    assert caught.value.__cause__ is not None
