from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import forge_core
from forge_core import cli
from forge_core.env_check import facts as machine
from forge_core.env_check.facts import Facts
from forge_core.errors import BenchmarkError, UnsupportedError
from forge_core.settings import VARIABLES, Settings

pytestmark = pytest.mark.usefixtures("no_variables")


@pytest.fixture
def failing(monkeypatch):
    """A command that raises what it is given."""

    def add(error):
        def fail():
            raise error

        monkeypatch.setitem(cli.main.commands, "fail", click.Command("fail", callback=fail))

    return add


def test_version(forge):
    result = forge("--version")
    assert result.output == f"forge-cute, version {forge_core.__version__}\n"


def test_help_lists_every_command_without_importing_the_lazy_ones(forge, monkeypatch):
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    result = forge("--help")
    assert result.exit_code == 0
    for name in ("bench", "cache", "doctor", "settings"):
        assert re.search(rf"^  {name} +\w", result.output, re.MULTILINE)


SMALL = ("--shape", "64x64", "--dtype", "float32")
BUILD = ("cache", "build", "--out", "folder")


@pytest.mark.parametrize(
    "words",
    [
        ("--nonsense",),
        ("settings", "--nonsense"),
        ("doctor", "more"),
        ("inspect", "transpose"),
        ("inspect", "nothing", *SMALL),
        ("inspect", "sum_rows", *SMALL, "--arg", "dim=0"),
        ("inspect", "transpose", *SMALL, "--arch", "sm_99", "--cubin", "folder"),
        ("layout", "swizzle", "--rows", "0"),
        ("layout", "kernel", "nothing", *SMALL),
        ("layout", "kernel", "transpose", *SMALL, "--arch", "GTX 1080", "--out", "folder"),
        ("bench", "smoke", "--timer", "sundial"),
        ("bench", "compare", "no-such-file", "no-such-file"),
        ("bench", "tune", "week9"),
        ("prove", "check", "week9"),
        ("prove", "run", "week9"),
        ("prove", "stamp", "no-such-file"),
        ("cache", "nonsense"),
        ("cache", "ls", "--arch", "sm_99"),
        ("cache", "prune", "--max-bytes", "much"),
        BUILD,
        (*BUILD, "--arch", "sm_99"),
        (*BUILD, "--arch", "H100", "--suite", "nothing"),
    ],
    ids=" ".join,
)
def test_bad_usage_has_one_exit_status_and_writes_nothing(forge, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = forge(*words, FORGE_CACHE_DIR=str(tmp_path / "cache"))
    assert result.exit_code == cli.BAD_USAGE == 3, result.output
    assert "Usage: " in result.stderr and "Error: " in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_command_is_a_usage_error(forge):
    result = forge("bnech")
    assert result.exit_code == 3
    assert "No such command 'bnech'" in result.output


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("inspect", "trnspose", *SMALL), "Did you mean transpose or copy_transpose?"),
        (("inspect", "forge_week1::reduce_smu", *SMALL), "Did you mean reduce_sum?"),
        (("layout", "kernel", "TRANSPOSE", *SMALL), "Did you mean transpose or copy_transpose?"),
        (("bench", "tune", "wek1"), "Did you mean week1 or week3 or week2?"),
        (("prove", "check", "week0", "wek1"), "Did you mean week1 or week3 or week2?"),
        ((*BUILD, "--arch", "H100", "--suite", "smok"), "Did you mean smoke?"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_an_unknown_name_comes_with_the_nearest_ones(forge, words, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = forge(*words)
    assert result.exit_code == 3
    assert re.search(rf"[^.]\. {re.escape(hint)}\n$", result.stderr)


@pytest.mark.parametrize("words", [("inspect", "transpose"), ("layout", "kernel", "transpose")], ids=" ".join)
@pytest.mark.parametrize("arch", ["sm_99", "sm_99a", "sm_90b", "GTX 1080"])
def test_an_unknown_architecture_is_refused_before_anything_is_planned(forge, monkeypatch, words, arch):
    for module in ("inspect", "layout"):
        monkeypatch.setattr(f"forge_core.commands.{module}.explained", lambda **call: pytest.fail(f"planned {call}"))
    result = forge(*words, *SMALL, "--arch", arch)
    assert result.exit_code == 3
    assert f"{arch.lower()}" in result.stderr.lower() and "RTX 4090" in result.stderr


def test_the_nearest_names_are_each_named_once(forge):
    assert cli.did_you_mean("smu", ["sum", "sum", "prod"]) == "Did you mean sum?"
    assert cli.did_you_mean("log", ["logsumexp_backward", "prod"]) == "Did you mean logsumexp_backward?"
    assert cli.did_you_mean("xyz", ["sum"]) == ""
    said = forge("inspect", "nothing", *SMALL).stderr
    names = re.search(r"expected one of (.+), got 'nothing'", said)[1].split(", ")
    assert {"transpose", "sum_rows", "reduce_sum"} <= set(names)
    assert len(names) == len(set(names))
    assert not any("::" in name for name in names)


def test_settings_shows_every_variable_with_its_value_and_origin(forge):
    result = forge("settings", FORGE_BACKEND="ref", FORGE_CACHE="1", FORGE_JIT="", FORGE_ARCH="h100")
    assert result.exit_code == 0
    for variable in VARIABLES:
        assert variable.name in result.output
        assert variable.help in result.output
    assert "FORGE_BACKEND = ref (environment)" in result.output
    assert "FORGE_DEBUG = False (default)" in result.output
    assert "FORGE_CACHE = True (environment)" in result.output
    assert "FORGE_JIT = True (default)" in result.output
    assert "FORGE_ARCH = sm_90a, NVIDIA H100 80GB HBM3 (environment)" in result.output


def test_settings_shows_the_folders_in_use(forge, tmp_path, monkeypatch):
    brought = importlib.metadata.EntryPoint("sm_90a", "acme.bundle", "forge.bundles")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [brought] * (group == "forge.bundles"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    said = forge("settings", FORGE_CACHE_DIR="mine", FORGE_BUNDLES=os.pathsep.join(["/a", "b"])).output.splitlines()
    assert said[-4:] == [
        f"cache: {tmp_path / 'mine'} (FORGE_CACHE_DIR)",
        f"bundle: {Path('/a').absolute()} (FORGE_BUNDLES)",
        f"bundle: {tmp_path / 'b'} (FORGE_BUNDLES)",
        "bundle: acme.bundle (an installed package)",
    ]
    places = json.loads(forge("settings", "--json", FORGE_CACHE="0").output)["places"]
    assert [place["what"] for place in places] == ["cache", "bundle"]
    assert places[0]["origin"] == "not used: FORGE_CACHE=0"
    default = json.loads(forge("settings", "--json").output)["places"][0]
    assert default == {"what": "cache", "place": str(Settings().folder), "origin": "the user's cache folder"}


def test_a_misspelt_variable_is_told_on_standard_error():
    """In a process of its own: pytest takes the log, which otherwise is standard error."""
    words = [sys.executable, "-m", "forge_core.cli", "settings", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "FORGE_BAKEND": "ref"})
    assert done.stderr == "environment variable FORGE_BAKEND is not read by Forge. Did you mean FORGE_BACKEND?\n"
    assert json.loads(done.stdout)["FORGE_BACKEND"] is None


def test_settings_as_json(forge):
    result = forge("settings", "--json", FORGE_ARCH="sm_80", FORGE_CACHE_DIR="folder")
    values = json.loads(result.output)
    assert list(values) == [*(variable.name for variable in VARIABLES), "origins", "places"]
    origins = values["origins"]
    assert {name for name in origins if origins[name] == "environment"} == {"FORGE_ARCH", "FORGE_CACHE_DIR"}
    assert list(origins) == [variable.name for variable in VARIABLES]
    assert values["FORGE_ARCH"] == "sm_80"
    assert values["FORGE_CACHE_DIR"] == "folder"
    assert values["FORGE_BACKEND"] is None


def test_a_wrong_variable_is_one_plain_message(forge):
    result = forge("settings", FORGE_DEBUG="maybe")
    assert result.exit_code == 1
    assert result.stderr == ("SettingsError: environment variable FORGE_DEBUG: expected 0 or 1, got 'maybe'.\n")


def test_a_forge_error_is_one_plain_message(forge, failing):
    failing(BenchmarkError("wrong result", suite="transpose"))
    result = forge("fail")
    assert result.exit_code == 1
    assert result.stderr == "BenchmarkError: wrong result (suite transpose)\n"
    assert result.stdout == ""


def test_debug_gives_the_traceback(forge, failing):
    failing(UnsupportedError("no."))
    result = forge("fail", FORGE_DEBUG="1")
    assert result.exit_code == 1
    assert isinstance(result.exception, UnsupportedError)


def test_any_other_error_is_not_hidden(forge, failing):
    failing(KeyError("a bug"))
    result = forge("fail")
    assert isinstance(result.exception, KeyError)


@pytest.mark.parametrize("broken", [False, True])
def test_doctor_exits_with_its_verdict(forge, monkeypatch, broken):
    facts = Facts(system="darwin", torch=machine._torch()[0] if not broken else Facts().torch)
    monkeypatch.setattr(machine, "collect", lambda: facts)
    result = forge("doctor", "--json")
    assert result.exit_code == int(broken)
    assert json.loads(result.output)["healthy"] is not broken
    text = forge("doctor")
    assert text.exit_code == int(broken)
    assert ("torch is not installed" in text.output) is broken


def test_the_module_is_a_program_too(python):
    assert python("-m", "forge_core.cli", "--version") == f"forge-cute, version {forge_core.__version__}\n"
