"""What the repository's own tests share."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Package:
    """One folder under packages/."""

    path: Path
    project: dict

    @property
    def name(self) -> str:
        return self.project["name"]

    @property
    def module(self) -> str:
        (folder,) = (p for p in (self.path / "src").iterdir() if (p / "__init__.py").exists())
        return folder.name

    @property
    def source(self) -> Path:
        return self.path / "src" / self.module

    @property
    def version(self) -> str:
        text = (self.source / "__init__.py").read_text(encoding="utf-8")
        return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)[1]


def find_packages() -> list[Package]:
    return [
        Package(file.parent, tomllib.loads(file.read_text(encoding="utf-8"))["project"])
        for file in sorted((ROOT / "packages").glob("*/pyproject.toml"))
    ]


def find_documents() -> list[Path]:
    """The pages that people read, less records."""
    patterns = ("*.md", "docs/*.md", "docs/lab/*.md", "docs/intro/*.md", "packages/*/*.md")
    return sorted(page for pattern in patterns for page in ROOT.glob(pattern))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``package`` or ``document`` runs once for each."""
    if "package" in metafunc.fixturenames:
        packages = find_packages()
        metafunc.parametrize("package", packages, ids=[p.path.name for p in packages])
    if "document" in metafunc.fixturenames:
        documents = find_documents()
        metafunc.parametrize("document", documents, ids=[str(page.relative_to(ROOT)) for page in documents])


@pytest.fixture(scope="session")
def documents() -> list[Path]:
    """The pages that people read, less records."""
    return find_documents()


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def packages() -> list[Package]:
    """All packages, as their folders sort."""
    return find_packages()


@pytest.fixture(scope="session")
def tracked(root) -> list[Path]:
    """Every file that git tracks and that is there."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        # A copy of the tree without git's folder: what lies there, less what is made there.
        found = [p for p in root.rglob("*") if not any(part.startswith(".") for part in p.relative_to(root).parts[:1])]
        made = {"__pycache__", "dist", "results", "profiles"}
        return [p for p in found if p.is_file() and not made & set(p.parts)]
    return [p for name in listed.decode().split("\0") if name and (p := root / name).is_file()]


@pytest.fixture(scope="module")
def tools(request, root) -> Iterator[SimpleNamespace]:
    """The modules that a test's file names in TOOLS, behind their folder; programs there import each other by name."""
    folder, *names = request.module.TOOLS
    place = str(root / "tools" / folder)
    sys.path.insert(0, place)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    sys.path.remove(place)
    for name in [n for n, module in sys.modules.items() if (getattr(module, "__file__", "") or "").startswith(place)]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def noxfile(root) -> Iterator[ModuleType]:
    """The module of nox's sessions; once, since nox registers them."""
    pytest.importorskip("nox", reason="nox is not installed in this environment")
    spec = importlib.util.spec_from_file_location("forge_noxfile", root / "noxfile.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]
