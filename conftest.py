"""What the tests of every package share: the markers `gpu`, `large` and `sanitizer`, and what they mean."""

import os
import platform

pytest_plugins = ["forge_core.pytest_plugin"]

# PyTorch, which serves CPU tensors, adds the elements of a column one after the other.  By AVX-512 a float64 gradient
# of softmax over 1500 rows then has 1.15 of the error that a balanced tree may have, by AVX2 less than all of it.
if platform.machine() in ("x86_64", "AMD64"):
    os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")
