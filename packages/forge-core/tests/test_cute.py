"""The package of device code."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_package_imports_no_compiler():
    code = "import sys, forge_core.cute; assert 'cutlass' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
