"""What tests of operators share: the oracle, inputs in every layout, checks any operator must pass, planted faults."""

from __future__ import annotations

from forge_core.testing.exact import assert_same_bits
from forge_core.testing.inputs import layouts, random_bits
from forge_core.testing.tolerances import assert_near_float64, tree_bound

__all__ = ["assert_near_float64", "assert_same_bits", "layouts", "random_bits", "tree_bound"]
