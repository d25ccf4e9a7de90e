from __future__ import annotations

import json
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import forge_core
from forge_core import cli
from forge_core.env_check import Facts, collect
from forge_core.errors import BenchmarkError, UnsupportedError
from forge_core.settings import VARIABLES


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)


@pytest.fixture
def forge():
    """Calls the command."""
    return lambda *args, **env: CliRunner().invoke(cli.main, args, env=env)


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


def test_help_lists_every_command_without_importing_the_lazy_ones(monkeypatch):
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    result = CliRunner().invoke(cli.main, ["--help"])
    assert result.exit_code == 0
    for name in ("bench", "cache", "doctor", "settings"):
        assert re.search(rf"^  {name} +\w", result.output, re.MULTILINE)


def test_bench_is_the_command_of_the_bench_module(forge):
    from forge_core.bench.cli import bench

    assert cli.main.get_command(click.Context(cli.main), "bench") is bench
    assert forge("bench", "--help").exit_code == 0


def test_an_unknown_command_is_a_usage_error(forge):
    result = forge("bnech")
    assert result.exit_code == 2
    assert "No such command 'bnech'" in result.output


def test_settings_shows_every_variable_with_its_value_and_origin(forge):
    result = forge("settings", FORGE_BACKEND="ref")
    assert result.exit_code == 0
    for variable in VARIABLES:
        assert variable.name in result.output
        assert variable.help in result.output
    assert "FORGE_BACKEND = ref (set)" in result.output
    assert "FORGE_DEBUG = False (default)" in result.output


def test_settings_as_json(forge):
    result = forge("settings", "--json", FORGE_ARCH="sm_80", FORGE_CACHE_DIR="folder")
    values = json.loads(result.output)
    assert list(values) == [variable.name for variable in VARIABLES]
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
    facts = Facts(system="darwin", torch=collect._torch()[0] if not broken else Facts().torch)
    monkeypatch.setattr(collect, "collect", lambda: facts)
    result = forge("doctor", "--json")
    assert result.exit_code == int(broken)
    assert json.loads(result.output)["healthy"] is not broken
    text = forge("doctor")
    assert text.exit_code == int(broken)
    assert ("torch is not installed" in text.output) is broken


def test_the_module_is_a_program_too():
    done = subprocess.run(
        [sys.executable, "-m", "forge_core.cli", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"forge-cute, version {forge_core.__version__}\n")
