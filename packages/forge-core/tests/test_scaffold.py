"""`forge-cute new`: what it makes passes its own tests, and what it refuses leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from forge_core.cli import BAD_USAGE
from forge_core.errors import ArgumentError
from forge_core.scaffold import KINDS, SAMPLES, TEMPLATE, Names, create

copier = pytest.importorskip("copier", reason="Copier is not installed: forge-cute-core[new]")
ROOT = Path(__file__).parents[3]


def files_of(folder):
    made = {"__pycache__", ".pytest_cache"}
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and not made & set(path.parts)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_out_passes_its_tests(forge, kind, tmp_path):
    done = forge("new", "my-kernels", "--operator", "twist_all", "--kind", kind, "--into", tmp_path)
    assert done.exit_code == 0, done.output
    folder = tmp_path / "my-kernels"
    assert done.output.splitlines()[-1].startswith(f"cd {folder} && pip install -e .")
    assert list(tmp_path.iterdir()) == [folder]

    files = files_of(folder)
    text = "\n".join(f"{path.relative_to(folder)}\n{path.read_text(encoding='utf-8')}" for path in files)
    assert len(files) <= 14
    assert len(text.splitlines()) - len(files) <= 500  # without the lines that name the files
    assert not re.search(r"sample|\[\[|\]\]\s*\}", text.replace("samples", ""), re.IGNORECASE)

    words = [sys.executable, "-m", "pytest", "-q", "-p", "forge_core.pytest_plugin", "-p", "no:cacheprovider", "tests"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, ("src", os.environ.get("PYTHONPATH"))))}
    tests = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert int(re.search(r"(\d+) passed", tests.stdout)[1]) > 50


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_repository_it_is_clean_by_the_repository_s_rules(forge, kind, tmp_path):
    packages = tmp_path / "packages"
    (packages / "forge-core").mkdir(parents=True)
    (packages / "forge-core" / "pyproject.toml").touch()
    rules = ROOT / "pyproject.toml"
    if not rules.is_file():
        pytest.skip("not in the repository: its rules are not here")
    (tmp_path / "pyproject.toml").write_text(rules.read_text(encoding="utf-8"), encoding="utf-8")
    # A name that sorts before the core's, and an operator whose name is longer than the sample's.
    words = ("week9-norm", "--operator", "an_operator_with_a_long_name", "--kind", kind, "--prefix", "forge-")
    done = forge("new", *words, "--into", packages)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == "nox -s tests -- week9-norm"
    proofs = packages / "week9-norm" / "src" / "forge_week9_norm" / "proofs.py"
    assert "packages/week9-norm/tests" in proofs.read_text()
    for check in (("check",), ("format", "--check")):
        # What it prints is in the report of a test that fails.
        subprocess.run([sys.executable, "-m", "ruff", *check, "--no-cache", "packages"], cwd=tmp_path, check=True)


def test_the_names_follow_from_the_package_s():
    names = Names.of("week3-norm", "rms_norm", prefix="forge-", folder="packages")
    assert (names.distribution, names.module, names.class_name) == ("forge-week3-norm", "forge_week3_norm", "RmsNorm")
    assert (names.suite, names.tests) == ("week3", "packages/week3-norm/tests")
    mine = Names.of("my-kernels")
    assert (mine.operator, mine.suite, mine.tests) == ("kernels", "my_kernels", "tests")


@pytest.mark.parametrize(
    "words, told",
    [
        (("Week 3",), "joined by hyphens"),
        (("3-norm",), "joined by hyphens"),
        (("week3_norm",), "joined by hyphens"),
        (("json", "--operator", "twist"), "a module that nothing installed has"),
        (("forge-core", "--operator", "twist"), "a module that nothing installed has"),
        (("my-kernels", "--operator", "class"), "a lower-case identifier"),
        (("my-kernels", "--operator", "rms-norm"), "a lower-case identifier"),
        (("my-kernels", "--operator", "softmax"), "an operator that no installed package has"),
        (("week1-again", "--operator", "twist"), "a suite that no installed package has"),
    ],
)
def test_a_name_that_is_none_or_is_taken_is_refused_and_nothing_is_written(forge, words, told, tmp_path):
    done = forge("new", *words, "--into", tmp_path)
    assert done.exit_code == 1
    assert told in done.output
    assert "got" in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_left_alone(forge, tmp_path):
    (tmp_path / "my-kernels").mkdir()
    done = forge("new", "my-kernels", "--operator", "twist", "--into", tmp_path)
    assert done.exit_code == 1
    assert "a folder that does not exist" in done.output
    assert list((tmp_path / "my-kernels").iterdir()) == []


def test_an_unknown_kind_is_bad_usage(forge, tmp_path):
    assert forge("new", "my-kernels", "--kind", "matmul", "--into", tmp_path).exit_code == BAD_USAGE
    with pytest.raises(ArgumentError, match="rows or kernel"):
        Names.of("my-kernels", kind="matmul")


def test_what_fails_halfway_leaves_nothing(tmp_path, monkeypatch):
    def half(source, target, **options):
        target.mkdir()
        (target / "README.md").write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(copier, "run_copy", half)
    with pytest.raises(OSError, match="no space"):
        create(Names.of("my-kernels", "twist"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_installation_that_cannot_be_written_to_makes_files_that_can(tmp_path, monkeypatch):
    for path in shutil.copytree(TEMPLATE, tmp_path / "template").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    monkeypatch.setattr("forge_core.scaffold.TEMPLATE", tmp_path / "template")
    made = create(Names.of("my-kernels", "twist"), tmp_path)
    assert [path for path in made.rglob("*") if not path.stat().st_mode & stat.S_IWUSR] == []


def test_without_copier_the_way_out_is_told(forge, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "copier", None)
    done = forge("new", "my-kernels", "--operator", "twist", "--into", tmp_path)
    assert done.exit_code == 1
    assert "pip install 'forge-cute-core[new]'" in done.output


def test_every_sample_name_occurs_and_the_delimiters_do_not():
    texts = [path.relative_to(TEMPLATE).as_posix() + path.read_text(encoding="utf-8") for path in files_of(TEMPLATE)]
    packages = "\n".join(text for text in texts if not text.startswith("copier.yml"))
    assert [name for name in SAMPLES if name not in packages] == []
    # The extension writes the expressions; "[[" of its own would be read as one.
    assert not re.search(r"\[\[|\[%|\[#", packages.replace("[[project", "").replace("[project.entry", ""))
