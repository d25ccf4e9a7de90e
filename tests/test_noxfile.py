"""How `nox -s tests -- ...` understands what follows the dashes."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest


class Session:
    """The part of a session that is asked for here."""

    def error(self, message):
        raise SystemExit(message)


def split(noxfile, *words):
    chosen, rest = noxfile._split(Session(), list(words))
    return [package.distribution for package in chosen], rest


def test_packages_are_what_lies_there(noxfile, packages):
    assert [p.distribution for p in noxfile.packages()] == [p.name for p in packages]


def test_a_package_goes_by_any_of_its_names(noxfile, packages):
    for package in packages:
        for name in (package.path.name, package.name, package.module):
            assert split(noxfile, name) == ([package.name], [])


def test_the_rest_goes_to_pytest(noxfile):
    assert split(noxfile, "week0-transpose", "forge-core", "-k", "week1-reduce", "-x") == (
        ["forge-week0-transpose", "forge-cute-core"],
        ["-k", "week1-reduce", "-x"],
    )
    assert split(noxfile, "-x") == ([], ["-x"])
    assert split(noxfile) == ([], [])


def test_a_path_goes_to_pytest(noxfile, monkeypatch, root):
    monkeypatch.chdir(root)
    assert split(noxfile, "tests/test_noxfile.py::test_x", "-x") == ([], ["tests/test_noxfile.py::test_x", "-x"])


def test_an_unknown_name_is_an_error_that_lists_the_packages(noxfile):
    with pytest.raises(SystemExit, match="'week9' is neither a package nor a path; the packages are forge-cute-core, "):
        split(noxfile, "week9")


class Failing:
    """A session on a prepared machine whose commands end with a status."""

    _runner = SimpleNamespace(global_config=SimpleNamespace(force_venv_backend="none"))

    def __init__(self, status):
        self.status = status

    def run(self, *command, interrupt_timeout, **options):
        import nox

        # An interrupted bench writes down what it has; nox alone would end it after 0.3 s.
        assert interrupt_timeout > 10
        raise nox.command.CommandFailed(f"Returned code {self.status}", return_code=self.status)


def test_a_worker_that_a_signal_ends_fails_the_tests_and_does_not_hang_them(noxfile, monkeypatch, tmp_path):
    pytest.importorskip("xdist")
    monkeypatch.setattr(noxfile.Path, "exists", lambda path: False)  # as without a GPU
    monkeypatch.setattr(noxfile.shutil, "which", lambda name: None)
    monkeypatch.setattr(noxfile.os, "cpu_count", lambda: 2)
    workers, _ = noxfile._workers(Failing(0), [])
    text = "import os, pytest\n@pytest.mark.parametrize('i', range(300))\ndef test_x(i):\n    {} \n"
    for name, body in (("a", "i == 50 and os.abort()"), ("b", "pass"), ("c", "pass"), ("d", "pass")):
        tmp_path.joinpath(f"test_{name}.py").write_text(text.format(body), encoding="utf-8")
    command = (sys.executable, "-m", "pytest", "-q", *workers, str(tmp_path))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "crashed while running 'test_a.py::test_x[50]'" in done.stdout


@pytest.mark.parametrize("status, told", [(2, 2), (3, 3), (1, None)])
def test_a_regression_and_bad_usage_have_their_status_through_nox_too(noxfile, status, told):
    import nox

    with pytest.raises((SystemExit, nox.command.CommandFailed)) as raised:
        noxfile.python(Failing(status), *noxfile.BENCH, "compare", "OLD", "NEW")
    assert getattr(raised.value, "code", None) == told
    # Of another command these numbers mean something else.
    with pytest.raises(nox.command.CommandFailed):
        noxfile.python(Failing(status), "-m", "pytest")


def test_the_statuses_are_those_of_the_bench(noxfile):
    from forge_core import cli

    assert (noxfile.REGRESSION, noxfile.BAD_USAGE) == (cli.REGRESSION, cli.BAD_USAGE)
