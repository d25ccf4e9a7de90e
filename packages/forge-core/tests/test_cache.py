"""A cached builder in one process, and the real compiler."""

from __future__ import annotations

import logging
import threading

import pytest

from forge_core import toolchain as toolchains
from forge_core.cache import CompileCached, KernelKey, Traceable, compile_cached
from forge_core.cache.cached import compile_lock
from forge_core.errors import CompileError, UnsupportedError
from forge_core.settings import use_settings


def test_the_decorator_keeps_name_and_docstring():
    @compile_cached
    def build(config):
        """What to trace."""

    assert isinstance(build, CompileCached)
    assert build.__doc__ == "What to trace."
    assert build.name == f"{__name__}:test_the_decorator_keeps_name_and_docstring.<locals>.build"


def test_an_equal_configuration_needs_no_key_and_one_of_other_types_is_another(project, monkeypatch):
    build, config = project.build, project.config
    first = build(config(), arch="sm_90a")
    make = KernelKey.make
    keys = []
    monkeypatch.setattr(KernelKey, "make", lambda *args, **kwargs: keys.append(args) or make(*args, **kwargs))
    assert build(config(), arch="sm_90a") is first
    assert keys == []
    one, true = config(1), config(True)
    assert one == true
    assert build(one, arch="sm_90a") is not build(true, arch="sm_90a")
    assert build(config(True), arch="sm_90a") is build(true, arch="sm_90a") is not build(one, arch="sm_90a")
    assert project.did("compiled") == 3
    with pytest.raises(TypeError, match="a value of type list cannot be part of a kernel's key"):
        build(config([1]), arch="sm_90a")


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_during_a_compilation_does_not_lock_the_child(in_child, project):
    def ask():
        assert project.get().launch() == 48

    ended = []
    with compile_lock():
        # The lock is reentrant, so it has to be another thread that forks while this one holds it.
        thread = threading.Thread(target=lambda: ended.append(in_child(ask)))
        thread.start()
        thread.join()
    assert ended == [0]


def test_without_the_dsl_the_error_says_how_to_get_it(monkeypatch):
    @compile_cached
    def build(config):
        raise AssertionError("not reached")

    monkeypatch.setattr(toolchains.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UnsupportedError, match=r"cutlass and tvm_ffi cannot be imported\. Install it with: pip install"
    ):
        build(16, arch="sm_90a")


# ------------------------------------------------------------------------------------------------- the real compiler


@pytest.fixture
def compiled(dsl):
    """Compiles the kernel of `forge-cute doctor`."""
    from forge_core.env_check.kernel import AddOneConfig, build

    return lambda *values, arch="sm_90a": build.compile(AddOneConfig(*values), arch=arch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_a_kernel_is_compiled_for_what_was_asked(compiled, arch, caplog):
    with caplog.at_level(logging.DEBUG, logger="forge_core"):
        found = compiled(arch=arch)
    assert f".target {arch}" in found.ptx
    assert "forge_env_check" in found.ptx
    assert "cutlass" not in found.ptx.split(".entry")[1].split("(")[0]
    assert found.seconds > 0
    assert found.key.arch == arch
    assert f"[{arch}]" in caplog.text


def test_what_the_config_says_is_in_the_code(compiled):
    for threads in (64, 256):
        assert f".reqntid {threads}" in compiled(threads).ptx.replace(", 1, 1", "")


def test_debug_compiles_line_information(compiled):
    plain = compiled().ptx
    with use_settings(debug=True):
        debug = compiled().ptx
    assert ".loc" in debug
    assert "kernel.py" in debug
    assert ".loc" not in plain


@pytest.mark.usefixtures("dsl")
def test_a_kernel_that_does_not_compile_is_a_compile_error():
    @compile_cached
    def build(config):
        return Traceable("not a function", (), name="broken")

    with pytest.raises(CompileError, match=r"(?s)build does not compile for sm_90a: .* \(of 16\)") as caught:
        build(16, arch="sm_90a")
    assert caught.value.key == build.key(16, arch="sm_90a").digest
    assert caught.value.__cause__ is not None
