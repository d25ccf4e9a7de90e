"""What importing a package may do: nothing but import torch."""

from __future__ import annotations

import ast
import graphlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import importlib, json, logging, os, sys
import torch
environ, modules = dict(os.environ), set(sys.modules)
module = importlib.import_module(sys.argv[1])
print(json.dumps({
    "loaded": sorted({name.split(".")[0] for name in set(sys.modules) - modules}),
    "cuda": torch.cuda.is_initialized(),
    "environ": dict(os.environ) != environ,
    "missing": [name for name in module.__all__ if not hasattr(module, name)],
    "handlers": len(logging.getLogger().handlers) + len(logging.getLogger("forge_core").handlers),
    "version": module.__version__,
}))
"""


def imported(module, program=PROGRAM, **variables):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, module],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **variables},
    )
    return json.loads(done.stdout)


def test_importing_a_package_touches_neither_cutlass_nor_cuda(package):
    # A wrong variable must not matter either: nothing is read at import.
    found = imported(package.module, FORGE_BACKEND="nonsense", FORGE_ARCH="nonsense")
    assert {"cutlass", "tvm_ffi", "cuda", "triton", "numpy", "pytest", "hypothesis", "rich"}.isdisjoint(found["loaded"])
    assert found["cuda"] is False
    assert found["environ"] is False
    assert found["handlers"] == 0
    assert found["version"] == package.version


def test_what_a_package_promises_is_there(package):
    assert imported(package.module)["missing"] == []


@pytest.mark.skipif(sys.platform != "linux", reason="the CuTe DSL needs Linux")
def test_an_import_of_the_dsl_would_be_seen():
    planted = PROGRAM.replace("print(", "import cutlass; print(")
    assert "cutlass" in imported("forge_core", planted)["loaded"]


# ---------------------------------------------------------------------------------------- the two halves of the core

CORE = Path(__file__).parents[1] / "packages" / "forge-core" / "src" / "forge_core"
#: What proves, measures and profiles kernels, and the command.  All else is the runtime, which a call needs.
WORKBENCH = {
    "bench",
    "cli",
    "commands",
    "env_check",
    "profiling",
    "proofs",
    "pytest_plugin",
    "scaffold",
    "testing",
    "timing",
}


@pytest.fixture(scope="module")
def files():
    """The core's files by path."""
    return {path.relative_to(CORE).as_posix(): path.read_text(encoding="utf-8") for path in CORE.rglob("*.py")}


def first_of(path):
    """The folder of a file, or the module beside the folders."""
    return path.partition("/")[0].removesuffix(".py")


def imports(text):
    """The folders and modules of the core that a file imports from, wherever in the file."""
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name.split(".")[1] for name in names if name.startswith("forge_core."))


def halves_crossed(files):
    """The runtime's imports of the workbench: file and module, from the files' text by path."""
    runtime = {path: text for path, text in files.items() if first_of(path) not in WORKBENCH}
    return sorted({(path, found) for path, text in runtime.items() for found in imports(text) if found in WORKBENCH})


def cycle(files):
    """Folders, or modules beside them, that import each other in a circle; [] if none do."""
    graph = {first_of(path): set() for path in files}
    for path, text in files.items():
        graph[first_of(path)] |= {found for found in imports(text) if found in graph} - {first_of(path)}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_no_folder_imports_itself_by_way_of_others(files):
    assert cycle(files) == []
    assert sorted(set(cycle({"a/x.py": "import forge_core.b", "b/y.py": "from forge_core import a"}))) == ["a", "b"]


def test_the_runtime_imports_nothing_of_the_workbench(files):
    assert set(map(first_of, files)) >= WORKBENCH | {"op", "cache", "cute", "rows"}
    assert halves_crossed(files) == []
    planted = {
        "op/table.py": "def late():\n    from forge_core.bench import plan",
        "checks.py": "from forge_core import cli, settings",
        "rows/plan.py": "import forge_core.timing.timers",
        "testing/rows.py": "from forge_core.bench import plan",
        "cache/key.py": "from forge_core.errors import ForgeError",
    }
    assert halves_crossed(planted) == [("checks.py", "cli"), ("op/table.py", "bench"), ("rows/plan.py", "timing")]
