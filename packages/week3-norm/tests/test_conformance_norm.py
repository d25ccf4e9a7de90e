"""The battery on the operators of week 3, as proofs.py declares them."""

from __future__ import annotations

import pytest

from forge_core.testing import battery
from forge_week3_norm.proofs import PROOFS


@pytest.mark.parametrize("check", battery(*PROOFS.subjects))
def test_conformance(check):
    check()
