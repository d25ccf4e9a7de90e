"""Runs on a rented GPU, against a client that rents none: its machine runs what it is given here, in a folder.

Nothing here asks the service; test_remote_modal.py has what is called of it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

TOOLS = ("remote", "plan", "session", "remote")
SEVEN = ("sh", "-c", "echo working; printf 1234567 > out/record.json; exit 2")


class Client:
    """Rents the folder that it is given; `during` is called while the command runs, and `lost` is what it may set."""

    def __init__(self, tools, folder, *, gpu="NVIDIA H200", credentials=True):
        self.error = tools.session.RemoteError
        self.tools, self.folder, self.gpu, self.credentials = tools, folder, gpu, credentials
        self.ran, self.rented, self.given_back, self.lost, self.during = [], [], 0, False, None

    @contextmanager
    def machine(self, plan):
        if not self.credentials:
            raise self.error("expected Modal's credentials")
        self.rented.append(plan)
        try:
            yield self
        finally:
            self.given_back += 1

    def run(self, words, say):
        if self.lost:
            raise self.error("the connection is gone")
        self.ran.append(tuple(words))
        if tuple(words) == self.tools.session.NAME:
            say(f"a warning\n{self.gpu}\n")
            return 0
        started = tuple(words[: len(self.tools.session.START)]) == self.tools.session.START
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
        with subprocess.Popen(words, cwd=self.folder, **options) as process:
            try:
                if started and self.during is not None:
                    self.during()
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            for line in process.stdout:
                say(line)
        return process.returncode

    def read(self, path):
        return (self.folder / path).read_bytes()


@pytest.fixture
def client(tools, tmp_path):
    (tmp_path / "there" / "out").mkdir(parents=True)
    return Client(tools, tmp_path / "there")


@pytest.fixture
def plan(tools, tmp_path):
    """Of a command of a test's own, whose folder `out` comes back to `here`."""
    made = tools.plan.make_plan("bench", ["week2"], gpu="H200", out=tmp_path / "x.json")
    return replace(made, command=SEVEN, back=(tools.plan.Back("out", tmp_path / "here"),))


def carried(tools, plan, client):
    said = []
    return tools.session.carry_out(plan, client.machine, said.append), "".join(said)


def here(tmp_path):
    return {str(p.relative_to(tmp_path / "here")) for p in (tmp_path / "here").rglob("*")}


# --------------------------------------------------------------------------------------------------------- the plan


def test_each_kind_runs_the_very_command_of_its_session(tools, noxfile, monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(noxfile, "python", lambda session, *words: ran.append(words))
    words = {"bench": ["week2", "--dtype", "bfloat16"], "prove": ["week2", "-n", "4"], "profile": ["ncu", "week0"]}
    added = {"bench": ("--json", "/out/r.json"), "prove": (), "profile": ("--out", "/out")}
    for kind, given in words.items():
        getattr(noxfile, kind).func(SimpleNamespace(posargs=given))
        out = {"bench": tmp_path / "r.json", "prove": None, "profile": tmp_path / "p"}[kind]
        made = tools.plan.make_plan(kind, given, gpu="H200", out=out, minutes=7)
        limit = ("timeout", "--signal=INT", "--kill-after=60", "420")
        assert made.command == (*limit, "/opt/forge/bin/python", *ran[-1], *added[kind])


def test_records_come_back_to_where_the_session_writes_them(tools, root, tmp_path):
    def back(*words, **options):
        made = tools.plan.make_plan(*words, gpu="B200", **options)
        return [tuple(one)[:2] for one in made.back], made.command

    assert back("bench", ["week2"], out=tmp_path / "r.json.gz")[0] == [("/out/r.json.gz", tmp_path / "r.json.gz")]
    assert back("bench", ["week2"], out=tmp_path / "new")[0] == [("/out", tmp_path / "new")]
    assert back("bench", ["week2"])[1][-2:] == ("--out", "/out")
    assert back("prove", [])[0] == [
        ("/forge/docs/records", root / "docs/records"),
        ("/forge/results/proofs", root / "results/proofs"),
    ]
    places, command = back("profile", ["torch"], own=["python", "mine.py", "--calls", "3"])
    assert places == [("/out", root / "profiles")]
    assert command[-7:] == ("--out", "/out", "--", "python", "mine.py", "--calls", "3")


def test_the_image_has_everything_else_then_torch_then_the_packages_and_pip_check(tools, packages):
    base, venv, pins, others, torch, sources, editable, check = tools.plan.image_steps(["a", "b"], ["liger-kernel"])
    assert base == ("FROM", "nvidia/cuda:13.0.3-devel-ubuntu24.04", ())
    assert pins.files == ("constraints.txt",) and sources.files == ("a", "b")
    assert venv.what.startswith("python -m venv /opt/forge")
    pip = "/opt/forge/bin/python -m pip"
    assert others.what.startswith(f"{pip} install -c /forge/constraints.txt ")
    words = others.what.split()
    assert {"liger-kernel", "pytest", "hatchling", "'nvidia-cutlass-dsl[cu13]>=4.8,<5'"} <= set(words)
    assert not [word for word in words if word.strip("'").startswith(("torch", "forge-", "modal"))]
    assert torch.what == f"{pip} install -c /forge/constraints.txt torch"
    assert editable.what == f"cd /forge && {pip} install --no-deps --no-build-isolation " + " ".join(
        f"-e packages/{package.path.name}" for package in packages
    )
    assert check.what == f"{pip} check"


def test_what_travels_is_what_git_tracks_and_for_prove_the_unfinished_proof(tools, tmp_path, monkeypatch):
    for name in ("kept.py", "gone.py", "secret.env", "results/proofs/state.json", "results/other.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "pyproject.toml").write_text("[dependency-groups]\ndev = []\n")
    for words in (["init", "-q"], ["add", "kept.py", "gone.py", "pyproject.toml"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    (tmp_path / "gone.py").unlink()
    monkeypatch.setattr(tools.plan, "ROOT", tmp_path)
    made = tools.plan.make_plan("bench", ["week2"], gpu="H200")
    assert made.files == ("kept.py", "pyproject.toml") and "untracked, not sent: " in made.describe()
    assert set(made.untracked) == {"secret.env", "results/proofs/state.json", "results/other.json"}
    assert tools.plan.make_plan("prove", [], gpu="H200").files[-1] == "results/proofs/state.json"
    monkeypatch.setattr(tools.plan, "ROOT", tmp_path / "results")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    with pytest.raises(tools.plan.UsageError, match="expected a git checkout"):
        tools.plan.files_of("--cached")


def test_the_cost_is_limit_and_reserve_times_gpu_cores_and_memory(tools, plan):
    hour = replace(plan, minutes=55)
    assert hour.seconds == 3600
    assert hour.cost == pytest.approx(3600 * (0.001261 + 8 * 0.00003942 + 64 * 0.00000672))
    first, second, *_ = hour.describe().splitlines()
    assert first.startswith("cost      at most about $7.22: 60 minutes at $7.22 an hour (GPU $4.54")
    assert f"as of {tools.plan.PRICES_AS_OF}" in second and "https://modal.com/pricing" in second
    assert replace(hour, gpu="B200").cost > hour.cost


@pytest.mark.parametrize(
    "words, said",
    [
        ("bench week2 --gpu H300", "--gpu: expected one of B200, H200, H100, .*, got 'H300'"),
        ("bench week2", "Missing option '--gpu'"),
        ("bench --gpu H200", "expected a suite or an operator first"),
        ("bench compare a b --gpu H200", "got 'compare'; nox -s bench -- compare has it"),
        ("bench week2 --json r.json --gpu H200", "--json: bench takes none here"),
        ("bench week2 --gpu H200 --out {there}", "{there} exists; name another file"),
        ("bench week2 --gpu H200 --out {there}/r.json", "expected a folder, and {there} is a file"),
        ("prove --gpu H200 --out x", "--out: prove takes none here"),
        ("profile nsys --gpu H200", "expected one of ncu, .* got 'nsys'"),
        ("profile ncu --extract r --gpu H200", "--extract: profile takes none here"),
        ("tune week1 --gpu H200", "'tune' is not one of"),
    ],
)
def test_what_is_not_served_is_refused_before_anything_is_built(tools, client, tmp_path, capsys, words, said):
    there = tmp_path / "there.json"
    there.write_text("mine")
    status = tools.remote.main(words.format(there=there).split(), client.machine)
    assert (status, client.rented) == (tools.remote.BAD_USAGE, [])
    assert re.search(said.format(there=there), capsys.readouterr().err)
    assert there.read_text() == "mine"


def test_a_dry_run_prints_everything_and_asks_no_client(tools, capsys, tmp_path):
    words = ["bench", "week2", "--shape", "4x4", "--gpu", "H100", "--out", str(tmp_path / "r.json"), "--dry-run"]
    assert tools.remote.main(words, lambda plan: pytest.fail("a machine was asked for")) == 0
    said = capsys.readouterr().out
    made = tools.plan.make_plan("bench", ["week2", "--shape", "4x4"], gpu="H100", out=tmp_path / "r.json")
    assert said.startswith(made.describe()) and said.startswith("cost ")
    for text in ("nox -s bench -- week2 --shape 4x4", "'H100!'", "pip check", "forge-compile-cache", "FORGE_CACHE_DIR"):
        assert text in said
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------------------- the run


def test_the_record_comes_back_with_the_status_of_the_command(tools, plan, client, tmp_path):
    status, said = carried(tools, plan, client)
    assert status == 2
    assert (tmp_path / "here" / "record.json").read_text() == "1234567" and here(tmp_path) == {"record.json"}
    assert "working\n" in said and f"exit status 2; came back:\n{tmp_path / 'here' / 'record.json'}" in said
    assert "forge-cute bench stamp" in said
    assert client.ran[0] == tools.session.NAME and client.given_back == 1


@pytest.mark.parametrize("got", ["NVIDIA H100 80GB HBM3", "NVIDIA H200 NVL", ""])
def test_another_gpu_is_refused_before_any_work(tools, plan, client, got):
    client.gpu = got
    with pytest.raises(tools.session.RemoteError, match=f"calls 'NVIDIA H200', got '{got or 'a warning'}'"):
        carried(tools, plan, client)
    assert client.ran == [tools.session.NAME] and client.given_back == 1


@pytest.mark.parametrize(
    "interrupted, credentials, status, said",
    [
        (False, True, 2, ""),
        (False, False, 4, "remote: expected Modal's credentials\n"),
        (True, True, 130, "remote: interrupted\n"),
    ],
)
def test_the_program_ends_with_the_status(
    tools, plan, client, monkeypatch, capsys, interrupted, credentials, status, said
):
    monkeypatch.setattr(tools.remote, "make_plan", lambda *words, **options: plan)
    client.credentials, client.during = credentials, mock.Mock(side_effect=KeyboardInterrupt if interrupted else None)
    assert tools.remote.main(["bench", "week2", "--gpu", "H200"], client.machine) == status
    told = capsys.readouterr()
    assert told.err.lstrip("\n") == said and told.out.startswith("cost      at most")
    assert len(client.rented) == client.given_back == int(credentials)


def test_without_modal_the_error_says_how_to_install_it(tools, plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "modal", None)
    monkeypatch.delitem(sys.modules, "modal_client", raising=False)
    with pytest.raises(tools.session.RemoteError, match=r"pip install -c constraints\.txt modal"):
        tools.remote.rented(plan)


def test_at_the_limit_what_was_written_comes_back(tools, plan, client, tmp_path):
    script = "trap 'printf partial > out/record.json; exit 1' INT; while :; do sleep 0.05; done"
    limited = ("timeout", "--signal=INT", "--kill-after=60", "0.3", "sh", "-c", script)
    with pytest.raises(tools.session.RemoteError, match=r"limit of 60 minutes was reached(.|\n)*came back:\n.*record"):
        carried(tools, replace(plan, command=limited), client)
    assert (tmp_path / "here" / "record.json").read_text() == "partial" and client.given_back == 1
    with pytest.raises(tools.session.RemoteError, match="was killed: out of memory"):
        carried(tools, replace(plan, command=("sh", "-c", "exit 137")), client)


def test_a_run_that_dies_half_way_keeps_whole_files_and_no_parts(tools, plan, client, tmp_path, monkeypatch):
    monkeypatch.setattr(tools.session, "POLL_SECONDS", 0.1)
    original = client.run

    def run(words, say):
        if tuple(words[: len(tools.session.LIST)]) == tools.session.LIST:
            with (client.folder / "out" / "b").open("a") as growing:
                growing.write("more")
        return original(words, say)

    def dies():
        for _ in range(1000):
            time.sleep(0 if (tmp_path / "here" / "a").exists() else 0.01)
        client.lost = True
        raise client.error("the connection is gone")

    client.run, client.during = run, dies
    with pytest.raises(tools.session.RemoteError, match=r"connection is gone\ncame back:\n.*/here/a$"):
        carried(tools, replace(plan, command=("sh", "-c", "printf whole > out/a; sleep 60")), client)
    assert here(tmp_path) == {"a"} and (tmp_path / "here" / "a").read_text() == "whole"
    assert client.given_back == 1


def test_a_file_cut_off_on_its_way_is_not_kept(tools, plan, client, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "read", lambda path: b"123", raising=False)
    with pytest.raises(tools.session.RemoteError, match="expected 7 bytes, got 3\nnothing came back"):
        carried(tools, plan, client)
    assert not (tmp_path / "here").exists()


def test_a_file_that_cannot_be_written_leaves_the_old_one(tools, tmp_path, monkeypatch):
    (tmp_path / "r").write_text("old")
    monkeypatch.setattr(Path, "replace", mock.Mock(side_effect=OSError("disk full")))
    with pytest.raises(tools.session.RemoteError, match="cannot be written: disk full"):
        tools.session.write(tmp_path / "r", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["r"] and (tmp_path / "r").read_text() == "old"


def test_an_interrupt_stops_the_command_brings_its_record_and_gives_back(tools, plan, client, tmp_path):
    script = "trap 'printf partial > out/record.json; exit 1' INT; echo ready; while :; do sleep 0.05; done"
    original, ended = client.run, threading.Event()

    def run(words, say):
        if words[-1] != script:
            return original(words, say)
        # A shell cannot trap what was ignored when it began, as SIGINT is in a background job.
        words = ["env", "--default-signal=INT", *words]
        process = subprocess.Popen(words, cwd=client.folder, stdout=subprocess.PIPE, start_new_session=True)
        assert process.stdout.readline() == b"ready\n"
        threading.Thread(target=lambda: (process.communicate(), ended.set())).start()  # reaps it
        raise KeyboardInterrupt

    client.run = run
    with pytest.raises(KeyboardInterrupt):
        carried(tools, replace(plan, command=("sh", "-c", script)), client)
    assert ended.wait(10) and (tmp_path / "here" / "record.json").read_text() == "partial"
    assert client.given_back == 1


def test_what_was_there_stays_and_a_finished_proof_leaves_no_state(tools, plan, client, tmp_path):
    for name in ("records/old", "proofs/state.json"):
        for folder in (client.folder, tmp_path / "here"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("same")
    back = tuple(tools.plan.Back(n, tmp_path / "here" / n, n == "proofs") for n in ("records", "proofs"))
    client.read = mock.Mock(side_effect=client.read)
    status, _ = carried(tools, replace(plan, back=back, command=("rm", "proofs/state.json", "records/old")), client)
    assert status == 0 and not client.read.called
    assert here(tmp_path) == {"records", "records/old", "proofs"}
