"""Tests of operators and kernels: one declaration gives the tests that every operator has to pass.

subject                             the declaration of an operator under test, for the battery and GPU validation
battery, battery_checks             its tests, and the calls that each of them makes
conformance, conformance_memory     properties of any operator, as functions
planted                             wrong operators, which the tests must reject
tolerances                          when a result is correct; bounds of sums and products
inputs                              random bits in every layout
rows                                declarations of row operators
expectations, rows_expected         declarations of compiled code, and their check
index_maps                          checks of a kernel's layouts
opinfo                              PyTorch's own samples of its operators
"""

from __future__ import annotations

from forge_core.testing.battery import battery
from forge_core.testing.inputs import layouts, random_bits, relaid
from forge_core.testing.planted import Planted
from forge_core.testing.subject import Case, Joined, Subject
from forge_core.testing.tolerances import assert_near_float64, assert_same_bits, assert_same_values, tree_bound

__all__ = [
    "Case",
    "Joined",
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
