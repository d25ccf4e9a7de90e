"""The battery on the operators of week 0, as proofs.py declares them."""

from __future__ import annotations

import pytest

from forge_core.testing import battery
from forge_week0_transpose.proofs import PROOFS


@pytest.mark.parametrize("check", battery(*PROOFS.subjects))
def test_conformance(check):
    check()
