from __future__ import annotations

import dataclasses
import enum
import json
import logging
import multiprocessing
import sys
import threading
from dataclasses import dataclass

import pytest
import torch

from forge_core.cache import CompileCached, Compiled, KernelKey, Traceable, compile_cached, compile_lock
from forge_core.cache import toolchain as toolchains
from forge_core.cache.key import dsl_environment, tag
from forge_core.cache.toolchain import toolchain
from forge_core.errors import CompileError, UnsupportedError
from forge_core.settings import use_settings

needs_dsl = pytest.mark.skipif(sys.platform != "linux", reason="the CuTe DSL needs Linux")


class Order(enum.Enum):
    ROW = 1
    COLUMN = 2


@dataclass(frozen=True)
class Config:
    tile: int = 16
    padded: bool = True


@dataclass(frozen=True)
class SameFields:
    tile: int = 16
    padded: bool = True


@dataclass
class Mutable:
    tile: int = 16


# ---------------------------------------------------------------------------------------------------------- the key


def test_a_tag_keeps_the_type():
    values = [
        1,
        True,
        "1",
        None,
        (1,),
        ((1,),),
        torch.float16,
        "torch.float16",
        Order.ROW,
        "ROW",
        Config(),
        SameFields(),
    ]
    tags = [json.dumps(tag(value)) for value in values]
    assert len(set(tags)) == len(values)


def test_a_tag_says_every_field_of_a_dataclass():
    for field in dataclasses.fields(Config):
        changed = dataclasses.replace(Config(), **{field.name: 99})
        assert tag(changed) != tag(Config())


@pytest.mark.parametrize("value", [1.5, [1], {"a": 1}, {1}, object(), b"x", Config, lambda: None, torch.device("cpu")])
def test_a_value_whose_type_is_not_known_is_refused(value):
    with pytest.raises(TypeError, match="cannot be part of a kernel's key"):
        tag(value)


def test_a_value_that_can_change_is_refused():
    with pytest.raises(TypeError, match="Mutable is not a frozen dataclass"):
        tag(Mutable())


KEY = KernelKey(
    name="module:build",
    config='{"tile":16}',
    arch="sm_90a",
    options="--x",
    host="linux-x86_64-v3",
    toolchain=(("nvidia-cutlass-dsl", "4.8.1"),),
    environment=(("A", "1"),),
    sources=(("module", "0"),),
)


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(KernelKey)])
def test_every_field_of_the_key_changes_its_digest(field):
    other = (("b", "2"),) if isinstance(getattr(KEY, field), tuple) else "other"
    changed = dataclasses.replace(KEY, **{field: other})
    assert changed.digest != KEY.digest
    assert len(KEY.digest) == 64


def test_a_key_can_be_read():
    description = KEY.describe()
    assert description["config"] == {"tile": 16}
    assert description["toolchain"] == {"nvidia-cutlass-dsl": "4.8.1"}
    assert json.loads(json.dumps(description)) == description


def test_the_environment_enters_the_key_unless_it_only_says_where(monkeypatch):
    environ = {
        "CUTE_DSL_CACHE_DIR": "x",
        "CUTE_DSL_ARCH": "sm_90a",
        "CUTE_DSL_ENABLE_ASSERTIONS": "1",
        "CUTE_DSL_NEW_ONE": "2",
        "CUTE_DSL_EMPTY": "",
        "HOME": "x",
    }
    assert dsl_environment(environ) == (("CUTE_DSL_ENABLE_ASSERTIONS", "1"), ("CUTE_DSL_NEW_ONE", "2"))
    before = KernelKey.make("f", Config(), arch="sm_90a", options="", sources=())
    monkeypatch.setenv("CUTE_DSL_NEW_ONE", "2")
    assert KernelKey.make("f", Config(), arch="sm_90a", options="", sources=()) != before


@needs_dsl
def test_the_toolchain_names_the_cuda_variant():
    names = dict(toolchain())
    assert {"nvidia-cutlass-dsl", "apache-tvm-ffi"} <= set(names)
    assert any(name.startswith("nvidia-cutlass-dsl-libs-") for name in names)
    assert names["cuda"] in ("cu12", "cu13")


# -------------------------------------------------------------------------------------------------------- the cache


class Counting:
    """A compiler that counts what it is asked for."""

    def __init__(self):
        self.made = []

    def compile(self, build, config, key, *, keep_ptx=False):
        self.made.append((config, key.arch, "--enable-assertions" in key.options))
        return Compiled(launch=lambda *args: args, key=key, seconds=0.0)


@pytest.fixture
def counted():
    """A cached builder whose compiler is replaced by one that counts."""

    def build(config):
        """What to trace."""
        raise AssertionError("the compiler is replaced")

    made = CompileCached(build, compiler=Counting())
    made.made = made._compiler.made
    return made


def test_the_decorator_keeps_name_and_docstring(counted):
    assert isinstance(counted, CompileCached)
    assert counted.__doc__ == "What to trace."
    assert counted.name == f"{__name__}:counted.<locals>.build"


def test_a_second_request_is_a_hit(counted):
    first = counted(Config(), arch="sm_90a")
    assert counted(Config(), arch="sm_90a") is first
    assert (len(counted.made), counted.hits, len(counted)) == (1, 1, 1)


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


def test_config_arch_and_debug_are_kept_apart(counted):
    kernels = {id(counted(Config(), arch="sm_90a"))}
    kernels.add(id(counted(Config(tile=32), arch="sm_90a")))
    kernels.add(id(counted(SameFields(), arch="sm_90a")))
    kernels.add(id(counted(Config(), arch="sm_100a")))
    with use_settings(debug=True):
        kernels.add(id(counted(Config(), arch="sm_90a")))
    assert len(kernels) == len(counted.made) == 5
    assert [debug for _, _, debug in counted.made] == [False] * 4 + [True]
    assert counted.hits == 0


def test_clear_forgets(counted):
    counted(Config(), arch="sm_90a")
    counted.clear()
    counted(Config(), arch="sm_90a")
    assert (len(counted.made), counted.hits) == (2, 0)


def test_hits_are_logged_at_debug(counted, caplog):
    counted(Config(), arch="sm_90a")
    with caplog.at_level(logging.DEBUG, logger="forge_core"):
        counted(Config(), arch="sm_90a")
    assert [r.levelname for r in caplog.records] == ["DEBUG"]
    assert "cache hit" in caplog.text
    assert "sm_90a" in caplog.text


def test_threads_that_ask_at_once_compile_once(counted, monkeypatch):
    compile_now, started = counted._compiler.compile, threading.Barrier(4)

    def slow(*args, **kwargs):
        threading.Event().wait(0.05)
        return compile_now(*args, **kwargs)

    monkeypatch.setattr(counted._compiler, "compile", slow)

    def ask():
        started.wait()
        counted(Config(), arch="sm_90a")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(counted.made), counted.hits) == (1, 3)


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


@needs_dsl
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


@needs_dsl
def test_what_the_config_says_is_in_the_code():
    from forge_core.env_check.kernel import AddOneConfig, build

    ptx = {threads: build.compile(AddOneConfig(threads), arch="sm_90a").ptx for threads in (64, 256)}
    assert ".reqntid 64" in ptx[64].replace(", 1, 1", "")
    assert ".reqntid 256" in ptx[256].replace(", 1, 1", "")


@needs_dsl
def test_debug_compiles_line_information():
    from forge_core.env_check.kernel import AddOneConfig, build

    plain = build.compile(AddOneConfig(), arch="sm_90a").ptx
    with use_settings(debug=True):
        debug = build.compile(AddOneConfig(), arch="sm_90a").ptx
    assert ".loc" in debug
    assert "kernel.py" in debug
    assert ".loc" not in plain


@needs_dsl
def test_a_kernel_that_does_not_compile_is_a_compile_error():
    @compile_cached
    def build(config):
        return Traceable("not a function", (), name="broken")

    with pytest.raises(
        CompileError, match=r"build: Config\(tile=16, padded=True\) does not compile for sm_90a"
    ) as caught:
        build(Config(), arch="sm_90a")
    assert caught.value.key == build.key(Config(), arch="sm_90a").digest
    assert caught.value.__cause__ is not None
    assert len(build) == 0
