"""What the remote runs call of Modal: over a stand-in, and against the signatures of its client where that is there."""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest

TOOLS = ("remote", "plan", "session")


@pytest.fixture
def plan(tools):
    return tools.plan.make_plan("bench", ["week2"], gpu="H200")


class Error(Exception):
    """In place of an error of Modal's."""


def adapter(monkeypatch):
    """The module for Modal over a stand-in of Modal, and the stand-in."""
    modal = mock.MagicMock()
    modal.exception = SimpleNamespace(
        Error=Error, AuthError=type("A", (Error,), {}), TimeoutError=type("T", (Error,), {})
    )
    for name in ("modal", "modal.config", "modal.exception"):
        monkeypatch.setitem(sys.modules, name, modal if name == "modal" else getattr(modal, name.split(".")[1]))
    monkeypatch.delitem(sys.modules, "modal_client", raising=False)
    return importlib.import_module("modal_client"), modal


def driven(tools, plan, monkeypatch):
    """Modal's stand-in after one run of a command."""
    module, modal = adapter(monkeypatch)
    copied = []
    image = modal.Image.from_registry.return_value.entrypoint.return_value
    image.run_commands.return_value = image.add_local_dir.return_value = image

    def add_local_dir(folder, *rest, **options):
        copied.append(sorted(p.name for p in folder.rglob("*") if p.is_file()))
        return image

    image.add_local_dir.side_effect = add_local_dir
    sandbox = modal.Sandbox.create.return_value
    sandbox.exec.return_value.stdout = ["one\n", "two\n"]
    sandbox.exec.return_value.wait.return_value = 3
    sandbox.filesystem.read_bytes.return_value = b"data"
    said = []
    with module.rented(plan) as machine:
        assert (machine.run(["true"], said.append), machine.read("/out/x"), said) == (3, b"data", ["one\n", "two\n"])
        assert not sandbox.terminate.called
    assert sandbox.terminate.called and modal.App.return_value.run.return_value.__exit__.called
    return modal, image, sandbox, copied


def test_a_sandbox_is_made_of_the_plan_and_terminated(tools, plan, monkeypatch):
    plan = replace(plan, image=tools.plan.image_steps(["pyproject.toml", "noxfile.py"]))
    modal, image, sandbox, copied = driven(tools, plan, monkeypatch)
    options = modal.Sandbox.create.call_args.kwargs
    assert (options["gpu"], options["timeout"], options["image"]) == ("H200", plan.seconds, image)
    assert (options["cpu"], options["memory"]) == ((8.0, 8.0), (65536, 65536))
    assert list(options["volumes"]) == ["/cache"]
    modal.Volume.from_name.assert_called_once_with("forge-compile-cache", create_if_missing=True)
    modal.Image.from_registry.assert_called_once_with("nvidia/cuda:13.0.3-devel-ubuntu24.04", add_python="3.12")
    assert [call.args[0] for call in image.run_commands.call_args_list] == [
        step.what for step in plan.image if step.verb == "RUN"
    ]
    assert copied == [["constraints.txt"], ["noxfile.py", "pyproject.toml"]]
    assert sandbox.exec.call_args.args[:2] == ("sh", "-c") and sandbox.exec.call_args.args[-1] == "true"
    assert sandbox.exec.call_args.kwargs["env"]["FORGE_CACHE_DIR"] == "/cache/forge"


def test_modal_s_errors_are_told(tools, plan, monkeypatch):
    module, modal = adapter(monkeypatch)
    modal.config.config.get.return_value = None
    with pytest.raises(tools.session.RemoteError, match="-m modal setup`, or set MODAL_TOKEN_ID"):
        module.rented(plan).__enter__()
    assert modal.App.call_count == 0
    modal.config.config.get.return_value = "something"
    for error, said in (("AuthError", "credentials"), ("TimeoutError", "time limit"), ("Error", "Modal: Error: why")):
        modal.Sandbox.create.side_effect = getattr(modal.exception, error)("why")
        with pytest.raises(tools.session.RemoteError, match=said), module.rented(plan):
            pytest.fail("there is no machine")


def test_modal_has_what_is_called_of_it(tools, plan, monkeypatch):
    real = pytest.importorskip(
        "modal", reason="modal, which `nox -s remote` alone installs, is not in this environment"
    )
    exceptions = [
        getattr(importlib.import_module("modal.exception"), n) for n in ("Error", "AuthError", "TimeoutError")
    ]
    assert all(issubclass(one, exceptions[0]) for one in exceptions)
    known = importlib.import_module("modal.config").config
    assert all(known.get(name) is None for name in ("token_id", "token_secret", "oauth_refresh_token"))
    modal, image, sandbox, _ = driven(tools, plan, monkeypatch)
    for called, function in (
        (modal.Sandbox.create, real.Sandbox.create),
        (modal.Volume.from_name, real.Volume.from_name),
        (modal.Image.from_registry, real.Image.from_registry),
        (modal.App, real.App),
        (modal.App.return_value.run, real.App.run),
        (modal.enable_output, real.enable_output),
        (image.run_commands, real.Image.run_commands),
        (image.add_local_dir, real.Image.add_local_dir),
        (sandbox.exec, real.Sandbox.exec),
        (sandbox.terminate, real.Sandbox.terminate),
    ):
        signature = inspect.signature(function)
        own = [None] if "self" in signature.parameters else []
        for call in called.call_args_list:
            signature.bind(*own, *call.args, **call.kwargs)
    assert hasattr(real.Sandbox, "filesystem")
