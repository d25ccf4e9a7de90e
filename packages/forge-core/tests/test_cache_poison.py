"""Attacks on the cache: each ends in a compilation or an error, never in a kernel that its key does not describe."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest

from forge_core.cache import sources, verify
from forge_core.cache import store as storing
from forge_core.cache.cached import compile_lock
from forge_core.cache.sources import fingerprint
from forge_core.errors import CacheError, CompileError

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="kernels are compiled and loaded on Linux only"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

ARCH = "sm_90a"
fork = multiprocessing.get_context("fork")
PACKAGES = Path(__file__).parents[2]


# ------------------------------------------------------------------------------------- the process and its sources

ASK = """
from PROJECT.configs import Config
from PROJECT.kernels import build
found = build.get(Config(), arch="sm_90a")
print(found.origin, found.launch())
"""
STALE = """
import pathlib, sys, time
import PROJECT.helper as helper
time.sleep(0.05)
pathlib.Path(helper.__file__).write_text("SCALE = 1000\\n")
assert "forge_core" not in sys.modules
"""


def run(project, *programs):
    """A process that imports nothing of Forge before a program does."""
    done = project.bare_python("".join(programs))
    assert done.returncode == 0, done.stderr
    return done


def test_a_helper_that_was_imported_and_edited_before_forge_was_imported_poisons_nothing(project):
    stale = run(project, STALE, ASK)
    assert stale.stdout.split() == ["compiled", "48"]  # what that process has imported
    assert "helper.SCALE differs from its source" in stale.stderr
    assert project.stored() == 0
    assert run(project, ASK).stdout.split() == ["compiled", "16000"]
    assert run(project, ASK).stdout.split() == ["cache", "16000"]


def test_stale_code_is_found_by_content_where_times_tell_nothing(project, monkeypatch):
    """As in a fork of a process that held the helper, or on a disk whose clock is behind."""
    project.module("helper")
    (project.root / "helper.py").write_text("SCALE = 1000\n")
    monkeypatch.setattr(sources, "STARTED_NS", time.time_ns())
    assert project.get().launch() == 48
    assert project.stored() == 0


# ----------------------------------------------------------------------------------- what a process holds of modules

MORE_HELPER = """
from __future__ import annotations

import dataclasses
import enum
import functools
import logging
import math
import operator
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch

from PROJECT.other import LIMIT, combine

if TYPE_CHECKING:
    from pathlib import Path

try:
    import no_such_module
except ImportError:
    no_such_module = None

SCALE = 3
SIZES = {torch.float16: 2, torch.float32: (4, 8)}
NEGATIVE = -math.inf
WHOLE = frozenset(range(SCALE * 2))
TABLE = "ab cd".split()
Step = Callable[[int], int]
Either = int | str
log = logging.getLogger("PROJECT")
WORD = re.compile("a+")
twice = functools.partial(operator.mul, 2)
abs = math.fabs
plus = lambda x, y=SCALE: x + y
first, second = 1, 2
scratch = object()  # nothing mentions it


class Kind(enum.Enum):
    ONE = 1
    TWO = "two"


class Shape(Protocol):
    def area(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class Base:
    width: int = 4
    lists: list = dataclasses.field(default_factory=list)

    @property
    def area(self):
        return self.width * SCALE

    @functools.cached_property
    def half(self):
        return self.width // 2

    @staticmethod
    def unit():
        return 1

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)

    @classmethod
    def make(cls, width=SCALE):
        return cls(width)

    def __call__(self, x, *, step=2):
        return x * step


class Tall(Base):
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted(Base):
    depth: int = 7


class Plain:
    __private = 5
    shared = Base(2)

    def __init__(self, value):
        self._value = value

    @property
    def value(self):
        return self._value

    @value.setter
    def value(self, new):
        self._value = new + self.__private


DEFAULT = Base(9)


def one_more(function):
    @functools.wraps(function)
    def call(x):
        return function(x) + 1

    return call


@one_more
def doubled(x):
    return 2 * x


@functools.cache
def cached(x):
    return x + 1


@functools.cache
@one_more
def stacked(x):
    return x


def scaled(x, by=SCALE):
    return combine(x, by) * SIZES[torch.float16] // 2


"""
OTHER = """
LIMIT = 100_000


def combine(a, b):
    return a * b
"""


@pytest.fixture
def rich(project):
    """The project with a helper of many kinds of names, all of which agree with their source."""
    (project.root / "helper.py").write_text(MORE_HELPER.replace("PROJECT", project.name))
    (project.root / "other.py").write_text(OTHER)
    project.edit("config.edge * SCALE", "scaled(config.edge)")
    project.edit("import SCALE", "import SCALE, scaled")
    return project


def test_modules_that_are_what_their_sources_say_are_stored(rich, caplog):
    assert rich.get().launch() == 48
    assert caplog.text == ""
    assert rich.stored() == 1


class Anything:
    def __eq__(self, other):
        return True

    __hash__ = None


def _wrapped_by_me(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) + 1

    return wrapper


def _setter(target, **names):
    for name, value in names.items():
        setattr(target, name, value)


CHANGES = {
    "constant": lambda m: _setter(m, SCALE=4),
    "constant of an equal value": lambda m: _setter(m, SCALE=3.0),
    "constant that equals everything": lambda m: _setter(m, SCALE=Anything()),
    "infinity": lambda m: _setter(m, NEGATIVE=float("inf")),
    "constant whose operand is deleted": lambda m: (_setter(m, NEGATIVE=float("inf")), delattr(m, "math")),
    "element of a table": lambda m: m.SIZES.update({m.torch.float16: 4}),
    "order of a table": lambda m: m.SIZES.update({m.torch.float16: m.SIZES.pop(m.torch.float16)}),
    "set": lambda m: _setter(m, WHOLE=frozenset({1})),
    "lambda": lambda m: _setter(m, plus=lambda x, y=3: x - y),
    "alias of a type": lambda m: _setter(m, Either=int | float),
    "one of two": lambda m: _setter(m, second=3),
    "new name": lambda m: _setter(m, added=1),
    "builtin": lambda m: _setter(m, max=min),
    "function": lambda m: _setter(m, scaled=lambda x, by=3: 0),
    "code of a function": lambda m: _setter(m.scaled, __code__=(lambda x, by=3: x).__code__),
    "default of a function": lambda m: _setter(m.scaled, __defaults__=(4,)),
    "wrapped function": lambda m: _setter(m, scaled=_wrapped_by_me(m.scaled)),
    "wrapped below a decorator": lambda m: _setter(m, cached=m.functools.cache(_wrapped_by_me(m.cached.__wrapped__))),
    "below a decorator of the module": lambda m: _setter(m, doubled=m.one_more(lambda x: x)),
    "decorated twice": lambda m: _setter(m, doubled=m.one_more(m.doubled)),
    "decorated twice below another": lambda m: _setter(m, stacked=functools.cache(m.one_more(m.stacked.__wrapped__))),
    "wrapped above a decorator": lambda m: _setter(m, cached=_wrapped_by_me(m.cached)),
    "imported function": lambda m: _setter(m, combine=lambda a, b: a),
    "imported module": lambda m: _setter(m, math=m.operator),
    "imported constant": lambda m: _setter(m, LIMIT=5),
    "in the module it comes from": lambda m: _setter(sys.modules[m.combine.__module__], LIMIT=5),
    "failed import": lambda m: _setter(m, no_such_module=m.math),
    "class": lambda m: _setter(m, Base=type("Base", (m.Base,), {})),
    "method": lambda m: _setter(m.Base, __call__=lambda self, x, *, step=2: 0),
    "keyword default of a method": lambda m: m.Base.__call__.__kwdefaults__.update(step=3),
    "new method": lambda m: _setter(m.Base, __add__=lambda self, other: 0),
    "generated method": lambda m: _setter(m.Base, __init__=lambda self, width=4: None),
    "inherited method, overridden": lambda m: _setter(m.Slotted, unit=staticmethod(lambda: 2)),
    "property": lambda m: _setter(m.Base, area=property(lambda self: 0)),
    "setter of a property": lambda m: _setter(m.Plain, value=m.Plain.value.setter(lambda self, new: None)),
    "cached property": lambda m: _setter(m.Base, half=property(lambda self: 0)),
    "static method": lambda m: _setter(m.Base, unit=staticmethod(lambda: 2)),
    "class method": lambda m: _setter(m.Base, make=classmethod(lambda cls, width=3: cls(0))),
    "default of a class method": lambda m: _setter(m.Base.make.__func__, __defaults__=(8,)),
    "private class attribute": lambda m: _setter(m.Plain, _Plain__private=6),
    "default of a field": lambda m: _setter(m.Base, width=5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_program_changed_in_a_module_is_used_and_not_stored(rich, change, caplog):
    build, helper = rich.build, rich.module("helper")
    helper.cached(1)
    CHANGES[change](helper)
    rich.get()
    assert rich.stored() == 0
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"{rich.path} is not stored: {rich.name}." in warning
    assert "make the change in the source and restart" in warning
    with pytest.raises(CompileError, match="is not stored"):
        build.ensure(rich.config(), arch=ARCH, store=rich.store)


def test_a_change_that_is_undone_is_forgotten(rich, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(rich.module("kernels"), "scaled", lambda x: -x)
        assert rich.get().launch() == -16
    rich.fresh()
    found = rich.get()
    assert (found.origin, found.launch(), rich.stored()) == ("compiled", 48, 1)
    assert run(rich, ASK).stdout.split() == ["cache", "48"]


def test_what_the_code_never_mentions_may_be_anything(rich):
    rich.module("helper").scratch = object()
    rich.get()
    assert rich.stored() == 1


def test_a_kernel_is_stored_while_its_module_is_still_being_imported(rich):
    """As in a script, whose last lines call what the lines before define."""
    kernels = rich.root / "kernels.py"
    lines = ["tile = object()", "found = build.get(Config(), arch='sm_90a')", "after = 1"]
    kernels.write_text("\n".join([kernels.read_text(), *lines, ""]))
    sources.STARTED_NS = time.time_ns()
    assert rich.module("kernels").found.launch() == 48
    assert rich.stored() == 1


def test_no_source_is_run_by_comparing(rich):
    rich.edit("def build", "HERE = note('imported')\n\n\ndef build")
    rich.get()
    assert (rich.did("imported"), rich.stored()) == (1, 1)


def _kernel_modules():
    for path in sorted(PACKAGES.glob("*/src/*/**/*.py")):
        parts = path.relative_to(PACKAGES).with_suffix("").parts[2:]
        if "template" in parts:  # packages under sample names, which are not installed
            continue
        if {"kernels", "cute", "rows"} & set(parts[:-1]) or parts[-2:] == ("env_check", "kernel"):
            yield ".".join(part for part in parts if part != "__init__")


def test_every_kernel_of_this_repository_is_vouched_for():
    """And again after the real compiler has traced one: it replaces the code of functions."""
    from forge_core.env_check.kernel import AddOneConfig, build

    modules = list(_kernel_modules())
    assert len(modules) > 40
    for module in modules:
        importlib.import_module(module)
    build.compile(AddOneConfig(), arch=ARCH)
    told = {module: verify.difference(fingerprint([module])) for module in modules}
    assert {module: differs for module, differs in told.items() if differs} == {}


def test_a_method_of_a_real_kernel_that_was_changed_is_found(monkeypatch):
    from forge_core.env_check import kernel

    followed = fingerprint([kernel.__name__])
    assert verify.difference(followed) is None
    # Below the decorator, as the DSL traces it.
    monkeypatch.setattr(kernel.AddOne.__call__.__wrapped__, "__code__", (lambda self, *arguments: None).__code__)
    assert verify.difference(followed) == f"{kernel.__name__}.AddOne.__call__ differs from its source"


# ----------------------------------------------------------------------------------------------------------- locks


def _hold(store, key, held, over):
    with store.lock(key):
        held.set()
        over.wait(30)


def test_a_lock_that_is_never_given_back_is_not_waited_for_for_ever(project, monkeypatch, caplog):
    key = project.key()
    held, over = threading.Event(), threading.Event()
    holder = threading.Thread(target=_hold, args=(project.store, key, held, over))
    holder.start()
    held.wait(10)
    monkeypatch.setattr(storing, "LOCK_TIMEOUT_S", 0.2)
    try:
        assert project.get().launch() == 48
    finally:
        over.set()
        holder.join()
    assert "waited 0 s for another process" in caplog.text
    assert project.store.find(key) is not None


def _asking(project, *values):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(project.get(*values)), daemon=True)
    thread.start()
    return thread, answers


def test_a_kernel_that_another_process_compiles_does_not_keep_others_waiting(in_child, project):
    key = project.key(16)
    held, over = fork.Event(), fork.Event()
    other = fork.Process(target=_hold, args=(project.store, key, held, over))
    other.start()
    assert held.wait(30)
    waiting, answers = _asking(project, 16)
    time.sleep(0.2)
    start = time.monotonic()
    assert project.get(32).launch() == 96
    project.build.ensure(project.config(64), arch=ARCH, store=project.store)
    assert project.build.compile(project.config(8), arch=ARCH).launch() == 24
    assert time.monotonic() - start < 5
    got = fork.SimpleQueue()
    assert in_child(lambda: got.put(project.get(24).launch())) == 0
    assert got.get() == 72
    assert waiting.is_alive() and not answers
    over.set()
    waiting.join(30)
    other.join(30)
    assert answers[0].launch() == 48


def test_a_lock_that_was_taken_within_the_hour_is_not_swept(project):
    key = project.key()
    path, long_ago = project.store.root / "locks" / f"{key.digest}.lock", (time.time() - storing.LEFTOVER_S - 1,) * 2
    for _ in range(2):  # once with a file that an earlier holder left
        with project.store.lock(key):
            assert project.store.sweep() == []
        os.utime(path, long_ago)
    assert project.store.sweep() == [path]


def test_threads_that_want_one_kernel_compile_it_once(project, monkeypatch):
    monkeypatch.setenv("FAKE_SECONDS", "0.2")
    asking = [_asking(project, 16) for _ in range(4)]
    for thread, _ in asking:
        thread.join(30)
    assert len({id(answers[0]) for _, answers in asking}) == project.did("compiled") == 1


def test_kernels_that_ask_for_each_other_do_not_wait_for_each_other(project, monkeypatch):
    """One thread compiles A, whose builder asks for B, while another compiles B, whose builder asks for A."""
    monkeypatch.setenv("FAKE_SECONDS", "0.2")
    compiler = project.build._compiler
    compile_now, inside = compiler.compile, []

    def asking(build, config, key, **more):
        if len(inside) < 2:
            inside.append(config.tile)
            project.get(48 - config.tile)
        return compile_now(build, config, key, **more)

    monkeypatch.setattr(compiler, "compile", asking)
    both = [_asking(project, tile) for tile in (16, 32)]
    for thread, _ in both:
        thread.join(20)
        assert not thread.is_alive()
    assert [answers[0].launch() for _, answers in both] == [48, 96]


def test_who_holds_the_compiler_does_not_wait_for_a_kernels_lock(project, monkeypatch):
    monkeypatch.setenv("FAKE_SECONDS", "0.1")
    with compile_lock():
        thread, answers = _asking(project, 16)  # has the kernel's lock and waits for the compiler
        time.sleep(0.3)
        assert project.get(16).launch() == 48
    thread.join(20)
    assert answers[0].launch() == 48


# --------------------------------------------------------------------------------------- what others can change of it

PARTS = ["architecture", "folder", "kernel.so", "kernel.json"]


def _stored_part(project, part):
    """The path of a part of an entry, which is stored."""
    project.get()
    folder = project.entry()
    return {"architecture": folder.parent, "folder": folder}.get(part, folder / part)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("how", ["writable", "another user's"])
def test_a_kernel_that_another_user_could_change_is_refused(project, foreign, part, how):
    """In a folder that is safe itself: whoever can write to an entry can make its checksum right, too."""
    path = _stored_part(project, part)
    if how == "writable":
        path.chmod(0o777)
    elif os.geteuid() == 0:
        foreign(path)
    else:
        pytest.skip("only root can give one file to another user")
    project.fresh()
    with pytest.raises(CacheError, match="no native code is loaded from it") as caught:
        project.get()
    assert str(path) in str(caught.value)
    assert "FORGE_CACHE_DIR" in str(caught.value)
    assert project.did("loaded") == 1  # the one before


def _move_out(project, part):
    """Replaces a part of an entry by a link; returns the link and its target."""
    path = _stored_part(project, part)
    outside = project.base / "outside" / "inner"
    outside.mkdir(parents=True)
    outside.parent.chmod(0o755)
    outside.chmod(0o700)
    target = outside / path.name
    shutil.move(path, target)
    path.symlink_to(target)
    project.fresh()
    return path, target


def _by_a_public_step(link, target):
    """The link leads to a link, which is where everybody can exchange it."""
    public = target.parents[2] / "public"
    public.mkdir()
    public.chmod(0o777)
    (public / "step").symlink_to(target)
    link.unlink()
    link.symlink_to(public / "step")


CHANGEABLE = {
    "above is everybody's": lambda link, target, foreign: target.parent.parent.chmod(0o777),
    "the folder is": lambda link, target, foreign: target.parent.chmod(0o777 if target.is_dir() else 0o770),
    "the target is": lambda link, target, foreign: target.chmod(0o777),
    "another user's": lambda link, target, foreign: foreign(target if target.is_dir() else target.parent),
    "by steps": lambda link, target, foreign: _by_a_public_step(link, target),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_link_to_a_safe_place_is_followed(project, part):
    _move_out(project, part)
    assert project.get().origin == "cache"


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("how", CHANGEABLE)
def test_a_link_to_a_place_that_others_can_change_is_refused(project, part, how, foreign):
    CHANGEABLE[how](*_move_out(project, part), foreign)
    loaded = project.did("loaded")
    with pytest.raises(CacheError, match="no native code is loaded from it"):
        project.get()
    assert project.did("loaded") == loaded
