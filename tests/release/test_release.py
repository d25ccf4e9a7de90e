"""What `nox -s build` made: the right files, nothing stale, and a clean environment that installs and runs them.

Only the session `build` collects this folder (see testpaths in pyproject.toml), because it needs dist/.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import Parser

import pytest


@pytest.fixture(scope="session")
def dist(root):
    folder = root / "dist"
    assert folder.is_dir(), "dist/ is not there; make it with: nox -s build"
    return folder


def stem(package):
    return f"{package.name.replace('-', '_')}-{package.version}"


def wheel_of(package, dist):
    return dist / f"{stem(package)}-py3-none-any.whl"


def sources(package):
    """The package's files as they lie in the working tree, by their names in a wheel."""
    found = [p for p in package.source.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return {p.relative_to(package.path / "src").as_posix(): p.read_bytes() for p in found}


# ------------------------------------------------------------------------------------------------------ what is there


def test_dist_holds_one_wheel_and_one_sdist_of_each_package_and_nothing_else(packages, dist):
    expected = {f"{stem(p)}{end}" for p in packages for end in ("-py3-none-any.whl", ".tar.gz")}
    assert {file.name for file in dist.iterdir() if file.name != ".gitignore"} == expected


def test_a_wheel_holds_exactly_the_sources_of_now(package, dist):
    with zipfile.ZipFile(wheel_of(package, dist)) as wheel:
        held = {name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name}
    expected = sources(package)
    assert sorted(held) == sorted(expected)
    stale = [name for name in held if held[name] != expected[name]]
    assert stale == [], "dist/ is stale; make it anew with: nox -s build"


def test_an_sdist_holds_sources_tests_and_documents(package, dist):
    with tarfile.open(dist / f"{stem(package)}.tar.gz") as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames()}
    assert {f"src/{name}" for name in sources(package)} <= names
    tests = {p.relative_to(package.path).as_posix() for p in (package.path / "tests").glob("*.py")}
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", *tests} <= names


def test_no_file_of_the_dsl_is_shipped(package, dist):
    with zipfile.ZipFile(wheel_of(package, dist)) as wheel:
        members = {name: wheel.read(name) for name in wheel.namelist()}
    # The tables of thresholds, which are ours, have the names of GPUs.
    others = [n for n in members if not re.fullmatch(r"\w+/thresholds/[\w-]+\.toml", n)]
    assert [n for n in others if re.search(r"cutlass|nvidia|tvm_ffi|\.(so|a|pyd|dll|cubin|ptx|o)$", n)] == []
    assert [n for n, content in members.items() if b"NvidiaProprietary" in content] == []
    theirs = {
        file.hash.value
        for distribution in importlib.metadata.distributions()
        if (distribution.metadata["Name"] or "").startswith("nvidia-cutlass-dsl")
        for file in distribution.files or ()
        if file.hash is not None and file.size
    }
    if sys.platform == "linux":
        assert theirs, "the CuTe DSL is not installed, so there is nothing to compare with"
    digests = [hashlib.sha256(content).digest() for content in members.values() if content]
    ours = {base64.urlsafe_b64encode(digest).rstrip(b"=").decode() for digest in digests}
    assert ours.isdisjoint(theirs)


def test_metadata_says_what_an_installer_and_an_index_need(package, dist):
    with zipfile.ZipFile(wheel_of(package, dist)) as wheel:
        info = f"{stem(package)}.dist-info"
        metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
        assert f"{info}/licenses/LICENSE" in wheel.namelist()
    assert (metadata["Name"], metadata["Version"]) == (package.name, package.version)
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (package.path / "README.md").read_text(encoding="utf-8")
    assert "cu13" in metadata.get_all("Provides-Extra")


# ------------------------------------------------------------------------------------------------ a clean environment


@pytest.fixture(scope="session")
def clean(packages, dist, root, tmp_path_factory):
    """The Python of a new environment, with week 0 and what it needs: ours from dist/, the rest as pinned."""
    folder = tmp_path_factory.mktemp("clean") / "env"
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    needed = [p for p in packages if p.module in ("forge_core", "forge_week0_transpose")]
    wheels = [str(wheel_of(package, dist)) for package in needed]
    command = [python, "-m", "pip", "install", "-q", "-c", root / "constraints.txt", *wheels]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return python


def run(python, *args, **variables):
    """Runs the clean environment's Python away from the working tree, without its influence."""
    dropped = ("PYTHON", "FORGE_", "CUTE_DSL_", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return subprocess.run(
        [python, "-I", *args], capture_output=True, text=True, cwd=python.parent, env=env | variables, check=False
    )


INSTALLED = """
import importlib.metadata as metadata, json
print(json.dumps({
    d.name: {
        "version": d.version, "url": json.loads(d.read_text("direct_url.json") or "{}"), "files": d.read_text("RECORD")
    }
    for d in metadata.distributions()
}))
"""


def test_forge_comes_from_dist_and_the_rest_as_pinned(clean, packages, dist, root):
    installed = json.loads(run(clean, "-c", INSTALLED).stdout)
    ours = {name: found for name, found in installed.items() if name.startswith("forge")}
    assert set(ours) == {"forge-cute-core", "forge-week0-transpose"}
    for package in packages:
        if package.name in ours:
            wheel = wheel_of(package, dist)
            assert ours[package.name]["url"]["url"] == wheel.as_uri()
            # Not by the wheel's digest, which pip before 23.1 does not record.
            with zipfile.ZipFile(wheel) as packed:
                (listed,) = (packed.read(n).decode() for n in packed.namelist() if n.endswith(".dist-info/RECORD"))
            files = {line for line in listed.splitlines() if "sha256=" in line}
            assert files and files <= set(ours[package.name]["files"].splitlines())
    pins = dict(line.split("==") for line in (root / "constraints.txt").read_text().splitlines() if "==" in line)
    pins = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}
    others = {re.sub(r"[-_.]+", "-", n).lower(): f["version"].partition("+")[0] for n, f in installed.items()}
    assert {n: v for n, v in others.items() if n in pins and n not in ("pip", "setuptools") and v != pins[n]} == {}
    # Development tools are no dependency of a package.
    assert {"pytest", "hypothesis", "ruff", "mypy", "nox"}.isdisjoint(others)


USE = """
import sys, torch, warnings
warnings.simplefilter("error")  # from here on: torch itself warns that there is no NumPy
import forge_week0_transpose as week0
assert "cutlass" not in sys.modules and not torch.cuda.is_initialized()
x = torch.arange(2 * 3 * 5, dtype=torch.int32).reshape(2, 3, 5)
assert torch.equal(week0.transpose(x), x.transpose(-1, -2)) and week0.transpose(x).is_contiguous()
assert torch.equal(torch.ops.forge_week0.transpose(x), x.mT)
assert torch.equal(week0.copy(x[..., ::2]), x[..., ::2])
assert "cutlass" not in sys.modules
print(week0.__file__)
"""


def test_week0_runs_where_it_was_installed(clean, root):
    done = run(clean, "-c", USE)
    assert done.returncode == 0, done.stderr
    assert str(clean.parent.parent) in done.stdout
    assert str(root / "packages") not in done.stdout


def test_the_command_is_there(clean, packages):
    (core,) = (p for p in packages if p.module == "forge_core")
    command = clean.parent / "forge-cute"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, cwd=clean.parent, check=False)
    assert done.stdout == f"forge-cute, version {core.version}\n"


def test_the_suites_are_found_through_their_entry_point(clean):
    done = run(clean, "-m", "forge_core.cli", "bench", "list")
    assert done.returncode == 0, done.stderr
    assert "smoke" in done.stdout
    assert "week0" in done.stdout


ENTRY_POINTS = """
from importlib.metadata import entry_points
print([point.name for point in entry_points(group="pytest11") if point.value.startswith("forge")])
"""


def test_no_pytest_plugin_is_forced_on_users(clean):
    # An entry point would import torch, and give `gpu` a meaning, in every pytest of a user's environment.
    done = run(clean, "-c", ENTRY_POINTS)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the CuTe DSL needs Linux")
def test_the_doctor_finds_the_clean_environment_healthy(clean):
    done = run(clean, "-m", "forge_core.cli", "doctor", "--json")
    answer = json.loads(done.stdout)
    broken = [finding for finding in answer["findings"] if finding["level"] == "fault"]
    # Week 0 is installed without the extra for CUDA 13, so a torch with CUDA 13 on a GPU is rightly complained about.
    if answer["facts"]["gpus"] and (answer["facts"]["torch"]["cuda"] or "").startswith("13"):
        broken = [finding for finding in broken if "[cu13]" not in finding["repair"]]
    assert broken == []
    assert answer["facts"]["kernels"][0]["error"] is None


# ---------------------------------------------------------------------------------- a package of somebody else's own


@pytest.fixture(scope="session")
def author(clean, packages, dist, root):
    """The clean environment with what the author of a package installs; last, since the tests above look at it bare."""
    (core,) = (p for p in packages if p.module == "forge_core")
    wanted = [f"{wheel_of(core, dist)}[new]", "pytest", "expecttest", "hypothesis", "hatchling"]
    done = run(clean, "-m", "pip", "install", "-q", "-c", root / "constraints.txt", *wanted)
    assert done.returncode == 0, done.stdout + done.stderr
    return clean


@pytest.mark.parametrize("kind", ["rows", "kernel"])
def test_a_package_made_outside_the_repository_is_found_and_passes_its_tests(author, kind, tmp_path):
    folder, operator = tmp_path / f"my-{kind}", f"my_{kind}_op"
    made = run(
        author, "-m", "forge_core.cli", "new", folder.name, "--operator", operator, "--kind", kind, "--into", tmp_path
    )
    assert made.returncode == 0, made.stderr
    assert "pip install -e ." in made.stdout.splitlines()[-1]
    installed = run(author, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "-e", folder)
    assert installed.returncode == 0, installed.stderr
    call = f"-m forge_core.cli inspect {operator} --shape 1024x1024 --dtype float32 --arch sm_90a"
    inspected = run(author, *call.split())
    assert inspected.returncode == 0, inspected.stderr
    assert "registers" in inspected.stdout
    measured = run(author, "-m", "forge_core.cli", "bench", "smoke", "--operator", operator, "--json", "-")
    assert measured.returncode == 0, measured.stderr
    assert {case["operator"] for case in json.loads(measured.stdout)["cases"]} == {operator}
    tests = run(
        author, "-m", "pytest", "-q", "-p", "forge_core.pytest_plugin", "-p", "no:cacheprovider", folder / "tests"
    )
    assert tests.returncode == 0, tests.stdout
