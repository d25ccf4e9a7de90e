from __future__ import annotations

import importlib.metadata
from importlib.resources import files

import pytest

import forge_week1_reduce


def test_the_package_imports_with_its_version_and_types():
    assert forge_week1_reduce.__version__ == importlib.metadata.version("forge-week1-reduce")
    assert files(forge_week1_reduce).joinpath("py.typed").is_file()


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin", "prod"])
def test_an_operator_is_either_whole_or_absent(name):
    # What is listed must be there, and what is there must be listed: nothing stands in for an operator.
    assert hasattr(forge_week1_reduce, name) == (name in forge_week1_reduce.__all__)
