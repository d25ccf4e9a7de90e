"""The profilers' runners, with executables that stand in for the tools: arguments, environment, exit status, absence.

A stand-in is a script that writes down how it was started and leaves what the test tells it to; it imitates no tool's
work.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from forge_core import processes

TOOLS = ("profiling", "ncu_extract", "run", "runners", "workload")

STAND_IN = """#!{python}
import json, os, sys
sys.stdout.write(open({folder!r} + "/says").read() if os.path.exists({folder!r} + "/says") else "")
with open({folder!r} + "/calls", "a") as file:
    file.write(json.dumps({{"argv": sys.argv[1:], "lineinfo": os.environ.get("CUTE_DSL_LINEINFO"),
                            "caching": os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING")}}) + "\\n")
words = sys.argv[1:]
if "--query-metrics" in words:
    print("gpu__time_duration  time\\ndram__bytes_read  bytes\\nlaunch__grid_size  blocks")
elif "--import" in words or "stats" in words:
    print(open({folder!r} + "/table").read(), end="")
else:
    for flag, ending in (("--export", ".ncu-rep"), ("--output", ".nsys-rep")):
        if flag in words:
            open(words[words.index(flag) + 1] + ending, "w").write("report")
    status = {folder!r} + "/status"
    sys.exit(int(open(status).read()) if os.path.exists(status) else 0)
"""

TABLE = (
    "==PROF== Disconnected from process 7\n"
    '"ID","Kernel Name","gpu__time_duration.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed"\n'
    '"","","ns","%"\n'
    '"0","transpose_tiled_2B_0 (1)","12,000","81.5"\n'
)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Puts executables of the tools' names on a PATH of their own; returns their folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("ncu", "nsys", "compute-sanitizer"):
        file = folder / name
        file.write_text(STAND_IN.format(python=sys.executable, folder=str(folder)))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    (folder / "table").write_text(TABLE)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def calls(folder):
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def start(tools, tmp_path, *words):
    return tools.run.main([*words[:1], "--out", str(tmp_path / "out"), *words[1:]])


# --------------------------------------------------------------------------------------------------------------- ncu


def test_ncu_profiles_the_range_alone_under_the_clocks_as_they_are(tools, stand_in, tmp_path, capfd):
    assert start(tools, tmp_path, "ncu", "week0", "--case", "transpose 4096x4096 bfloat16", "--variant", "tiled") == 0
    query, profile, export = (call["argv"] for call in calls(stand_in))
    assert query == ["--query-metrics"]
    at = profile.index(sys.executable)
    own, child = profile[:at], profile[at + 1 :]
    assert own[own.index("--clock-control") + 1] == "none"
    assert own[own.index("--profile-from-start") + 1] == "off"
    assert "--nvtx" in own
    asked = own[own.index("--metrics") + 1].split(",")
    assert set(asked) == {"gpu__time_duration.sum", "dram__bytes_read.sum"}, "only counters that ncu says it has"
    assert Path(child[0]).name == "workload.py"
    asked = json.loads(child[1])
    assert Path(asked.pop("manifest")).parent == tmp_path / "out"
    assert asked == {"package": "week0", "case": "transpose 4096x4096 bfloat16", "variant": "tiled", "calls": 1}
    assert export[:1] == ["--import"] and "--csv" in export
    said = capfd.readouterr().out
    assert "Bound by the memory's bandwidth: DRAM at 82 % of its peak" in said
    (report,) = (tmp_path / "out").glob("*.ncu-rep")
    assert report.name.endswith("-ncu-week0-transpose-4096x4096-bfloat16-tiled.ncu-rep")
    assert f"written: {report}" in said
    assert {p.suffix for p in (tmp_path / "out").iterdir()} == {".ncu-rep", ".csv", ".txt", ".log"}


def test_a_command_of_ones_own_is_profiled_from_its_start(tools, stand_in, tmp_path):
    assert start(tools, tmp_path, "ncu", "--kernel", "tiled", "--", "python", "mine.py", "--case", "3") == 0
    profile = calls(stand_in)[1]["argv"]
    assert profile[-4:] == ["python", "mine.py", "--case", "3"]
    assert profile[profile.index("--profile-from-start") + 1] == "on"
    assert profile[profile.index("--kernel-name") + 1] == "regex:tiled"


def test_sets(tools, stand_in, tmp_path):
    assert start(tools, tmp_path, "ncu", "week0", "--set", "full") == 0
    words = calls(stand_in)[0]["argv"]
    assert words[words.index("--set") + 1] == "full" and "--metrics" not in words
    assert tools.runners.metrics_of("launch", "ncu") == ["--section", "LaunchStats", "--section", "Occupancy"]


def test_lines_are_asked_of_the_compiler_in_the_profiled_process(tools, stand_in, tmp_path, monkeypatch):
    monkeypatch.delenv("CUTE_DSL_LINEINFO", raising=False)
    start(tools, tmp_path, "ncu", "week0")
    start(tools, tmp_path, "ncu", "week0", "--lines")
    plain, lines = (call for call in calls(stand_in) if "--export" in call["argv"])
    assert (plain["lineinfo"], lines["lineinfo"]) == (None, "1")
    assert "SourceCounters" in lines["argv"] and "--import-source" in lines["argv"]


@pytest.mark.parametrize(
    "says, status, advice",
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", 1, "NVreg_RestrictProfilingToAdminUsers=0"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", 9, "plain driver"),
        (
            "==WARNING== The target application returned an error code (2).\n==WARNING== No kernels were profiled.\n",
            2,
            "the profiled program ended with an error",
        ),
        ("==WARNING== No kernels were profiled.", 0, "no kernel ran inside the profiled range"),
        ("ImportError: no module named softmax\n", 3, "exit status 3: ImportError: no module named softmax"),
    ],
)
def test_what_ncu_cannot_do_is_said_with_the_way_out(tools, stand_in, tmp_path, capfd, says, status, advice):
    (stand_in / "says").write_text(says)
    (stand_in / "status").write_text(str(status))
    assert start(tools, tmp_path, "ncu", "week0") == 2
    said = capfd.readouterr().err
    assert said.startswith("\ncannot profile: ncu") and advice in said
    assert ".log)" in said


# --------------------------------------------------------------------------------------------------------- the others


def test_nsys_captures_the_range(tools, stand_in, tmp_path):
    (stand_in / "table").write_text("kernels\n")
    assert start(tools, tmp_path, "nsys", "week1") == 0
    profile, stats = (call["argv"] for call in calls(stand_in))
    assert profile[0] == "profile"
    assert profile[profile.index("--capture-range") + 1] == "cudaProfilerApi"
    assert json.loads(profile[-1])["calls"] == 20
    assert stats[0] == "stats"
    assert start(tools, tmp_path, "nsys", "--", "python", "x.py") == 0
    assert "--capture-range" not in calls(stand_in)[2]["argv"]


def test_the_sanitizer_runs_each_tool_and_sums_up(tools, stand_in, tmp_path, capfd):
    (stand_in / "says").write_text("========= ERROR SUMMARY: 0 errors\n")
    assert start(tools, tmp_path, "sanitizer", "week1") == 0
    assert [c["argv"][c["argv"].index("--tool") + 1] for c in calls(stand_in)] == list(tools.runners.SANITIZERS)
    assert {c["caching"] for c in calls(stand_in)} == {"1"}
    assert capfd.readouterr().out.count(": clean: 0 errors") == 4


def test_a_tool_of_the_sanitizer_is_a_tool(tools, stand_in, tmp_path, capfd):
    (stand_in / "says").write_text("========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n")
    (stand_in / "status").write_text("86")
    assert start(tools, tmp_path, "racecheck", "week1") == 1
    assert len(calls(stand_in)) == 1
    assert "racecheck: FOUND: 2 hazards" in capfd.readouterr().out


def test_a_summary_that_counts_errors_is_no_success_whatever_the_exit_status(tools, stand_in, tmp_path):
    (stand_in / "says").write_text("========= ERROR SUMMARY: 3 errors\n")
    assert start(tools, tmp_path, "memcheck", "week1") == 1


def test_a_sanitizer_that_dies_is_an_error(tools, stand_in, tmp_path, capfd):
    (stand_in / "says").write_text("========= Error: Device not supported\n")
    (stand_in / "status").write_text("1")
    assert start(tools, tmp_path, "memcheck", "week1") == 2
    assert "does not support this device or this sandbox" in capfd.readouterr().err
    assert start(tools, tmp_path, "sanitizer", "--set", "leakcheck") == 2
    assert "expected one or several of memcheck" in capfd.readouterr().err


def test_torch_needs_a_case_of_ours(tools, stand_in, tmp_path, capfd):
    assert start(tools, tmp_path, "torch", "--", "python", "x.py") == 2
    assert "name a package or a case" in capfd.readouterr().err


@pytest.mark.parametrize("tool, executable", [("ncu", "ncu"), ("nsys", "nsys"), ("memcheck", "compute-sanitizer")])
def test_a_missing_tool_is_named_with_what_to_do(tools, tmp_path, monkeypatch, capfd, tool, executable):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(processes, "PLACES", (f"{tmp_path}/nowhere",))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    assert start(tools, tmp_path, tool, "week0") == 2
    said = capfd.readouterr().err
    assert f"{executable} was not found on the PATH" in said and "developer.nvidia.com" in said


def test_bad_usage(tools, capsys):
    for words in (["vtune"], ["ncu", "week0", "--", "python"], ["ncu", "--clock-control", "max"], []):
        assert tools.run.main(words) == 3
    assert "a command of your own stands instead of a package" in capsys.readouterr().err


def test_nox_passes_the_words_on(root):
    pytest.importorskip("nox", reason="nox is not installed in this environment")
    done = subprocess.run(
        [sys.executable, "-m", "nox", "--no-venv", "-s", "profile", "--", "ncu", "--extract", "nothing.csv"],
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode != 0
    assert "found no such file" in done.stderr + done.stdout


# ---------------------------------------------------------------------------------------------------------- workload


@pytest.fixture
def events(monkeypatch):
    """What is called of torch.cuda, in order."""
    found = []
    for module, names in (
        (torch.cuda, ("synchronize",)),
        (torch.cuda.profiler, ("start", "stop")),
        (torch.cuda.nvtx, ("range_push", "range_pop")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, lambda *args, name=name: found.append(" ".join((name, *args))))
    return found


def test_warm_up_stays_outside_the_profiled_range(tools, events):
    def work(name):
        return tools.workload.Work(
            name=name, variant="v", why="", launches=(), read=100, written=100,
            make=lambda device, number: (f"{name}{number}",), call=lambda x: events.append(f"call {x}"), case={},
        )  # fmt: skip

    tools.workload.run([work("a"), work("b")], calls=3, device=None, l2_bytes=100)
    assert events == [
        "call a1", "call a1", "call b1", "call b1",
        "synchronize", "start", "range_push forge",
        "range_push a", "call a0", "call a1", "call a0", "synchronize", "range_pop",
        "range_push b", "call b0", "call b1", "call b0", "synchronize", "range_pop",
        "synchronize", "range_pop", "stop",
    ]  # fmt: skip


def test_a_range_is_closed_when_its_call_fails(tools, events):
    with pytest.raises(ZeroDivisionError), tools.workload.profiled_range("x"):
        raise ZeroDivisionError
    assert events == ["synchronize", "start", "range_push x", "range_pop", "stop"]


def test_input_sets_exceed_the_l2_twice_and_no_more_than_needed(tools):
    sets = tools.workload.sets_for
    work = tools.workload.Work("w", "v", "", (), 30, 30, None, None, {})
    assert sets(work, 1, 60) == 1
    assert sets(work, 20, 60) == 3
    assert sets(work, 20, 10**6) == tools.workload.MOST_SETS


@pytest.fixture(scope="module")
def benches():
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")
    from forge_core.bench.plan import discover

    return discover()


def test_cases_by_words(tools, benches):
    (work,), left_out = tools.workload.choose(
        benches, "week0-transpose", "bfloat16 transpose 512x256", "tiled", arch="sm_90a"
    )
    assert work.name == "transpose 512x256 bfloat16 tiled" and left_out == []
    assert [launch.name for launch in work.launches] == ["transpose_tiled_2B_32x32_b0"]
    assert (work.read, work.written) == (2 * 512 * 256, 2 * 512 * 256)


def test_the_smoke_suite_is_the_default(tools, benches):
    works, _ = tools.workload.choose(benches, "week1", None, "auto", arch="sm_90a")
    assert {work.case["operator"] for work in works} == {"sum_rows", "sum_columns"}
    assert all(work.launches for work in works)


def test_all_variants_each_on_a_case_that_it_can_do(tools, benches):
    (bench,) = (bench for bench in benches if bench.name == "week0")
    works, left_out = tools.workload.choose(benches, "week0", "transpose 256x256 float32", "all", arch="sm_90a")
    assert {work.variant for work in works} == set(bench.by_name["transpose"].variants())
    assert left_out == []


def test_what_does_not_exist_is_refused(tools, benches):
    from click import UsageError

    from forge_core.errors import UnsupportedError

    choose = tools.workload.choose
    for package, case, variant, said in (
        ("week9", None, "auto", "no package 'week9'; packages: week0"),
        ("wek0", None, "auto", r"Did you mean week0"),
        ("week0", "softmax 4x4", "auto", "no suite and no operator is named 'softmax'"),
        (
            "week0",
            "transpose 4x4 float99",
            "auto",
            "expected one operator, .* got operator transpose, operator float99",
        ),
        ("week0", "4x4", "auto", "expected one operator, .* got shape 4x4"),
        ("week0", "transpose 4x4 8x8", "auto", "got operator transpose, shape 4x4, shape 8x8"),
        ("week0", "transpose 4x4", "shifed", "Did you mean shifted"),
        ("planted", "leak", "auto", "no planted fault is named 'leak'"),
    ):
        with pytest.raises(UsageError, match=said):
            choose(benches, package, case, variant, arch="sm_90a")
    with pytest.raises(UnsupportedError, match="'lines' was asked for"):
        choose(benches, "week0", "transpose 512x512 float32", "lines", arch="sm_90a")
