from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path

import pytest

from forge_core import settings
from forge_core.device import SPECS, spec_for
from forge_core.errors import SettingsError
from forge_core.settings import VARIABLES, Settings, use_settings

pytestmark = pytest.mark.usefixtures("no_variables")


def test_each_field_has_a_variable():
    assert [variable.field for variable in VARIABLES] == [field.name for field in dataclasses.fields(Settings)]


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("FORGE_BACKEND", "ref", "backend", "ref"),
        ("FORGE_BACKEND", " Kernel ", "backend", "kernel"),
        ("FORGE_DEBUG", "1", "debug", True),
        ("FORGE_DEBUG", "on", "debug", True),
        ("FORGE_DEBUG", "0", "debug", False),
        ("FORGE_DEBUG", "No", "debug", False),
        ("FORGE_ARCH", "sm_90a", "arch", "sm_90a"),
        ("FORGE_ARCH", "SM_120A", "arch", "sm_120a"),
        ("FORGE_ARCH", "rtx 4090", "arch", "sm_89"),
        ("FORGE_REQUIRE_GPU", "true", "require_gpu", True),
        ("FORGE_CACHE_DIR", "some/folder", "cache_dir", Path("some/folder")),
        ("FORGE_CACHE_DIR", "~/forge", "cache_dir", Path.home() / "forge"),
        ("FORGE_CACHE_DIR", "~root/forge", "cache_dir", Path("~root/forge").expanduser()),
        ("FORGE_CACHE", "0", "cache", False),
        ("FORGE_CACHE_MAX_BYTES", "1000", "cache_max_bytes", 1000),
        ("FORGE_CACHE_MAX_BYTES", "500M", "cache_max_bytes", 500 * 2**20),
        ("FORGE_CACHE_MAX_BYTES", "3 GiB", "cache_max_bytes", 3 * 2**30),
        ("FORGE_CACHE_MAX_BYTES", "0", "cache_max_bytes", 0),
        ("FORGE_BUNDLES", os.pathsep.join(["a", "", "b/c"]), "bundles", (Path("a"), Path("b/c"))),
        ("FORGE_BUNDLES", os.pathsep.join(["~/a", "b/~"]), "bundles", (Path.home() / "a", Path("b/~"))),
        ("FORGE_JIT", "0", "jit", False),
    ],
)
def test_a_variable_sets_its_field_at_the_next_call(monkeypatch, name, text, field, value):
    monkeypatch.setenv(name, text)
    assert getattr(settings.current(), field) == value
    assert dataclasses.replace(settings.current(), **{field: getattr(Settings(), field)}) == Settings()
    monkeypatch.setenv(name, "")
    assert settings.current() == Settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FORGE_BACKEND", "cuda"),
        ("FORGE_CACHE_DIR", "~no-such-user/forge"),
        ("FORGE_BUNDLES", "a:~no-such-user/forge"),
        ("FORGE_DEBUG", "2"),
        ("FORGE_ARCH", "90"),
        ("FORGE_ARCH", "sm_99"),
        ("FORGE_ARCH", "sm_75"),
        ("FORGE_REQUIRE_GPU", "gpu"),
        ("FORGE_CACHE", "maybe"),
        ("FORGE_CACHE_MAX_BYTES", "much"),
        ("FORGE_CACHE_MAX_BYTES", "-1"),
        ("FORGE_JIT", "never"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_variable(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(SettingsError, match=rf"{name}: expected .*, got '{text}'"):
        settings.current()


def test_a_gpu_in_the_variable_keeps_its_figures(monkeypatch):
    monkeypatch.setenv("FORGE_ARCH", "H100")
    assert spec_for(settings.current().arch) is SPECS["H100"]


@pytest.fixture
def names(caplog):
    """What a process says of the names of its variables."""
    settings.check_names.cache_clear()
    yield lambda: [record.getMessage() for record in caplog.records]
    settings.check_names.cache_clear()


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("FORGE_BAKEND", "FORGE_BACKEND"),
        ("FORGE_ARCHS", "FORGE_ARCH"),
        ("FORGE_CACHEDIR", "FORGE_CACHE_DIR"),
        ("FORGE_BUNDLE", "FORGE_BUNDLES"),
        ("forge_jit", "FORGE_JIT"),
    ],
)
def test_a_misspelt_variable_is_a_warning_once_a_process(monkeypatch, names, wrong, meant):
    monkeypatch.setenv(wrong, "1")
    assert settings.current() == settings.current() == Settings()
    assert names() == [f"environment variable {wrong} is not read by Forge. Did you mean {meant}?"]


def test_what_is_spelt_rightly_or_is_no_misspelling_is_no_warning(monkeypatch, names):
    for variable in VARIABLES:
        monkeypatch.setenv(variable.name, "")
    for other in ("FORGE_HOME", "FORGE_X", "BACKEND", "MY_FORGE_BACKEND"):
        monkeypatch.setenv(other, "1")
    settings.current()
    assert names() == []


def test_use_settings_nests_and_ends():
    assert settings.current() == Settings()
    with use_settings(backend="ref") as outer:
        assert outer == settings.current() == Settings(backend="ref")
        with use_settings(debug=True):
            assert settings.current() == Settings(backend="ref", debug=True)
        assert settings.current() == Settings(backend="ref")
    assert settings.current() == Settings()


def test_use_settings_refuses_before_it_changes_anything():
    with (
        pytest.raises(SettingsError, match=r"no field named bakend; fields: arch, backend"),
        use_settings(bakend="ref"),
    ):
        pass
    with pytest.raises(SettingsError, match="expected one of kernel, ref, got 'gpu'"), use_settings(backend="gpu"):
        pass
    assert settings.current() == Settings()


def test_use_settings_is_seen_by_its_own_thread_only():
    seen = []
    with use_settings(backend="ref"):
        thread = threading.Thread(target=lambda: seen.append(settings.current().backend))
        thread.start()
        thread.join()
    assert seen == [None]


@pytest.mark.parametrize(
    ("field", "fast", "texts", "overrides"),
    [
        ("backend", settings.requested_backend, (None, "", "ref", "kernel"), (None, "ref", "kernel")),
        ("debug", settings.debug_requested, (None, "", "0", "1", "yes"), (False, True)),
    ],
)
def test_the_fast_paths_agree_with_current(monkeypatch, field, fast, texts, overrides):
    for text in texts:
        if text is not None:
            monkeypatch.setenv(f"FORGE_{field.upper()}", text)
        for override in overrides:
            with use_settings(**{field: override}):
                assert fast() == getattr(settings.current(), field) == override
            assert fast() == getattr(settings.current(), field)
    monkeypatch.setenv(f"FORGE_{field.upper()}", "cuda")
    with pytest.raises(SettingsError, match=f"FORGE_{field.upper()}"):
        fast()
