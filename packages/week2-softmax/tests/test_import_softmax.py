from __future__ import annotations

import importlib.metadata
from importlib.resources import files

import pytest

import forge_week2_softmax


def test_the_package_imports_with_its_version_and_types():
    assert forge_week2_softmax.__version__ == importlib.metadata.version("forge-week2-softmax")
    assert files(forge_week2_softmax).joinpath("py.typed").is_file()


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_an_operator_is_either_whole_or_absent(name):
    # What is listed must be there, and what is there must be listed: nothing stands in for an operator.
    assert hasattr(forge_week2_softmax, name) == (name in forge_week2_softmax.__all__)
