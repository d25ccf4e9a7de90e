"""The real compiler, worker processes, bundles and the command."""

from __future__ import annotations

import base64
import errno
import hashlib
import importlib.metadata
import json
import logging
import os
import shlex
import shutil
import stat
import sys
import time
from pathlib import Path

import pytest

from forge_core.cache import bundle, parallel
from forge_core.cache import compile as compiling
from forge_core.cache.key import canonical, tag
from forge_core.cache.parallel import Request, compile_all
from forge_core.cache.store import Entry, Store
from forge_core.errors import CacheError, MissingKernelError
from forge_core.settings import use_settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernels are compiled and loaded on Linux only")

ARCH = "sm_90a"


@pytest.fixture
def cache(forge):
    """Runs ``forge-cute cache``; gives what it printed, or its JSON."""

    def call(*args, status=0):
        result = forge("cache", *args)
        assert result.exit_code == status, result.output + repr(result.exception)
        return json.loads(result.stdout) if "--json" in args and status < 2 else result.output

    return call


def requests(project, *tiles):
    return [Request(project.path, project.config(tile), ARCH) for tile in tiles]


def outcomes_of(project, *tiles, jobs=2, **more):
    """The outcomes of compiling configurations of these tiles."""
    return compile_all(requests(project, *tiles), project.store, jobs=jobs, **more)


def at_import(project, code):
    """Adds a statement to the module of the kernels."""
    project.edit("def build(config):", f"{code}\n\n\ndef build(config):")


def in_build(project, code):
    """Adds a statement to the builder."""
    project.edit("return config.edge", f"{code}\n    return config.edge")


def one_kernel(project, *tile):
    """The options of ``forge-cute cache warm`` and ``build`` that name a kernel."""
    return ["--kernel", project.path, "--config", canonical(tag(project.config(*tile)))]


# ------------------------------------------------------------------------------------------------- the real compiler

LOAD = """
import os, time
kernel = build.get(Config(), arch="sm_90a")
print(kernel.origin, "cutlass" in sys.modules, type(kernel.launch).__module__.partition(".")[0])
from forge_core.errors import MissingKernelError
try:
    build.get(Config(64), arch="sm_90a")
except MissingKernelError as error:
    print("missing", error.command)
print("cutlass" in sys.modules)
"""


def test_a_new_process_loads_what_another_compiled_without_the_compiler(real_project):
    entry, compiled = real_project.build.ensure(real_project.config(), arch=ARCH, store=real_project.store)
    assert compiled and entry.linked
    assert not real_project.build.ensure(real_project.config(), arch=ARCH, store=real_project.store)[1]
    done = real_project.python(LOAD, FORGE_JIT="0")
    assert done.returncode == 0, done.stderr
    first, missing, last = done.stdout.splitlines()
    assert (first, last) == ("cache False tvm_ffi", "False"), done.stderr
    assert missing.startswith(f"missing forge-cute cache warm --arch {ARCH} --kernel {real_project.path} --config ")


def test_the_stored_object_holds_the_kernel_and_names_its_libraries(real_project):
    store = real_project.store
    entry, _ = real_project.build.ensure(real_project.config(), arch=ARCH, store=store)
    data = entry.object.read_bytes()
    assert data[:4] == b"\x7fELF" and len(data) < 100_000
    assert entry.key.symbol.encode() in data and b"forge_env_check" in data
    # By name, not by path or by copy: they are loaded from their own wheels.
    assert b"libcute_dsl_runtime.so" in data and b"libtvm_ffi.so" in data
    assert str(Path(compiling.__file__).parents[3]).encode() not in data
    assert b"RUNPATH" not in data
    launch, _ = real_project.build._compiler.load(entry.object, entry.key.symbol, linked=True)
    with pytest.raises(TypeError, match=r"Expects 4 parameters .*DataPointer.*Stream"):  # so it is called
        launch()
    with pytest.raises((AttributeError, RuntimeError, OSError), match="forge_other"):
        real_project.build._compiler.load(entry.object, "forge_other", linked=True)


def test_what_runs_is_what_is_stored(real_project):
    first = real_project.get()
    real_project.fresh()
    second = real_project.get()
    assert (first.origin, second.origin) == ("compiled", "cache")
    assert type(first.launch) is type(second.launch)
    assert first.seconds > 0 and abs(first.seconds - second.seconds) < 1e-3


def test_without_a_linker_the_object_is_kept_as_it_is(real_project, monkeypatch, caplog):
    monkeypatch.setattr(compiling, "find_linker", lambda: None)
    first = real_project.get()
    assert "install binutils" in caplog.text
    (entry,) = real_project.store.entries()
    assert entry.file == "kernel.o" and not entry.linked
    real_project.fresh()
    assert (first.origin, real_project.get().origin) == ("compiled", "cache")
    (real_project.store.root / ARCH).rename(real_project.base / ARCH)
    store = Store(real_project.base / "bundle")
    real_project.build.ensure(real_project.config(), arch=ARCH, store=store)
    with pytest.raises(CacheError, match="Install binutils and build anew"):
        bundle.finish(store)


@pytest.mark.parametrize("name", ["ld", "cc"])
def test_every_linker_makes_the_same_thing(real_project, monkeypatch, name):
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} here")
    monkeypatch.setattr(compiling.shutil, "which", lambda asked: path if asked == name else None)
    command = compiling.find_linker.__wrapped__()
    assert command[0] == path
    monkeypatch.setattr(compiling, "find_linker", lambda: command)
    entry, _ = real_project.build.ensure(real_project.config(), arch=ARCH, store=real_project.store)
    assert entry.linked
    real_project.build._compiler.load(entry.object, entry.key.symbol, linked=True)


def test_a_linker_that_fails_is_told(real_project, monkeypatch, caplog):
    monkeypatch.setattr(compiling, "find_linker", lambda: (shutil.which("false"),))
    real_project.get()
    assert "false failed" in caplog.text


# ------------------------------------------------------------------------------------------------------ FORGE_JIT=0


def test_with_compiling_switched_off_a_missing_kernel_names_key_and_command(project, cache):
    with use_settings(jit=False), pytest.raises(MissingKernelError, match="FORGE_JIT=0 disables compilation") as caught:
        project.get(32)
    key = project.key(32)
    assert key.digest in str(caught.value) and caught.value.command in str(caught.value)
    assert caught.value.key == key.digest
    assert project.did("compiled") == 0
    # The command is taken at its word.
    words = shlex.split(caught.value.command)
    assert words[:3] == ["forge-cute", "cache", "warm"]
    told = cache(*words[2:], "--json")
    assert (told["kernels"], told["compiled"], told["failed"]) == (1, 1, [])
    with use_settings(jit=False):
        assert project.get(32).origin == "cache"


# ---------------------------------------------------------------------------------------------------------- workers


def test_workers_compile_each_kernel_once_and_see_no_gpu(project, monkeypatch):
    seen = "[os.environ[name] for name in ('CUDA_VISIBLE_DEVICES', 'CUTE_DSL_ARCH')]"
    in_build(project, f"note('sees ' + repr({seen}))")
    in_build(project, "print('not an answer')")
    wanted = [Request(project.path, project.config(tile), arch) for tile in (16, 32, 16) for arch in (ARCH, "sm_80")]
    seen = []
    outcomes = compile_all(wanted, project.store, jobs=2, on_done=seen.append)
    assert [(outcome.status, outcome.error) for outcome in outcomes] == [("compiled", "")] * 4
    assert len(seen) == 4 and project.did("compiled") == 4 and project.did("sees ['', 'sm_100a']") == 4
    assert project.stored() == 4
    assert all(outcome.bytes == 5000 and outcome.seconds == 0.5 for outcome in outcomes)
    monkeypatch.setattr(parallel.subprocess, "Popen", None)  # nothing is started when all is there
    again = compile_all(wanted, project.store)
    assert [outcome.status for outcome in again] == ["present"] * 4
    assert {outcome.digest for outcome in again} == {outcome.digest for outcome in outcomes}


WITHOUT_A_DRIVER = """
import cutlass
import cutlass.cute as cute
from cutlass.base_dsl.runtime import cuda

asked = []
ask, cuda.cuda.cuInit = cuda.cuda.cuInit, lambda flags: asked.append(flags) or ask(flags)

@cute.kernel
def kernel(mX: cute.Tensor):
    mX[cute.arch.thread_idx()[0]] = 1.0

@cute.jit
def launch(mX: cute.Tensor):
    kernel(mX).launch(grid=(1, 1, 1), block=(32, 1, 1))

x = cute.runtime.make_fake_tensor(cutlass.Float32, (32,), (1,), assumed_align=4)
made = [cute.compile(launch, x, options=f"--enable-tvm-ffi --gpu-arch {arch}") for arch in ("sm_90a", "sm_80")]
print(len(made), len(asked))
"""


def test_a_compiler_that_is_told_an_architecture_looks_for_no_gpu(python, dsl, tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(WITHOUT_A_DRIVER)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("CUTE_DSL_ARCH", raising=False)
    assert python(program) == "2 1\n"
    assert python(program, CUTE_DSL_ARCH="sm_100a") == "2 0\n"


def test_several_workers_import_once_and_fork(project):
    at_import(project, "note(f'imported {len(os.listdir(\"/proc/self/task\"))}')")
    in_build(project, "note(f'by {os.getpid()} of {os.getppid()}')")
    outcomes = outcomes_of(project, *range(20, 28), jobs=4)
    assert [outcome.status for outcome in outcomes] == ["compiled"] * 8
    assert project.did("imported 1") == 1  # by one thread, so that it may fork
    pairs = {tuple(line.split()[1::2]) for line in project.log.read_text().splitlines() if line.startswith("by ")}
    assert len(pairs) == 8
    (server,) = {parent for _, parent in pairs}
    assert server not in {str(os.getpid()), *(worker for worker, _ in pairs)}


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_kernel_that_fails_or_ends_its_worker_does_not_stop_the_others(project, jobs):
    in_build(project, "1 // (config.tile - 8)")
    outcomes = outcomes_of(project, 8, 13, 16, 17, 13, 18, jobs=jobs)
    assert [outcome.status for outcome in outcomes] == ["failed", "failed", *["compiled"] * 3]
    assert "ZeroDivisionError" in outcomes[0].error
    assert "the worker ended: exit status 3" in outcomes[1].error


@pytest.mark.parametrize(
    "deed, told",
    [
        ("raise SystemExit(5)", "exit status 5"),
        ("os.kill(os.getpid(), 9)", "signal 9"),
        ("os.kill(os.getppid(), 9); time.sleep(60)", "signal 9"),  # the server, while forks live
        ("os.write(2, b'oh no'); os._exit(4)", "exit status 4: oh no"),
    ],
)
def test_how_a_worker_ended_is_told(project, deed, told):
    in_build(project, deed)
    began = time.monotonic()
    outcomes = outcomes_of(project, 1, 2, 3)
    assert [(outcome.status, outcome.error) for outcome in outcomes] == [("failed", f"the worker ended: {told}")] * 3
    assert time.monotonic() - began < 40


def test_a_module_that_cannot_be_imported_is_told_for_each_of_its_kernels(project):
    at_import(project, "if 'CUDA' in ''.join(os.environ): raise ImportError('no kernel here')")
    assert [outcome.error for outcome in outcomes_of(project, 1, 2)] == ["ImportError: no kernel here"] * 2


def test_a_worker_that_takes_too_long_is_ended(project, monkeypatch):
    monkeypatch.setenv("FAKE_SECONDS", "60")
    monkeypatch.setattr(parallel, "TIMEOUT_S", 6.0)
    errors = {outcome.error for outcome in outcomes_of(project, 1, 2)}
    assert errors == {"the worker ended: signal 14 (it took too long)"}


def test_a_module_that_ends_whoever_imports_it_fails_alone(project):
    bad = project.root / "bad.py"
    bad.write_text("from PROJECT.kernels import build\n\nraise SystemExit(7)\n".replace("PROJECT", project.name))
    good = requests(project, 1, 2, 3, 4)
    wanted = [good[0], Request(f"{project.name}.bad:build", project.config(5), ARCH), *good[1:]]
    outcomes = compile_all(wanted, project.store, jobs=2)
    assert [outcome.status for outcome in outcomes] == ["compiled", "failed", *["compiled"] * 3]
    assert outcomes[1].error == "the worker ended: exit status 7"


def test_what_a_module_starts_keeps_nobody_waiting(project):
    begin = "__import__('subprocess').Popen(['sleep', '{}'])"
    at_import(project, begin.format(1))
    in_build(project, f"{begin.format(25)}; os._exit(4)")
    began = time.monotonic()
    assert {outcome.error for outcome in outcomes_of(project, 1, 2)} == {"the worker ended: exit status 4"}
    assert time.monotonic() - began < 20


def lives(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_nobody_waits_for_workers_when_the_caller_is_stopped(project):
    in_build(project, "note(f'worker {os.getpid()} {os.getppid()}'); time.sleep(config.tile)")

    def stop(outcome):
        while project.did("worker") < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        outcomes_of(project, 0, 60, on_done=stop)
    assert time.monotonic() - began < 40
    pids = {
        pid for line in project.log.read_text().splitlines() if line.startswith("worker") for pid in line.split()[1:]
    }
    assert len(pids) == 3
    end = time.monotonic() + 9
    while any(map(lives, pids)):
        assert time.monotonic() < end, pids


def test_sources_that_change_meanwhile_are_not_mistaken(project):
    project.key(16)  # this process has read the sources
    (project.root / "helper.py").write_text("SCALE = 5\n")
    (outcome,) = outcomes_of(project, 16)
    assert (outcome.status, outcome.error) == ("failed", "its sources or its environment changed meanwhile")


# ---------------------------------------------------------------------------------------------------------- bundles


@pytest.fixture
def shipped(project):
    """A bundle with two kernels."""
    store = Store(project.base / "bundle")
    for tile in (16, 32):
        project.build.ensure(project.config(tile), arch=ARCH, store=store)
    bundle.finish(store)
    return store.root


def test_a_bundle_serves_where_nothing_else_may(project, shipped):
    with use_settings(bundles=(shipped,), jit=False, cache=False):
        for tile in (16, 32):
            found = project.get(tile)
            assert (found.origin, found.launch()) == ("bundle", tile * 3)
        with pytest.raises(MissingKernelError, match=str(shipped)):
            project.get(64)
    assert not project.cache.exists()


def test_a_bundle_is_read_by_everybody_and_written_by_nobody_else(shipped):
    """As one that an administrator built, or that an image holds, and another user runs."""
    for path in [shipped, *shipped.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o644)


def test_the_cache_comes_before_a_bundle(project, shipped):
    project.get(16)
    project.fresh()
    with use_settings(bundles=(shipped,)):
        assert project.get(16).origin == "cache"
        assert project.get(32).origin == "bundle"


def test_a_bundle_is_found_as_a_packages_data(project, shipped, monkeypatch):
    site = project.base / "site"
    package = site / "acme_kernels" / "hopper"
    shutil.copytree(shipped, package)
    info = site / "acme_kernels-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-kernels\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[forge.bundles]\nHopper = acme_kernels.hopper\n\n[other]\nx = y\n")
    (site / "acme_kernels" / "__init__.py").write_text("raise ImportError('it is not imported')\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(bundle, "_installed", bundle._installed.__wrapped__)
    assert [found.root for found in bundle.all_bundles()] == [package]
    assert [e.value for e in importlib.metadata.entry_points(group=bundle.GROUP)] == ["acme_kernels.hopper"]
    with use_settings(jit=False):
        assert project.get(16).origin == "bundle"


def test_a_bundle_is_checked_as_strictly_as_the_cache(project, shipped, caplog):
    (entry,) = [found for found in Store(shipped).entries() if '"tile":["int",16]' in found.key.config]
    os.truncate(entry.object, 10)
    before = sorted(shipped.rglob("*"))
    with use_settings(bundles=(shipped,), jit=False, cache=False):
        with pytest.raises(MissingKernelError):
            project.get(16)
        assert "is damaged and is not used" in caplog.text
        assert sorted(shipped.rglob("*")) == before  # nothing in it is moved
        shipped.chmod(0o777)
        with pytest.raises(CacheError, match=r"can be written by other users.*chmod -R go-w"):
            project.get(32)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "bundle.json").unlink(), "expected a bundle of kernels"),
        (lambda folder: (folder / "bundle.json").write_text("{}"), "expected a bundle of kernels"),
        (lambda folder: (folder / "bundle.json").write_text('{"format": 0}'), "expected a bundle of format 1, got 0"),
        (shutil.rmtree, "expected a bundle of kernels"),
    ],
)
def test_what_is_named_and_is_no_bundle_is_an_error(project, shipped, spoil, message):
    spoil(shipped)
    with use_settings(bundles=(shipped,)), pytest.raises(CacheError, match=message):
        project.get(16)


def test_a_bundle_holds_kernels_and_nothing_of_the_compiler(real_project, cache):
    out = real_project.base / "out"
    command = ["build", "--out", str(out), *one_kernel(real_project), "--arch", ARCH, "--arch", "sm_100a", "-j", "1"]
    assert "use it with FORGE_BUNDLES=" in cache(*command)
    told = json.loads((out / "bundle.json").read_text())
    assert (told["kernels"], told["archs"]) == (2, ["sm_100a", "sm_90a"])
    files = [path for path in out.rglob("*") if path.is_file()]
    assert sorted(path.name for path in files) == ["bundle.json", *["kernel.json"] * 2, *["kernel.so"] * 2]
    # Not one file of the compiler's distributions, whole or as a part.
    compiler = [d for d in importlib.metadata.distributions() if d.name.startswith("nvidia-cutlass")]
    theirs = [file for distribution in compiler for file in distribution.files or ()]
    assert len(theirs) > 100
    hashes = {str(file.hash.value) for file in theirs if file.hash is not None}
    for path in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
        assert digest not in hashes
        assert path.stat().st_size < 100_000 and b"!<arch>" not in path.read_bytes()
    assert cache("verify", "--bundle", str(out), "--json")["sound"] == 2
    assert len(cache("ls", "--bundle", str(out), "--json")) == 2
    # Another folder's content is not overwritten.
    command[2] = str(real_project.root)
    assert "is not empty: expected a bundle" in cache(*command, status=1)


# ------------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def filled(project):
    for tile, arch in ((16, ARCH), (32, ARCH), (64, "sm_100a")):
        project.get(tile, arch=arch)
    return project


def test_ls_lists_and_selects(filled, cache):
    text = cache("ls")
    assert "3 kernels" in text and "Config(tile=32)" in text and str(filled.store.root) in text
    found = cache("ls", "--json")
    assert {one["config"] for one in found} == {f"Config(tile={tile})" for tile in (16, 32, 64)}
    assert all(len(one["digest"]) == 64 and one["bytes"] == 5000 and one["compile_s"] == 0.5 for one in found)
    assert [one["config"] for one in cache("ls", "--arch", "sm_100a", "--json")] == ["Config(tile=64)"]
    assert cache("ls", "--kernel", "nothing", "--json") == []


def test_info_shows_all_of_one(filled, cache):
    key = filled.key()
    told = cache("info", key.digest[:10], "--json")
    assert told["key"] == key.describe() and told["builder"] == filled.path
    text = cache("info", key.digest[:10])
    for part in (f"{filled.name}.helper", "nvidia-cutlass-dsl", key.digest, key.options, "toolchain:"):
        assert part in text
    assert "begins with 'zz', found 0" in cache("info", "zz", status=1)
    assert "begins with '', found 3" in cache("info", "", status=1)


def test_stats_count_and_say_where(filled, cache):
    told = cache("stats", "--json")
    assert (told["kernels"], told["bytes"], told["compile_s"]) == (3, 15000, 1.5)
    assert told["by_arch"] == {"sm_100a": 1, ARCH: 2} and told["by_kernel"] == {filled.path: 3}
    assert told["on"] and told["folder"] == str(filled.store.root)
    text = cache("stats")
    assert "3 kernels, 15.0 kB of 2.1 GB" in text and "1.5 s of compiling saved" in text


def test_verify_finds_damage_and_touches_nothing(filled, cache):
    assert cache("verify", "--json") == {"sound": 3, "damaged": []}
    folder = filled.entry()
    os.truncate(folder / "kernel.so", 7)
    told = cache("verify", "--json", status=1)
    assert told["sound"] == 2 and told["damaged"][0]["folder"] == str(folder)
    assert "7 bytes instead of 5000" in told["damaged"][0]["damage"]
    assert "2 sound, 1 damaged" in cache("verify", status=1)
    (folder / "kernel.json").write_text("")
    assert "is not of this kernel" in cache("verify", status=1)


def test_prune_removes_what_is_of_no_use(filled, cache):
    store = filled.store
    entries = {found.key.config: found for found in store.entries()}
    old = next(found for config, found in entries.items() if "32]" in config)
    os.utime(old.folder, (1, 1))
    (store.root / "work" / "left").mkdir(parents=True)
    os.utime(store.root / "work" / "left", (1, 1))
    (store.root / "work" / "being written").mkdir()
    assert cache("prune", "--json") == {
        "leftovers": [str(store.root / "work" / "left")],
        "damaged": [],
        "stale": [],
        "old": [],
        "over the limit": [],
    }
    assert cache("prune", "--older-than", "30", "--json")["old"] == [str(old.folder)]
    assert cache("prune", "--stale", "--json")["stale"] == []
    (filled.root / "helper.py").write_text("SCALE = 4\n")
    assert len(cache("prune", "--stale", "--json")["stale"]) == 2
    assert filled.stored() == 0
    assert "removed: nothing" in cache("prune")
    assert (store.root / "work" / "being written").is_dir()


def test_prune_knows_other_toolchains_and_limits(filled, cache, monkeypatch):
    assert len(cache("prune", "--max-bytes", "9K", "--json")["over the limit"]) == 2
    monkeypatch.setattr("forge_core.cache.store.toolchain", lambda: (("nvidia-cutlass-dsl", "99"),))
    assert len(filled.store.prune(stale=True)["stale"]) == 1
    assert "expected a number of bytes such as 500M" in cache("prune", "--max-bytes", "much", status=3)


def test_clear_removes_all_or_one_arch(filled, cache):
    assert cache("clear", "--arch", "b200", "--json")["removed"] == 1
    assert filled.stored() == 2
    assert "removed 2 kernels" in cache("clear")
    assert filled.stored() == 0


def test_an_empty_cache_is_no_error(project, cache):
    assert cache("ls", "--json") == []
    assert cache("stats", "--json")["kernels"] == 0
    assert cache("verify", "--json") == {"sound": 0, "damaged": []}
    assert cache("clear", "--json")["removed"] == 0
    assert not any(cache("prune", "--json").values())
    assert not project.cache.exists()


def test_wrong_usage_is_told(project, cache, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "no GPU tells the architecture" in cache("warm", status=3)
    assert "--kernel and --config go together" in cache("warm", "--arch", ARCH, "--kernel", "x:y", status=3)
    assert "--config: " in cache("warm", "--arch", ARCH, "--kernel", "x:y", "--config", '["float", 1]', status=3)
    monkeypatch.setenv("FORGE_CACHE", "0")
    assert "nothing to warm" in cache("warm", "--arch", ARCH, status=1)
    project.store.root.mkdir(parents=True)
    project.store.root.chmod(0o777)
    assert "can be written by other users" in cache("ls", status=1)


def test_a_folder_that_cannot_be_written_to_is_told_before_anything_is_compiled(project, cache, monkeypatch):
    words = ["--arch", ARCH, *one_kernel(project)]
    file = project.base / "file"
    file.write_text("")
    monkeypatch.setenv("FORGE_CACHE_DIR", str(file / "cache"))
    told = cache("warm", *words, status=1)
    assert "nothing can be written there (File exists). Choose another folder by FORGE_CACHE_DIR" in told
    assert "by --out" in cache("build", "--out", str(file / "bundle"), *words, status=1)
    assert project.did("compiled") == 0


def test_kernels_that_cannot_be_removed_are_told(filled, cache, monkeypatch):
    def refused(**where):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("forge_core.cache.files.tempfile.TemporaryFile", refused)
    for command in ("clear", "prune"):
        assert "nothing can be written there (Permission denied)" in cache(command, status=1)
    assert filled.stored() == 3


def test_a_kernel_is_built_for_a_gpu_by_its_name(project, cache):
    out = project.base / "out"
    archs = ["--arch", "H100", "--arch", "H200", "--arch", "rtx 4090"]
    cache("build", "--out", str(out), *one_kernel(project), *archs, "-j", "1")
    assert json.loads((out / "bundle.json").read_text())["archs"] == ["sm_89", "sm_90a"]
    assert [one["arch"] for one in cache("ls", "--bundle", str(out), "--arch", "h200", "--json")] == ["sm_90a"]


def test_a_failed_kernel_is_exit_status_1_and_named(project, cache):
    words = ["--arch", ARCH, *one_kernel(project, 13), "-j", "1"]
    text = cache("warm", *words, status=1)
    assert "failed: " in text and project.path in text and "the worker ended: exit status 3" in text
    text = cache("build", *words, "--out", str(project.base / "out"), status=1)
    assert "the worker ended: exit status 3" in text and "so there is no bundle" in text


def test_the_kernels_of_the_suites_are_known_without_a_gpu_or_the_compiler(project):
    pytest.importorskip("forge_week0_transpose")
    program = (
        "from forge_core.bench.kernels import requests\n"
        "found = requests(['smoke'], ['sm_90a', 'sm_100a'])\n"
        "print(len(found), len({r.arch for r in found}), 'cutlass' in sys.modules)\n"
        "print(*sorted({r.builder for r in found}))\n"
    )
    done = project.python(program)
    count, archs, imported = done.stdout.splitlines()[0].split()
    assert int(count) >= 20 and (archs, imported) == ("2", "False"), done.stderr
    assert "forge_week0_transpose.kernels.vectorized:build" in done.stdout


def test_hits_are_logged_at_debug(project, caplog):
    with caplog.at_level(logging.DEBUG, logger="forge_core"):
        project.get()
        caplog.clear()
        project.get()
    assert [record.levelname for record in caplog.records] == ["DEBUG"]
    assert "cache hit" in caplog.text
    assert all(isinstance(found, Entry) for found in project.store.entries())


# ------------------------------------------------------------------------------------------- the bench and the tests


def test_what_is_missing_is_compiled_ahead_and_little_is_not(project, monkeypatch):
    from forge_core.bench import kernels

    asked = []
    monkeypatch.setattr(kernels, "compile_all", lambda requests, store, **kwargs: asked.extend(requests) or asked)
    wanted = requests(project, *range(16, 22))
    for settings in ({"jit": False}, {"cache": False}):
        with use_settings(**settings):
            assert kernels.ahead(wanted) == []
    project.get(16)
    assert [request.config.tile for request in kernels.ahead(wanted)] == [17, 18, 19, 20, 21]
    for tile in (17, 18):
        project.get(tile)
    assert kernels.ahead(wanted) == []
    assert len(asked) == 5


def test_the_tests_can_be_warmed_once_for_all_workers(project, monkeypatch, request):
    from types import SimpleNamespace

    from forge_core import pytest_plugin
    from forge_core.bench import kernels

    asked = []
    monkeypatch.setattr(kernels, "ahead", asked.append)
    monkeypatch.setattr(kernels, "requests", lambda names, archs: (names, archs))
    monkeypatch.setenv("FORGE_ARCH", ARCH)

    def start(names, **more):
        pytest_plugin.pytest_sessionstart(SimpleNamespace(config=SimpleNamespace(getoption=lambda name: names, **more)))

    start([])
    start(["week1"], workerinput={})
    assert asked == []
    start(["week1"])
    assert asked == [(["week1"], (ARCH,))]
    assert request.config.getoption("--forge-warm") == []
