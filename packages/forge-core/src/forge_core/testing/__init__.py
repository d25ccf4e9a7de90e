"""What tests of operators share: one declaration, the battery that every operator passes, comparisons, inputs, bounds.

subject               the declaration of an operator under test; the battery and the proofs read it
battery               the tests that it gives                        (battery_checks: on which calls)
conformance           towards PyTorch and CUDA                       (conformance_memory: layouts, out, NaN)
planted               wrong operators, which the tests have to refuse
exact, tolerances     when a result is correct                       (softmax_bounds: derived bounds of that family)
inputs                random bits, in every layout
proofs                what was shown on a GPU, bound to the sources
"""

from __future__ import annotations

from forge_core.testing.battery import battery
from forge_core.testing.exact import assert_same_bits, assert_same_values
from forge_core.testing.inputs import layouts, random_bits, relaid
from forge_core.testing.planted import Planted
from forge_core.testing.subject import Case, Subject
from forge_core.testing.tolerances import assert_near_float64, tree_bound

__all__ = [
    "Case",
    "Planted",
    "Subject",
    "assert_near_float64",
    "assert_same_bits",
    "assert_same_values",
    "battery",
    "layouts",
    "random_bits",
    "relaid",
    "tree_bound",
]
