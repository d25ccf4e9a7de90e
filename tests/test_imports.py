"""What importing a package may do: nothing but import torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys

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
