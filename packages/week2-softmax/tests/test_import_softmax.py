from __future__ import annotations

import importlib.metadata
from importlib.resources import files

import forge_week2_softmax


def test_the_package_imports_with_its_version_and_types():
    assert forge_week2_softmax.__version__ == importlib.metadata.version("forge-week2-softmax")
    assert files(forge_week2_softmax).joinpath("py.typed").is_file()


def test_what_is_listed_is_there():
    listed = set(forge_week2_softmax.__all__) - {"__version__"}
    assert listed == {
        "get_softmax_online_backend",
        "list_softmax_online_backends",
        "log_softmax",
        "log_softmax_backward",
        "logsumexp",
        "logsumexp_backward",
        "set_softmax_online_backend",
        "softmax",
        "softmax_backward",
        "softmax_online",
    }
    assert all(callable(getattr(forge_week2_softmax, name)) for name in listed)
