"""The package of device code."""

from __future__ import annotations


def test_importing_the_package_imports_no_compiler(python):
    python("-c", "import sys, forge_core.cute; assert 'cutlass' not in sys.modules")
