"""The battery on the operators of week 3, as subjects.py declares them."""

from __future__ import annotations

import pytest

from forge_core.testing import battery
from forge_week3_norm.subjects import SUBJECTS


@pytest.mark.parametrize("check", battery(*SUBJECTS))
def test_conformance(check):
    check()
