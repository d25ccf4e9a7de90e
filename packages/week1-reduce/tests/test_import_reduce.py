from __future__ import annotations

import importlib.metadata
from importlib.resources import files

import forge_week1_reduce


def test_the_package_imports_with_its_version_and_types():
    assert forge_week1_reduce.__version__ == importlib.metadata.version("forge-week1-reduce")
    assert files(forge_week1_reduce).joinpath("py.typed").is_file()


def test_what_is_listed_is_there():
    listed = set(forge_week1_reduce.__all__) - {"__version__"}
    assert listed == {"amax", "amin", "mean", "prod", "reduce", "reduce_sum"}
    assert all(callable(getattr(forge_week1_reduce, name)) for name in listed)
