"""What identifies a kernel: values with their types, and the sources that it is built from."""

from __future__ import annotations

import copy
import dataclasses
import enum
import importlib
import importlib.metadata
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge_core.cache import KernelKey
from forge_core.cache.key import canonical, dsl_environment, modules_of, same, tag, untag
from forge_core.cache.sources import fingerprint
from forge_core.toolchain import host_levels, levels_of, toolchain


class Order(enum.Enum):
    ROW = 1
    COLUMN = 2


class Number(enum.IntEnum):
    ONE = 1


@dataclass(frozen=True)
class Inner:
    width: int = 16
    flag: bool = False


@dataclass(frozen=True)
class Same:
    width: int = 16
    flag: bool = False


@dataclass(frozen=True)
class Outer:
    value: object = None
    inner: Inner | Same = dataclasses.field(default_factory=Inner)
    name: str = ""


# Small sets, so that equal values, and values that Python takes for equal, come up often.
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 2),
    st.sampled_from(["", "1", "True", "None", "ROW", "float32", "\u00e9", "\x00"]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.sampled_from([*Order, *Number]),
)
values = st.recursive(
    st.one_of(plain, st.builds(Inner, plain, st.booleans()), st.builds(Same, plain, st.booleans())),
    lambda some: st.one_of(
        st.lists(some, max_size=3).map(tuple), st.builds(Outer, some, st.builds(Inner), st.text("ab"))
    ),
    max_leaves=6,
)


def key_of(config, **changes):
    parts = {"arch": "sm_90a", "options": "--x", "sources": (("a", "1"),), **changes}
    return KernelKey.make("module:build", canonical(tag(config)), **parts)


@given(values, values)
@settings(max_examples=400, deadline=None)
def test_keys_are_equal_exactly_when_the_configurations_are(a, b):
    assert (key_of(a).digest == key_of(b).digest) == same(a, b)
    assert same(a, copy.deepcopy(a))


@given(values)
@settings(max_examples=200, deadline=None)
def test_a_configuration_survives_being_written_down(value):
    written = canonical(tag(value))
    assert written.isascii()
    assert same(untag(json.loads(written)), value)


@given(values)
@settings(max_examples=100, deadline=None)
def test_a_key_survives_being_written_down(value):
    key = key_of(value)
    again = KernelKey.from_description(json.loads(json.dumps(key.describe())))
    assert again == key
    assert again.digest == key.digest


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_every_part_of_a_key_changes_its_digest(data):
    key = key_of(Inner())
    text = st.text("ab", min_size=1)
    pairs = st.dictionaries(text, text, max_size=2).map(lambda some: tuple(sorted(some.items())))
    field = data.draw(st.sampled_from([f.name for f in dataclasses.fields(KernelKey)]))
    other = data.draw(pairs if isinstance(getattr(key, field), tuple) else text.map(json.dumps))
    changed = dataclasses.replace(key, **{field: other})
    assert (changed.digest == key.digest) == (changed == key)


@pytest.mark.parametrize("value", [1.5, [1], {"a": 1}, {1}, object(), b"x", Inner, lambda: None, torch.device("cpu")])
def test_a_value_whose_type_is_not_known_is_refused(value):
    with pytest.raises(TypeError, match="cannot be part of a kernel's key"):
        tag(value)


def test_a_value_that_can_change_is_refused():
    with pytest.raises(TypeError, match="Mutable is not a frozen dataclass"):
        tag(dataclasses.make_dataclass("Mutable", ["tile"])(16))


def test_the_environment_enters_the_key_unless_it_only_says_where(monkeypatch):
    environ = {"CUTE_DSL_CACHE_DIR": "x", "CUTE_DSL_ARCH": "x", "CUTE_DSL_NEW": "2", "CUTE_DSL_EMPTY": "", "HOME": "x"}
    assert dsl_environment(environ) == (("CUTE_DSL_NEW", "2"),)
    before = key_of(Inner())
    monkeypatch.setenv("CUTE_DSL_NEW", "2")
    assert key_of(Inner()) != before


@pytest.mark.parametrize("text", ["1", '["int", true]', '["float", 1.5]', '["dtype", "Tensor"]', '["tuple"]', "{}"])
def test_what_no_tag_gives_is_refused(text):
    with pytest.raises(TypeError, match="not a tagged value"):
        untag(json.loads(text))


def test_the_modules_of_a_configuration_are_found():
    value = Outer(value=(Order.ROW, Same()), inner=Inner(), name='["dataclass","not.a.module:Name"]')
    assert modules_of("module:build", canonical(tag(value))) == ("module", __name__)
    assert modules_of("module:build", canonical(tag((1, "a:b")))) == ("module",)


# -------------------------------------------------------------------------------------------------------- the host


def test_levels_of_a_processor_are_those_below_it():
    v2 = {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}
    v3 = v2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
    assert [level.rpartition("-")[2] for level in levels_of("x86_64", v3)] == ["v1", "v2", "v3"]
    # A level that is missing one flag is not there, whatever is above it.
    assert [level.rpartition("-")[2] for level in levels_of("x86_64", (v3 | {"avx512f"}) - {"ssse3"})] == ["v1"]
    assert [level.rpartition("-")[2] for level in levels_of("aarch64", {"sve"})] == ["base", "sve"]
    assert len(levels_of("riscv64", set())) == 1
    assert host_levels()[-1].startswith(sys.platform)


def test_an_object_made_for_a_lower_level_is_looked_for_and_never_one_for_a_higher(monkeypatch):
    levels = ("linux-x86_64-v1", "linux-x86_64-v2", "linux-x86_64-v3")
    monkeypatch.setattr("forge_core.cache.key.host_levels", lambda: levels)
    key = key_of(Inner())
    assert [other.host for other in key.compatible_keys()] == list(reversed(levels))
    middle = dataclasses.replace(key, host=levels[1])
    assert [other.host for other in middle.compatible_keys()] == [levels[1], levels[0]]
    assert len({other.digest for other in key.compatible_keys()}) == 3


# ---------------------------------------------------------------------------------------------------- the toolchain


@pytest.mark.usefixtures("dsl")
def test_the_toolchain_is_what_importlib_finds():
    told = {}
    for found in importlib.metadata.distributions():
        name = (found.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith(("nvidia-cutlass-dsl", "apache-tvm-ffi")):
            told.setdefault(name, found.version)
    found = dict(toolchain())
    assert found.pop("cuda") in ("cu12", "cu13")
    assert {"nvidia-cutlass-dsl", "apache-tvm-ffi"} <= set(found)
    assert found == {name: told[name] for name in found}
    assert all(re.search(r"-cu\d+$", name) for name in set(told) - set(found))  # of another CUDA variant


def test_only_the_cuda_variant_in_use_is_in_the_key(monkeypatch, tmp_path):
    from forge_core import toolchain as module

    for name in ("nvidia_cutlass_dsl", "nvidia_cutlass_dsl_libs_cu12", "nvidia_cutlass_dsl_libs_cu13", "other"):
        (tmp_path / f"{name}-4.9.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "missing")])
    for variant in ("cu12", "cu13"):
        monkeypatch.setattr(module, "cuda_variant", lambda variant=variant: variant)
        assert dict(module.toolchain.__wrapped__()) == {
            "cuda": variant,
            "nvidia-cutlass-dsl": "4.9",
            f"nvidia-cutlass-dsl-libs-{variant}": "4.9",
        }


# ------------------------------------------------------------------------------------------------------ the sources


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Writes modules of a package `tree_n`, and gives their fingerprint."""
    name = f"tree_{abs(hash(str(tmp_path))) % 10**9}"
    monkeypatch.syspath_prepend(str(tmp_path))

    class Tree:
        package = name

        def add(self, path, text):
            target = tmp_path / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text.replace("TREE", name))
            importlib.invalidate_caches()

        def of(self, module="kernel"):
            found = fingerprint([f"{name}.{module}"])
            return {key.removeprefix(f"{name}."): value for key, value in found.pairs}

    made = Tree()
    made.add("__init__.py", "raise ImportError('a fingerprint imports nothing')\n")
    return made


@pytest.mark.parametrize(
    ("statement", "reached"),
    [
        ("from TREE.helper import f", {"helper"}),
        ("from TREE import helper", {"helper"}),
        ("from . import helper", {"helper"}),
        ("from .helper import *", {"helper"}),
        ("import TREE.helper as h", {"helper"}),
        ("from TREE.sub.deep import (\n    f,\n    g as h,\n)", {"sub.deep"}),
        ("from .sub import deep, name", {"sub.deep", "sub"}),
        ("from .sub import name", {"sub"}),
        ("def f():\n    if True:\n        from TREE import helper", {"helper"}),
        ("try:\n    import cutlass\nexcept ImportError:\n    from TREE import helper", {"helper"}),
        ("import importlib\nx = importlib.import_module('TREE.helper')", {"helper"}),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from TREE import helper", set()),
        ("from forge_core.cache import compile_cached\nimport torch, os, cutlass", set()),
        ("text = 'from TREE import helper'  # import TREE.helper", set()),
        ('"""\nfrom TREE import helper\n"""', {"helper"}),  # more than there is, never less
        ("from .sub import (\n    name,  # (a comment)\n    deep,\n)", {"sub.deep", "sub"}),
        ("if TYPE_CHECKING:\n    import os\nelse:\n    from TREE import helper", {"helper"}),
        ("import torch; import TREE.helper as h", {"helper"}),
        ("import torch, TREE.helper as h", {"helper"}),
        ("if True: from TREE import helper", {"helper"}),
        ("from \\\n  TREE import helper", {"helper"}),
        ("import torch as \\\n  t, TREE.helper as h", {"helper"}),
        ("import torch\rfrom TREE import helper", {"helper"}),
        ("from\tTREE\timport helper", {"helper"}),
        ("from.helper import f", {"helper"}),
    ],
)
def test_every_form_of_import_is_followed(tree, statement, reached):
    tree.add("helper.py", "f = 1\n")
    tree.add("sub/__init__.py", "name = 1\n")
    tree.add("sub/deep.py", "f = g = 1\n")
    tree.add("kernel.py", statement + "\n")
    found = set(tree.of()) - {tree.package}  # `import a.b` runs a, too
    assert found == {"kernel", *reached}


def test_a_plain_import_reaches_what_is_used_through_it(tree):
    tree.add("__init__.py", "")
    tree.add("helper.py", "f = 1\n")
    tree.add("unused.py", "f = 1\n")
    tree.add("kernel.py", "import TREE\nimport TREE.sub\nx = TREE.helper.f\n")
    tree.add("sub/__init__.py", "")
    assert set(tree.of()) == {tree.package, "kernel", "helper", "sub"}


def test_a_package_that_defines_a_name_like_its_submodule_is_read_itself(tree):
    tree.add("sub/__init__.py", "from TREE.other import deep\n")
    tree.add("sub/deep.py", "")
    tree.add("other.py", "deep = 1\n")
    tree.add("kernel.py", "from TREE.sub import deep\n")
    assert set(tree.of()) == {"kernel", "sub", "sub.deep", "other"}


def test_an_import_by_a_computed_name_counts_the_whole_package(tree):
    tree.add("__init__.py", "")
    tree.add("helper.py", "")
    tree.add("kernel.py", "import importlib\nx = importlib.import_module('tree.' + 'helper')\n")
    assert set(tree.of()) == {tree.package, "kernel", "helper"}


def test_a_changed_line_in_a_helper_changes_the_key_and_a_comment_elsewhere_does_not(tree):
    tree.add("helper.py", "X = 1\n")
    tree.add("deeper.py", "Y = 1\n")
    tree.add("kernel.py", "from TREE.helper import X\n")
    tree.add("other_kernel.py", "from TREE.helper import X\n")
    first = tree.of()
    tree.add("other_kernel.py", "from TREE.helper import X  # another comment, another length\n")
    tree.add("unrelated.py", "# a comment\n")
    assert tree.of() == first
    tree.add("helper.py", "X = 2\n")
    second = tree.of()
    assert second != first and second["kernel"] == first["kernel"]
    tree.add("helper.py", "from TREE.deeper import Y as X\n")
    third = tree.of()
    tree.add("deeper.py", "Y = 22\n")
    assert third["deeper"] != tree.of()["deeper"]


def test_an_import_that_fails_today_is_in_the_key(tree):
    tree.add("kernel.py", "try:\n    from TREE import extra\nexcept ImportError:\n    extra = None\n")
    before = tree.of()
    tree.add("extra.py", "")
    assert tree.of() != before


def test_an_installed_package_counts_by_its_version(tree):
    tree.add("kernel.py", "import pytest\nfrom hypothesis import given\n")
    found = tree.of()
    assert found["pytest"] == f"pytest=={pytest.__version__}"
    assert found["hypothesis"].startswith("hypothesis==")


def test_an_extension_without_a_package_has_no_source(tree, tmp_path):
    (tmp_path / "extension_of_forge.abi3.so").touch()
    tree.add("kernel.py", "import extension_of_forge\n")
    assert tree.of()["extension_of_forge"] == "not found"


def test_a_module_without_a_source_has_no_fingerprint():
    assert fingerprint(["no_such_module_anywhere"]) is None
    assert fingerprint(["torch._C"]).pairs == ()


@given(graph=st.lists(st.sets(st.integers(0, 5)), min_size=6, max_size=6), changed=st.integers(0, 5))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_key_changes_exactly_when_a_module_that_is_reached_does(tree, graph, changed):
    def write(index, more=""):
        lines = [f"from TREE.m{target} import x as x{target}\n" for target in sorted(graph[index])]
        tree.add(f"m{index}.py", "".join(lines) + "x = 1\n" + more)

    for index in range(6):
        write(index)
    reached, waiting = set(), [0]
    while waiting:
        index = waiting.pop()
        if index not in reached:
            reached.add(index)
            waiting += graph[index]
    before = tree.of("m0")
    assert set(before) == {f"m{index}" for index in reached}
    write(changed, "# one more comment\n")
    assert (tree.of("m0") != before) == (changed in reached)


def test_the_sources_of_a_configuration_count_even_where_the_kernel_does_not_import_them(project):
    project.edit(f"from {project.name}.configs import Config\n", "")
    key = project.key()
    assert f"{project.name}.configs" in dict(key.sources)


def test_forge_kernels_reach_forge_core_cute_and_neither_operators_nor_the_cache():
    pytest.importorskip("forge_week0_transpose")
    found = dict(fingerprint(["forge_week0_transpose.kernels.tiled"]).pairs)
    assert {"forge_week0_transpose.kernels.tiled", "forge_core.cute.memory"} <= set(found)
    assert not [name for name in found if name.startswith("forge_core.cache") or name.endswith(".ops")]
    assert "forge_week0_transpose.kernels.naive" not in found


def test_a_key_is_the_same_in_another_process_and_imports_no_compiler(project):
    key = project.key()
    program = (
        "print(build.key(Config(), arch='sm_90a').digest)\n"
        f"print('cutlass' in sys.modules, {project.name + '.kernels'!r} in sys.modules)\n"
    )
    done = project.python(program, PYTHONHASHSEED="7")
    assert done.stdout.split() == [key.digest, "False", "False"]
    assert Path(project.module("kernels").__file__).is_file()
