"""What the packages' choices of a kernel have in common."""

from __future__ import annotations

import pytest

from forge_core.choice import Refusal, max_cluster, power_of_two, refuse, require_known
from forge_core.device import ARCHES, spec_for
from forge_core.errors import ArgumentError, UnsupportedError


def test_powers_of_two():
    assert [power_of_two(n) for n in (-1, 0, 1, 2, 3, 4, 5, 1024, 1025)] == [1, 1, 1, 2, 4, 4, 8, 1024, 2048]


def test_the_largest_cluster_of_each_architecture():
    found = {arch: max_cluster(spec_for(arch)) for arch in ARCHES}
    assert {arch for arch, blocks in found.items() if blocks == 1} == {"sm_80", "sm_86", "sm_89"}
    assert (found["sm_90a"], found["sm_100a"], found["sm_120a"]) == (16, 16, 8)


def test_an_unknown_variant_is_told_the_known_ones():
    require_known("f", "fast", ["slow", "fast"])
    with pytest.raises(ArgumentError, match=r"expected 'auto' or one of 'slow', 'fast'.*'faster'"):
        require_known("f", "faster", ["slow", "fast"])


def test_a_variant_that_cannot_names_those_that_can():
    with pytest.raises(
        UnsupportedError, match=r"f: variant 'a' was asked for, and it needs rows; got columns\. .* 'b', 'c'"
    ):
        refuse("f", "a", Refusal("rows", "columns"), ["b", "c"])
    with pytest.raises(UnsupportedError, match="this call: none; or leave variant='auto'"):
        refuse("f", "a", Refusal("rows", "columns"), [])
    with pytest.raises(UnsupportedError, match="f: no kernel supports this call: it needs rows; got columns"):
        refuse("f", "auto", Refusal("rows", "columns"), [])
