"""The kernels on disk: whatever happens to a writer, a file or a folder, a call succeeds or says what to do."""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import multiprocessing
import os
import resource
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

from forge_core.cache import builder_at, files
from forge_core.cache import store as storing
from forge_core.cache.store import Entry, Store
from forge_core.errors import CacheError, CompileError, MissingKernelError
from forge_core.settings import use_settings

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="kernels are compiled and loaded on Linux only"),
    # The children do nothing but what is tested, and threads of the parent hold no lock that they take.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

ARCH = "sm_90a"
fork = multiprocessing.get_context("fork")


def files_below(folder):
    return sorted(path.name for path in Path(folder).rglob("*") if path.is_file())


# --------------------------------------------------------------------------------------------------------- the way


def test_memory_then_disk_then_compile(project):
    first = project.get()
    assert (first.origin, first.launch(), first.seconds) == ("compiled", 48, 0.5)
    assert project.get() is first  # another object, the same configuration
    project.fresh()
    second = project.get()
    assert (second.origin, second.launch(), second.seconds) == ("cache", 48, 0.5)
    assert project.did("compiled") == 1
    assert project.get() is second


def test_the_settings_of_a_call_keep_kernels_apart(project):
    kernels = {id(project.get(arch=arch)) for arch in (ARCH, "sm_100a", ARCH)}
    with use_settings(debug=True):
        kernels.add(id(project.get()))
    assert len(kernels) == project.did("compiled") == 3
    project.fresh()
    for arch in (ARCH, "sm_100a"):  # GPUs of different architectures share a folder
        found = project.get(arch=arch)
        assert (found.origin, found.key.arch) == ("cache", arch)


def test_without_the_cache_nothing_is_read_or_written(project):
    # The last after a kernel was stored.
    for used, stored in ((False, 0), (False, 0), (True, 1), (False, 1)):
        with use_settings(cache=used):
            assert project.get().origin == "compiled"
        assert project.stored() == stored
        assert project.cache.exists() == bool(stored)
        project.fresh()


def test_what_is_stored_is_private_and_says_what_it_is(project):
    project.get()
    folder = project.entry()
    assert files_below(folder) == ["kernel.json", "kernel.so"]
    for path in [project.cache, *project.cache.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    told = json.loads((folder / "kernel.json").read_text())
    assert told["digest"] == folder.name
    assert told["key"] == project.key().describe()
    assert told["key"]["name"] == project.path
    assert told["compiled"]["seconds"] == 0.5
    assert told["object"]["bytes"] == (folder / "kernel.so").stat().st_size


def test_a_builder_inside_a_function_is_not_shared(project):
    """What it takes from the function around it is in no key, and other processes do not find it."""
    kernels = project.module("kernels")

    def make(scale):
        def build(config):
            return config.tile * scale

        return kernels.compile_cached(build, compiler=kernels.Fake())

    assert [make(scale).get(project.config(), arch=ARCH).launch() for scale in (1, 2)] == [16, 32]
    with pytest.raises(CompileError, match="only a builder at the top level of a module"):
        make(1).ensure(project.config(), arch=ARCH, store=project.store)
    with use_settings(jit=False), pytest.raises(MissingKernelError, match="only a builder at the top level") as caught:
        make(1).get(project.config(), arch=ARCH)
    assert caught.value.command == "" and "FORGE_JIT=0 disables compilation" in str(caught.value)
    assert not project.cache.exists()


@pytest.mark.parametrize("before", ["the key", "the builder", "a helper"])
def test_a_source_that_changes_once_it_is_read_or_imported_is_used_and_not_stored(project, caplog, before):
    if before == "the key":
        project.key()
    else:  # a helper, as one that an operator's package imports
        project.module("kernels" if before == "the builder" else "helper")
    time.sleep(0.02)
    (project.root / "helper.py").write_text("SCALE = 1000\n")
    time.sleep(0.02)
    assert project.get().launch() == 48  # what this process has imported
    assert project.stored() == 0
    assert "helper.py changed after forge_core.cache was imported" in caplog.text


def test_a_builder_named_by_its_path_is_the_imported_one(project):
    before = builder_at(project.path)
    key = before.key(project.config(), arch=ARCH)
    assert before is project.build
    assert project.key() == key
    assert before(project.config(), arch=ARCH) is project.get().launch
    elsewhere = builder_at(f"{project.name}.kernels:Fake")
    with pytest.raises(CompileError, match="expected the import path of a @compile_cached builder"):
        elsewhere(project.config(), arch=ARCH)


# ------------------------------------------------------------------------------------------------- many processes


def _ask(project, start, answers):
    start.wait()
    found = project.get()
    answers.put((found.origin, found.launch()))


def test_eight_processes_race_for_one_cold_key(project, monkeypatch):
    monkeypatch.setenv("FAKE_SECONDS", "0.3")
    project.key()
    start, answers = fork.Barrier(8), fork.Queue()
    children = [fork.Process(target=_ask, args=(project, start, answers)) for _ in range(8)]
    for child in children:
        child.start()
    got = [answers.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
    assert sorted(got) == [("cache", 48)] * 7 + [("compiled", 48)]
    assert (project.did("compiled"), project.did("loaded")) == (1, 8)
    assert project.stored() == 1
    assert not list((project.store.root / "work").iterdir())


STEPS = ["compile", "kernel.so", "kernel.json", "rename"]


def _end_at(step, end, project, restore=setattr):
    """Calls ``end`` in the middle of a publication: before compiling, a file or the rename."""
    # The compiler's object: a class that is not what its source says is not published.
    places = {"compile": (project.build._compiler, "compile"), "rename": (Path, "rename")}
    owner, name = places.get(step, (storing, "write_new"))
    function = getattr(owner, name)

    def ending(*args, **more):
        if step in places or args[0].name == step:
            end()
        return function(*args, **more)

    restore(owner, name, ending)


def _die_at(project, step):
    _end_at(step, lambda: os.kill(os.getpid(), signal.SIGKILL), project)
    project.get()


@pytest.mark.parametrize("step", STEPS)
def test_a_writer_killed_at_any_step_leaves_nothing_half_done(in_child, project, step):
    assert in_child(_die_at, project, step) == -signal.SIGKILL
    project.fresh()
    key = project.key()
    assert project.store.find(key) is None
    start = time.perf_counter()
    assert project.get().launch() == 48
    assert time.perf_counter() - start < 5, "the dead writer's lock was waited for"
    assert [entry.key for entry in project.store.entries()] == [key]


def test_what_a_killed_writer_left_counts_and_is_removed_when_it_is_old(in_child, project):
    assert in_child(_die_at, project, "rename") == -signal.SIGKILL
    (left,) = (project.store.root / "work").iterdir()
    assert files.tree_bytes(left) > 5000
    for tile in (16, 32):
        project.get(tile)
    two = sum(files.tree_bytes(entry.folder) for entry in project.store.entries())
    assert project.store.evict(two + files.tree_bytes(left)) == []
    assert len(project.store.evict(two)) == 1
    assert left.exists()
    os.utime(left, (time.time() - storing.LEFTOVER_S - 1,) * 2)
    assert project.store.evict(1) and left.exists()
    with use_settings(cache_max_bytes=0):
        project.get(64)
    assert not left.exists() and project.stored() == 1


def _publish_and_remove(project, until):
    key = project.key()
    store = project.store
    text = f"{key.symbol} 48 ".ljust(200_000, "x").encode()
    while time.time() < until:
        store.publish(key, text, linked=True, seconds=1.0)
        store.remove(store.root / ARCH / key.digest)


def test_a_reader_beside_writers_finds_all_or_nothing(project, caplog):
    key = project.key()
    until = time.time() + 1.5
    writers = [fork.Process(target=_publish_and_remove, args=(project, until)) for _ in range(2)]
    for writer in writers:
        writer.start()
    found = missed = 0
    while time.time() < until:
        entry = project.store.find(key)
        found, missed = found + (entry is not None), missed + (entry is None)
    for writer in writers:
        writer.join(30)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert found and missed
    # A removal renames the folder away, so a read that was under way may have missed the object; never more than that.
    assert "another checksum" not in caplog.text and "is not of this kernel" not in caplog.text


# --------------------------------------------------------------------------------------------------------- damage


def _flip(path, where):
    data = bytearray(path.read_bytes())
    data[int(where * (len(data) - 1))] ^= 0x10
    path.write_bytes(bytes(data))


def _edit(folder, change):
    path = folder / "kernel.json"
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))


DAMAGE = {
    "object truncated": lambda f: os.truncate(f / "kernel.so", 100),
    "object emptied": lambda f: os.truncate(f / "kernel.so", 0),
    "object grown": lambda f: (f / "kernel.so").write_bytes((f / "kernel.so").read_bytes() + b"x"),
    "object missing": lambda f: (f / "kernel.so").unlink(),
    "object first bit": lambda f: _flip(f / "kernel.so", 0),
    "object middle bit": lambda f: _flip(f / "kernel.so", 0.5),
    "object last bit": lambda f: _flip(f / "kernel.so", 1),
    "description truncated": lambda f: os.truncate(f / "kernel.json", 300),
    "description emptied": lambda f: os.truncate(f / "kernel.json", 0),
    "description missing": lambda f: (f / "kernel.json").unlink(),
    "description no text": lambda f: (f / "kernel.json").write_bytes(b"\xff\xfe\x00"),
    "description no table": lambda f: (f / "kernel.json").write_text("[1]"),
    "description nested": lambda f: (f / "kernel.json").write_text("[" * 100_000),
    "description first bit": lambda f: _flip(f / "kernel.json", 0),
    "folder emptied": lambda f: [path.unlink() for path in f.iterdir()],
    "folder is a file": lambda f: (shutil.rmtree(f), f.write_text("")),
    "foreign arch": lambda f: _edit(f, lambda told: told["key"].update(arch="sm_100a")),
    "foreign compiler": lambda f: _edit(f, lambda told: told["key"]["toolchain"].update({"apache-tvm-ffi": "0.0.1"})),
    "foreign cuda": lambda f: _edit(f, lambda told: told["key"]["toolchain"].update(cuda="cu99")),
    "foreign host": lambda f: _edit(f, lambda told: told["key"].update(host="linux-riscv64-base")),
    "foreign sources": lambda f: _edit(f, lambda told: told["key"]["sources"].update(more="1")),
    "foreign format": lambda f: _edit(f, lambda told: told.update(format=0)),
    "no format": lambda f: _edit(f, lambda told: told.pop("format")),
    "path out of the folder": lambda f: _edit(f, lambda told: told["object"].update(file="../../kernel.so")),
    "no size": lambda f: _edit(f, lambda told: told["object"].update(bytes="many")),
    "arch of another type": lambda f: _edit(f, lambda told: told["key"].update(arch=90)),
    "a field too many": lambda f: _edit(f, lambda told: told["key"].update(more=1)),
    "sources as a list": lambda f: _edit(f, lambda told: told["key"].update(sources=[["a", "1"]])),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_removed_compiled_again_and_reported_once(project, damage, caplog):
    project.get()
    folder = project.entry()
    DAMAGE[damage](folder)
    assert [type(found) for found in project.store.entries(check=True)] == [storing.Damaged]
    project.fresh()
    with caplog.at_level(logging.WARNING, logger="forge_core"):
        assert project.get().launch() == 48
        project.build.clear()
        assert project.get().origin == "cache"
    assert project.did("compiled") == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "is damaged and is not used" in caplog.text and folder.name in caplog.text
    assert files_below(folder) == ["kernel.json", "kernel.so"] and not files_below(project.store.root / "work")


def test_an_entry_under_another_name_is_not_taken_for_it(project):
    for tile in (16, 32):
        project.get(tile)
    first, second = (project.entry(tile) for tile in (16, 32))
    shutil.rmtree(first)
    shutil.copytree(second, first)
    project.fresh()
    assert project.get(16).launch() == 48
    assert project.did("compiled") == 3


def test_every_single_bit_of_an_entry_counts_or_does_not_matter(project):
    """Whatever bit flips: what is found is the kernel as it was written, or nothing."""
    key = project.key()
    store = project.store
    store.publish(key, f"{key.symbol} 48".encode(), linked=True, seconds=1.0)
    folder = store.root / ARCH / key.digest
    written = (folder / "kernel.so").read_bytes()
    refused = 0
    for name in ("kernel.so", "kernel.json"):
        good = (folder / name).read_bytes()
        for place in range(0, len(good), 7):
            bad = bytearray(good)
            bad[place] ^= 1 << (place % 8)
            (folder / name).write_bytes(bytes(bad))
            found = Store(store.root, read_only=True).find(key)
            refused += found is None
            if found is not None:
                assert found.object.read_bytes() == written
                assert found.key == key
        (folder / name).write_bytes(good)
    assert refused > 50
    assert store.find(key) is not None


def test_without_locks_all_works_and_is_told_once(project, monkeypatch, caplog):
    def no_locks(self, **kwargs):
        raise NotImplementedError("this file system has none")

    monkeypatch.setattr("filelock.FileLock.acquire", no_locks)
    for tile in (16, 32):
        project.get(tile)
    os.truncate(project.entry() / "kernel.so", 0)
    project.build.clear()
    assert project.get().launch() == 48
    project.fresh()
    assert project.get().origin == "cache"
    assert caplog.text.count("no locks in the compile cache") == 1


def test_an_object_that_does_not_load_is_compiled_anew_and_stays(project, caplog):
    key = project.key()
    project.store.publish(key, b"something else", linked=True, seconds=1.0)
    assert project.get().launch() == 48
    assert "cannot be loaded: undefined symbol" in caplog.text
    assert project.store.find(key).object.read_bytes() == b"something else"


def test_an_object_that_does_not_load_and_may_not_be_compiled_is_not_said_to_be_missing(project, caplog):
    key = project.key()
    entry = project.store.publish(key, b"something else", linked=True, seconds=1.0)
    with use_settings(jit=False), pytest.raises(MissingKernelError, match="is stored, and cannot be loaded") as caught:
        project.get()
    assert str(entry.object) in str(caught.value)
    assert "neither" not in str(caught.value)
    assert "cannot be loaded: undefined symbol" in caplog.text


# -------------------------------------------------------------------------------------------- disks and folders


@pytest.fixture
def from_child(in_child):
    """Runs a function in a forked process; gives what it returns."""

    def run(function, *args):
        answers = fork.SimpleQueue()
        assert in_child(lambda: answers.put(function(*args))) == 0
        return answers.get()

    return run


def _become_ordinary_user():
    if os.geteuid() == 0:  # nothing is read-only for root
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


def _make_read_only(project):
    for path in [*project.cache.rglob("*"), project.cache]:
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
        path.chmod(0o500 if path.is_dir() else 0o400)


def test_a_read_only_folder_serves_and_does_not_keep(from_child, project):
    project.get(16)
    _make_read_only(project)
    project.fresh()

    def ask():
        _become_ordinary_user()
        there, new = (project.get(tile) for tile in (16, 32))
        again = project.get(32)
        return there.origin, there.launch(), new.origin, new.launch(), again is new, sorted(files._told)

    *got, told = from_child(ask)
    assert got == ["cache", 48, "compiled", 96, True]
    root = project.store.root
    assert [text.partition(": ")[0] for text in told] == [
        f"compiled kernels cannot be stored in {root}",
        f"no locks in the compile cache {root}",
    ]
    assert all(os.strerror(errno.EACCES) in text for text in told)


def test_a_damaged_entry_in_a_read_only_folder_is_a_miss(from_child, project):
    project.get(16)
    os.truncate(project.entry() / "kernel.so", 10)
    _make_read_only(project)
    project.fresh()

    def ask():
        _become_ordinary_user()
        found = project.get(16)
        return found.origin, found.launch()

    assert from_child(ask) == ("compiled", 48)


def _with_small_files(project):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    os.environ["FAKE_LOG"] = os.devnull
    found = project.get()
    return found.launch(), list(files._told)


def test_a_write_that_fails_in_the_middle_leaves_nothing(from_child, project):
    value, told = from_child(_with_small_files, project)
    assert value == 48
    assert len(told) == 1 and f"stored in {project.store.root}: {os.strerror(errno.EFBIG)}" in told[0]
    assert files_below(project.store.root / "work") == []
    assert project.stored() == 0


CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000


def _on_a_full_disk(project):
    libc = ctypes.CDLL(None, use_errno=True)
    flags = CLONE_NEWNS if os.geteuid() == 0 else CLONE_NEWNS | CLONE_NEWUSER
    project.cache.mkdir(mode=0o700)
    mounted = libc.unshare(flags) == 0 and libc.mount(b"none", b"/", None, 0x44000, None) == 0  # private, recursive
    if not mounted or libc.mount(b"tmpfs", os.fsencode(project.cache), b"tmpfs", 0, b"size=64k,mode=0700") != 0:
        return os.strerror(ctypes.get_errno())
    os.environ["FAKE_LOG"] = os.devnull
    tiles = range(20, 60)
    values = [project.get(tile).launch() == tile * 3 for tile in tiles]
    project.build.clear()
    stored = [entry for entry in project.store.entries() if isinstance(entry, Entry)]
    origins = [project.get(tile).origin for tile in tiles]
    told = [text for text in files._told if "cannot be stored" in text]
    left = files_below(project.store.root / "work")
    checks = [entry for entry in project.store.entries(check=True) if isinstance(entry, Entry)]
    return all(values), len(stored), origins.count("cache"), told, left, len(checks)


def test_a_full_disk_keeps_what_it_has_and_compiles_the_rest(from_child, project):
    project.key()
    got = from_child(_on_a_full_disk, project)
    if isinstance(got, str):
        pytest.skip(f"no tmpfs can be mounted here: {got}")
    right, stored, from_disk, told, left, checks = got
    assert right
    assert 0 < stored < 40 and from_disk == stored
    assert len(told) == 1 and f"stored in {project.store.root}: {os.strerror(errno.ENOSPC)}" in told[0]
    assert left == []
    assert checks == stored


def test_a_deleted_folder_is_made_again(project):
    first = project.get(16)
    shutil.rmtree(project.cache)
    assert project.get(16) is first and first.launch() == 48
    assert project.get(32).launch() == 96
    assert project.stored() == 1


@pytest.mark.parametrize("step", STEPS)
def test_a_folder_deleted_in_the_middle_costs_only_the_entry(project, monkeypatch, step):
    with monkeypatch.context() as patched:
        _end_at(step, lambda: shutil.rmtree(project.cache), project, patched.setattr)
        assert project.get().launch() == 48
        assert project.stored() == (step == "compile")  # between the lock and the writing
    project.fresh()
    assert project.get().launch() == 48
    assert project.stored() == 1


# ------------------------------------------------------------------------------------------------------ other users


#: What another user could have put where the cache's folder is to be, or made of what is there.
PLANTED = {
    "world-writable": lambda root, other, foreign: (root.mkdir(), root.chmod(0o777)),
    "group-writable": lambda root, other, foreign: (root.mkdir(), root.chmod(0o770)),
    "sticky and world-writable": lambda root, other, foreign: (root.mkdir(), root.chmod(0o1777)),
    "another user's": lambda root, other, foreign: (root.mkdir(mode=0o755), foreign(root)),
    "another user's link": lambda root, other, foreign: (root.symlink_to(other), foreign(root)),
    "a link to another user's": lambda root, other, foreign: (root.symlink_to(other), foreign(other)),
    "a link to a world-writable one": lambda root, other, foreign: (root.symlink_to(other), other.chmod(0o777)),
    "below a world-writable one": lambda root, other, foreign: (root.mkdir(mode=0o700), root.parent.chmod(0o777)),
    "a file": lambda root, other, foreign: root.write_text(""),
}


@pytest.mark.parametrize("how", PLANTED)
def test_a_folder_that_another_user_could_change_is_refused(project, foreign, how):
    root, elsewhere = project.store.root, project.base / "elsewhere"
    root.parent.mkdir(mode=0o700, parents=True)
    elsewhere.mkdir(mode=0o700)
    PLANTED[how](root, elsewhere, foreign)
    before = sorted(str(path) for path in project.base.rglob("*"))
    with pytest.raises(CacheError, match="no native code is loaded from it") as caught:
        project.get()
    assert "FORGE_CACHE_DIR" in str(caught.value) and str(root) in str(caught.value)
    after = [str(path) for path in project.base.rglob("*") if "__pycache__" not in str(path)]
    assert sorted(after) == [path for path in before if "__pycache__" not in path]
    assert project.did("") == 0
    with use_settings(cache=False):  # one of the ways out
        assert project.get().launch() == 48


def test_the_users_own_link_is_followed(project):
    elsewhere = project.base / "scratch"
    elsewhere.mkdir(mode=0o700)
    project.cache.symlink_to(elsewhere)
    project.get()
    project.fresh()
    assert project.get().origin == "cache"
    assert files_below(elsewhere)


def test_a_folder_of_ones_own_below_a_sticky_one_is_fine(project):
    project.base.chmod(0o1777)
    project.get()
    project.fresh()
    assert project.get().origin == "cache"


# ---------------------------------------------------------------------------------------- sharing, limits, levels


def test_an_object_of_a_lower_processor_is_used_and_of_a_higher_is_not(project, monkeypatch):
    levels = ("linux-x86_64-v2", "linux-x86_64-v3", "linux-x86_64-v4")

    def on(level):
        monkeypatch.setattr("forge_core.cache.key.host_levels", lambda: levels[: levels.index(level) + 1])
        project.fresh()
        return project.get().origin

    assert on("linux-x86_64-v3") == "compiled"
    assert on("linux-x86_64-v4") == "cache"
    assert on("linux-x86_64-v2") == "compiled"
    assert on("linux-x86_64-v2") == "cache"


def test_the_least_recently_used_kernels_go_first(project):
    for tile in range(1, 7):
        project.get(tile)
    folders = {tile: project.entry(tile) for tile in range(1, 7)}
    now = time.time()
    for age, tile in enumerate([3, 1, 6, 2, 5, 4]):  # 3 was used last
        os.utime(folders[tile], (now - 1000 * (age + 1),) * 2)
    size = files.tree_bytes(folders[1])
    project.fresh()
    project.get(4)  # a use makes the oldest the youngest
    with use_settings(cache_max_bytes=int(4.5 * size)):
        project.get(7)
    left = {tile for tile, folder in folders.items() if folder.exists()}
    assert left == {4, 3, 1}
    assert project.entry(7).exists()
    with use_settings(cache_max_bytes=1):
        project.get(8)
    # What was asked for stays, even alone above the limit.
    assert [entry.folder for entry in project.store.entries()] == [project.entry(8)]


def test_a_kernel_that_cannot_be_exported_runs_all_the_same(project, monkeypatch, caplog):
    def refuse(compiled):
        raise CompileError("it cannot be exported", key=compiled.key.digest)

    monkeypatch.setattr(project.build._compiler, "image", refuse)  # the object: its class is compared with its source
    assert project.get().launch() == 48
    assert "it cannot be exported" in caplog.text
    assert project.stored() == 0
    with pytest.raises(CompileError, match="it cannot be exported"):
        project.build.ensure(project.config(), arch=ARCH, store=project.store)
