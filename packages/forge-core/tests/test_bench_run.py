"""The bench end to end on the CPU: who is timed, who is refused, what is recorded, and the exit status."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
import signal
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from forge_core import settings
from forge_core.bench import Bench, Case, Package, Peer, cold, plan, processes, runner
from forge_core.bench.gate import exact
from forge_core.bench.inputs import generator_for, random_tensor
from forge_core.bench.measure import Context, Options, measure, poison
from forge_core.bench.records import load, thin
from forge_core.errors import BenchmarkError
from forge_core.progress import ends
from forge_core.testing.inputs import LAYOUTS
from forge_core.timing import check_floor
from forge_core.timing.interleave import Policy
from forge_core.timing.timers import EventTimer

SUITES = """
version: 1
suites:
  quick:
    about: Two cases on the CPU.
    cpu: true
    peers: [eager]
    cases:
      - {operator: swap, shapes: [8x6, 5x7], dtypes: [float32]}
  gpu:
    about: Not for the CPU.
    cases:
      - {operator: swap, shapes: [8x6], dtypes: [int8], variants: all}
  latency:
    about: Host time.
    cpu: true
    timer: host
    peers: [eager]
    cases:
      - {operator: swap, shapes: [4x4], dtypes: [float32]}
"""
CPU = torch.device("cpu")


def swap(x):
    return x.transpose(-1, -2).clone(memory_format=torch.contiguous_format)


def wrong_in(numbers, wrong):
    """A call that is right, but `wrong` in its calls of these numbers, from 1."""
    calls = itertools.count(1)
    return lambda x: wrong(x) if next(calls) in numbers else swap(x)


def half_written(x):
    # What an allocator hands out may by chance be an earlier, right result; a test must not depend on it.
    out = torch.full((x.shape[1], x.shape[0]), 0.5, dtype=x.dtype)
    out[: x.shape[1] // 2] = x.t()[: x.shape[1] // 2]
    return out


def changes_its_input(x):
    out = swap(x)
    x.zero_()
    return out


def off_by_one_bit(x):
    out = swap(x)
    out.view(torch.int32)[-1, -1] ^= 1
    return out


@pytest.fixture
def invoke(forge, stand_in, tmp_path, monkeypatch):
    """Runs `bench` with a stand-in package whose operator is the given call; returns what is printed and the record."""

    def run(*arguments, status=0, ours=swap, peer=swap, extra=(), suites=SUITES):
        path = tmp_path / "suites.yaml"
        path.write_text(suites)
        peers = (Peer("eager", lambda case: peer), *extra)
        operator = stand_in("swap", ours, swap, peers=peers, default_shapes=("6x4",))
        monkeypatch.setattr(plan, "discover", lambda: [Bench("stand-in", "forge_core", (operator,), path)])
        target = tmp_path / "record.json"
        result = forge("bench", *arguments, "--json", target)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == status, result.output
        return result.output, load(target) if target.exists() else None

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return run


def test_a_suite_runs_and_says_that_the_cpu_was_timed(invoke):
    output, record = invoke("quick")
    assert "No GPU devices found: the reference is timed on the CPU." in output
    assert [case.name for case in record.cases] == ["swap 8x6 float32", "swap 5x7 float32"]
    case = record.cases[0]
    assert [c.name for c in case.contenders] == ["forge", "eager", "ceiling"]
    assert [c.kind for c in case.contenders] == ["ours", "peer", "ceiling"]
    forge = case.contender("forge")
    assert forge.variant == "reference"
    assert forge.correct == "exact equality, bit by bit, before and after the timing"
    assert case.best_peer == "eager"
    ceiling = case.contender("ceiling")
    assert forge.of_ceiling == pytest.approx(ceiling.median_ms / forge.median_ms, rel=1e-3)
    assert forge.gbs == pytest.approx(2 * 8 * 6 * 4 / (forge.median_ms * 1e6), rel=1e-2)
    assert ceiling.of_ceiling == 1.0
    assert (case.read, case.written, case.traffic) == (192, 192, "each element is read once and written once")
    assert record.backend == "ref"
    assert "on the CPU" in record.method
    assert record.environment.torch == torch.__version__
    assert len(record.environment.sources["forge_core"]) == 64


def test_the_strides_of_a_slice_are_no_change_of_it(invoke):
    _, record = invoke("quick", suites=SUITES.replace("dtypes: [float32]}", "dtypes: [float32], layout: sliced}"))
    assert record.cases[0].layout == "sliced"
    assert [contender.name for contender in record.cases[0].contenders] == ["forge", "eager", "ceiling"]


def test_warmup_iterations_and_repeats_are_what_was_asked(invoke):
    calls = []

    def counted(x):
        calls.append(1)
        return swap(x)

    _, record = invoke("quick", "--shape", "8x6", "--warmup", "2", "--iterations", "1", "--repeats", "3", ours=counted)
    assert len(calls) == 3 * (1 + 2 + 1 + 1)  # of each run: gate, warm-up, sample, gate
    forge = record.cases[0].contender("forge")
    assert [run.samples for run in forge.runs] == [1, 1, 1]
    medians = sorted(run.median_ms for run in forge.runs)
    assert forge.median_ms == medians[1]
    assert forge.of_ceiling == sorted(run.of_ceiling for run in forge.runs)[1]
    assert record.repeats == 3
    assert len(forge.samples_ms) == 3


def test_an_operator_needs_no_suite(invoke):
    _, record = invoke("swap", "--shape", "3x9", "--dtype", "int8", "--dtype", "bool")
    assert [case.name for case in record.cases] == ["swap 3x9 int8", "swap 3x9 bool"]
    output, record = invoke("swap")
    assert "No GPU devices found: the reference is timed on the CPU" in output
    assert [case.name for case in record.cases] == ["swap 6x4 float32"]


@pytest.mark.parametrize(
    "wrong, message",
    [
        (lambda x: x.clone(), "shape: expected"),
        (lambda x: x.t(), "shares its memory with an input"),
        (lambda x: swap(x).double(), "dtype: expected torch.float32, got torch.float64"),
        (lambda x: swap(x.clone()).t().contiguous().t(), "strides: expected"),
        (half_written, "elements differ"),
        (off_by_one_bit, "1 of 48 elements differ"),
        (changes_its_input, "input 0 was changed"),
    ],
)
def test_a_wrong_operator_is_an_error_and_the_others_still_run(invoke, wrong, message):
    output, record = invoke("quick", ours=lambda x: wrong(x) if x.shape == (8, 6) else swap(x), status=1)
    bad, good = record.cases
    for text in ("wrong result before the timing", message, "peer forge"):
        assert text in bad.error
    assert bad.contenders == []
    assert not good.error
    assert good.contenders
    assert "ERROR: swap 8x6 float32" in output


def raises(x):
    raise RuntimeError("no such launch")


@pytest.mark.parametrize(
    "wrong, message",
    [
        (half_written, "wrong result before the timing"),
        (changes_its_input, "input 0 was changed"),
        (raises, "peer eager: RuntimeError: no such launch"),
    ],
)
def test_a_peer_that_is_wrong_is_an_error_too_and_ours_are_timed_without_it(invoke, wrong, message):
    output, record = invoke("quick", peer=lambda x: wrong(x) if x.shape == (8, 6) else swap(x), status=1)
    bad, good = record.cases
    assert message in bad.wrong["eager"]
    assert "eager" in bad.wrong["eager"]
    assert [contender.name for contender in bad.contenders] == ["forge", "ceiling"]
    assert bad.best_peer == ""
    assert not bad.error
    assert not good.wrong
    assert good.best_peer == "eager"
    assert f"ERROR: swap 8x6 float32: {bad.wrong['eager']}"[:60] in output
    assert "ERROR" in next(line for line in output.splitlines() if "8x6" in line and "ERROR" in line)
    assert record.errors == [f"swap 8x6 float32: {bad.wrong['eager']}"]


@pytest.mark.parametrize("number", [1 + 2 + 3, 1 + 2 + 3 + 1, 1 + 2 + 3 + 1 + 1])
def test_a_peer_that_turns_wrong_has_no_figures_of_any_run(invoke, number):
    # The last timed launch, the check after it, and the next run's check.
    arguments = ("quick", "--shape", "8x6", "--warmup", "2", "--iterations", "3", "--repeats", "2")
    _, record = invoke(*arguments, peer=wrong_in(range(number, 99), half_written), status=1)
    (case,) = record.cases
    assert "wrong result" in case.wrong["eager"]
    assert [contender.name for contender in case.contenders] == ["forge", "ceiling"]
    assert len(case.contender("forge").runs) == 2


def test_a_peer_is_held_to_where_it_declares_to_round(invoke):
    def rounds(x):
        return swap(x).bfloat16().float()

    def near(inputs, got, want):
        assert got.shape == want.shape == inputs[0].shape[::-1]
        off = (got - want).abs() > 2.0**-8 * want.abs()
        return f"{int(off.sum())} are off" if off.any() else ""

    extra = [
        Peer("honest", lambda case: rounds, agree=near, tolerance="an ulp of bf16"),
        Peer("lossy", lambda case: lambda x: rounds(x) * 1.01, agree=near, tolerance="an ulp of bf16"),
        Peer("silent", lambda case: rounds),
    ]
    names = [argument for peer in extra for argument in ("--peer", peer.name)]
    _, record = invoke("quick", "--shape", "8x6", *names[:2], extra=extra)
    case = record.cases[0]
    assert case.contender("honest").correct == "an ulp of bf16, before and after the timing"
    assert case.contender("forge").correct == "exact equality, bit by bit, before and after the timing"
    for wrong in ("lossy", "silent"):
        _, record = invoke("quick", "--shape", "8x6", "--peer", wrong, extra=extra, status=1)
        assert f"peer {wrong}" in record.cases[0].error


def stale(x, calls):
    """What a kernel does that was captured wrongly: the first call is right, and the others return it again."""
    calls.append(swap(x))
    return calls[0].clone()


@pytest.mark.parametrize(
    "wrong, message",
    [
        (wrong_in([1 + 2 + 3 + 1], half_written), "wrong result after the timing"),
        (wrong_in(range(2, 1 + 2 + 3 + 1), half_written), "wrong result in a timed launch"),
        (partial(stale, calls=[]), "wrong result in a timed launch: .*elements differ"),
    ],
)
def test_an_operator_that_turns_wrong_is_caught(invoke, wrong, message):
    _, record = invoke("quick", "--shape", "8x6", "--warmup", "2", "--iterations", "3", ours=wrong, status=1)
    assert re.match(message, record.cases[0].error)


def test_uneven_samples_are_noted(invoke, monkeypatch):
    now = [0]

    def clock():
        now[0] += [100_000, 500_000][now[0] // 1_000_000 % 2] if now[0] else 1
        return now[0]

    monkeypatch.setattr("forge_core.timing.host.WallTimer.__init__.__defaults__", (clock,))
    output, record = invoke("quick", "--shape", "8x6")
    (note,) = [note for note in record.cases[0].notes if note.startswith("Uneven samples")]
    assert "forge" in note
    assert "wider than a quarter of the median: swap 8x6 float32." in output


def test_an_exception_is_recorded_with_its_type(invoke):
    _, record = invoke("quick", "--shape", "5x7", ours=raises, status=1)
    assert record.cases[0].error == "RuntimeError: no such launch"


def test_a_time_below_the_floor_is_an_error(invoke, monkeypatch):
    def far_above(timing, floor, **names):
        check_floor(timing, 1e9, **names)

    monkeypatch.setattr("forge_core.bench.measure.check_floor", far_above)
    _, record = invoke("quick", "--shape", "5x7", status=1)
    assert "below the roofline floor" in record.cases[0].error


def test_a_missing_requirement_is_named(invoke):
    absent = Peer("absent", lambda case: swap, requires=(Package("no-such-package", "no_such_module_at_all"),))
    assert absent.requires[0].distributions == ("no-such-package",)
    output, record = invoke("swap", "--device", "cpu", extra=(absent,))
    assert record.cases[0].left_out == {"absent": "needs the package no-such-package"}
    assert "Left out: absent: needs the package no-such-package." in output
    assert record.environment.peers == {}
    # Asked for by name it is not left out in silence, nor with a remark.
    _, record = invoke("swap", "--device", "cpu", "--peer", "absent", extra=(absent,), status=1)
    assert "peer absent needs the package no-such-package" in record.cases[0].error


def test_the_version_of_a_peer_s_package_is_recorded(invoke):
    present = Peer("present", lambda case: swap, requires=(Package("no-such-package or numpy", "numpy"),))
    output, record = invoke("swap", "--device", "cpu", extra=(present,))
    assert list(record.environment.peers) == ["numpy"]
    assert f"numpy {record.environment.peers['numpy']}" in " ".join(output.split())


@pytest.mark.parametrize(
    "status, arguments, message",
    [
        (3, "nothing", "is named 'nothing'; suites: cold, full, gpu, latency, quick; operators: swap"),
        (3, "qiuck", "operators: swap. Did you mean quick?"),
        (3, "swpa", "Did you mean swap or sweep?"),
        (3, "lits", "operators: swap. Did you mean list?"),
        (3, "quick --variant narrow", "quick: no variant 'narrow'; variants: auto, naive, wide, all"),
        (3, "quick --variant widee --variant auto", "wide, all. Did you mean wide?"),
        (3, "quick --variant naive", "the backend is 'ref', which has none"),
        (3, "quick --peer eagre", "quick: no peer 'eagre'; peers: eager. Did you mean eager?"),
        (3, "quick --operator SWPA", "quick: no operator 'SWPA'; operators: swap. Did you mean swap?"),
        (3, "quick --package stand-on", "no package 'stand-on'; packages: stand-in. Did you mean stand-in?"),
        (3, "quick --dtype float31", "unknown dtype 'float31'; known: "),
        (3, "quick --shape 8*6", "expected a shape such as 4096x4096, got '8*6'"),
        (3, "quick --shape 9x9", "no case of shape 9x9"),
        (3, "quick --backend numpy", "'numpy' is not one of 'kernel', 'ref'"),
        (3, "quick --iterations 0", "0 is not in the range x>=1"),
        (3, "quick --timer sundial", "'sundial' is not one of 'events', 'graph', 'cupti'"),
        (3, "quick --l2 hot", "'hot' is not one of 'cold', 'flushed', 'warm'"),
        (3, "quick --device tpu", "expected cpu, cuda or cuda:N, got 'tpu'"),
        (3, "quick --device cpu --devices cpu,cpu", "expected one of them"),
        (3, "quick --devices cuda:0,cuda", "expected different GPUs, got 'cuda:0,cuda'"),
        (3, "quick --devices cpu,cuda:0,cpu", "expected different GPUs"),
        (3, "quick --devices cuda:0,", "expected cpu, cuda or cuda:N, got ''"),
        (3, "accuracy --device cpu", "expected cuda or cuda:N"),
        (1, "gpu", "gpu needs a CUDA GPU: No GPU devices found. With --device cpu"),
        (1, "quick --backend kernel", "backend 'kernel' needs a CUDA GPU, the device is cpu"),
        (1, "quick --device cuda:1", "--device cuda:1: No GPU devices found"),
        (1, "quick --devices all", "No GPU devices found"),
        (1, "quick --devices cuda:0,cuda:1", "--device cuda:0: No GPU devices found"),
    ],
)
def test_what_cannot_be_run_has_its_status_and_says_what_there_is(invoke, status, arguments, message):
    output, record = invoke(*arguments.split(), status=status)
    assert message in " ".join(output.split())
    assert record is None


def test_a_package_without_thresholds_is_not_tuned(forge, invoke):
    invoke("quick")
    result = forge("bench", "tune", "stand-in", "--device", "cpu")
    assert (result.exit_code, "declares no thresholds" in result.output) == (1, True)


def test_a_name_unlike_any_other_comes_without_a_guess(invoke):
    output, _ = invoke("xyz", status=3)
    assert "operators: swap" in output and "Did you mean" not in output


def test_cases_are_selected_by_package_operator_and_share(invoke):
    invoke("quick", "--package", "stand-in", "--operator", "swap")
    _, record = invoke("full", "--device", "cpu", "--share", "1", "2")
    assert [case.name for case in record.cases] == ["swap 5x7 float32"]


def test_a_suite_for_gpus_runs_on_the_cpu_when_told_to(invoke):
    _, record = invoke("gpu", "--device", "cpu")
    why = "the backend is 'ref', which has no variants"
    assert record.cases[0].left_out == {"forge:naive": why, "forge:wide": why}


def test_forge_debug_is_refused(forge, invoke, monkeypatch):
    invoke("quick")
    monkeypatch.setenv("FORGE_DEBUG", "1")
    result = forge("bench", "quick")
    assert result.exit_code == 1
    assert "unset FORGE_DEBUG" in str(result.exception)


def test_host_time_has_no_bandwidth(invoke):
    output, record = invoke("latency")
    forge, eager = record.cases[0].contenders
    assert (forge.name, eager.name) == ("forge", "eager")
    assert forge.gbs is None
    assert forge.of_best_peer == pytest.approx(forge.median_ms / eager.median_ms, rel=0.05)
    assert "host time" in output


@pytest.mark.parametrize("backend, told", [("", None), ("ref", "ref")])
def test_an_operator_is_timed_as_its_users_call_it(invoke, monkeypatch, backend, told):
    # A block that sets the backend lengthens each call inside it.
    monkeypatch.delenv("FORGE_BACKEND", raising=False)
    if backend:
        monkeypatch.setenv("FORGE_BACKEND", backend)
    seen = set()

    def observed(x):
        seen.add((settings.untouched(), settings.requested_backend()))
        return swap(x)

    invoke("latency", ours=observed)
    assert seen == {(told is None, told)}


def test_the_record_on_standard_output_is_json_alone(forge, invoke, tmp_path, monkeypatch):
    invoke("quick")
    result = forge("bench", "run", "quick", "--json", "-", "--out", tmp_path / "out")
    assert json.loads(result.stdout)["suite"] == "quick"
    assert "bandwidth" in result.stderr
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".json", ".md"]


def test_declaring_benchmarks_imports_no_cutlass_and_touches_no_gpu(python):
    python(
        "-c",
        "import sys, torch\n"
        "from forge_core.bench import plan, schema\n"
        "assert [schema.load_suites(bench) for bench in plan.discover()]\n"
        "assert 'cutlass' not in sys.modules and not torch.cuda.is_initialized()\n",
    )


def test_list_names_suites_operators_variants_and_peers(forge, invoke):
    invoke("quick")
    output = forge("bench", "list").output
    assert "suite     quick        Two cases on the CPU." in output
    assert "operator  swap         variants: naive, wide; peers: eager" in output


class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "shape, act",
    [
        ((5, 7), partial(signal.raise_signal, signal.SIGINT)),
        ((5, 7), partial(signal.raise_signal, signal.SIGTERM)),
        ((8, 6), Finalized),  # Python drops what is raised there: the run ends after its case
    ],
    ids=["interrupt", "termination", "in a finalizer"],
)
def test_an_interrupt_keeps_what_was_measured(invoke, shape, act):
    def interrupted(x):
        if x.shape == shape:
            act()
        return swap(x)

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    output, record = invoke("quick", ours=interrupted, status=1)
    assert record.interrupted
    assert [case.name for case in record.cases] == ["swap 8x6 float32"]
    assert record.cases[0].contenders
    assert record.not_run == ["swap 5x7 float32"]
    assert "Interrupted: 1 of 2 cases were measured." in output
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_termination_comes_once_and_not_after_an_interrupt(monkeypatch):
    monkeypatch.setattr(runner, "AT_ONCE", 0.0)
    for first in (signal.SIGTERM, signal.SIGINT):
        with runner.Interrupts():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(first)
            signal.raise_signal(signal.SIGTERM)  # while the record is written
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)  # somebody who does not want to wait for it


def test_timeout_s_two_signals_are_one():
    with runner.Interrupts():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_a_termination_while_the_record_is_made_does_not_lose_it(invoke, monkeypatch):
    combined = runner.records.combined

    def terminated(*parts):
        signal.raise_signal(signal.SIGTERM)
        return combined(*parts)

    monkeypatch.setattr(runner.records, "combined", terminated)
    _, record = invoke("quick")
    assert not record.interrupted
    assert len(record.cases) == 2


def test_a_termination_of_a_spread_run_reaches_its_processes(monkeypatch):
    ended, started = [], threading.Barrier(3)

    def waiting(arguments, *, on_case, on_start):
        told = threading.Event()
        on_start(SimpleNamespace(terminate=told.set))
        started.wait(10)
        assert told.wait(10)
        ended.append(arguments[-2])
        return f"record of {arguments[-2]}"

    def interrupted(running):
        if not ended:
            started.wait(10)
            monkeypatch.setattr(processes, "wait", wait)
            raise KeyboardInterrupt

    wait = processes.wait
    monkeypatch.setattr(processes, "run_bench", waiting)
    monkeypatch.setattr(processes, "wait", interrupted)
    found = processes.spread(["smoke"], ["cuda:0", "cuda:1"], lambda name: None)
    assert found == ["record of 0", "record of 1"]


def test_an_interrupt_in_a_later_run_says_how_many_are_whole(invoke):
    calls = []

    def pulled(x):
        calls.append(x.shape)
        if len(calls) > 1 and calls[-1] == (8, 6) and (5, 7) in calls:
            raise KeyboardInterrupt
        return swap(x)

    _, record = invoke("quick", "--repeats", "3", ours=pulled, status=1)
    assert record.interrupted
    assert record.not_run == []
    assert [len(case.contenders[0].runs) for case in record.cases] == [1, 1]
    assert any(note.startswith("Of 3 runs 1 came to their end") for note in record.notes)


def test_the_full_suite_is_every_case_once(invoke):
    _, record = invoke("full", "--device", "cpu")
    assert [case.name for case in record.cases] == ["swap 8x6 float32", "swap 5x7 float32", "swap 8x6 int8"]
    assert record.cases[2].left_out  # the variants that the suite for the GPU names


def test_a_busy_machine_and_a_clock_that_moved_are_noted(invoke, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 0.0, 0.0))
    monkeypatch.setattr("forge_core.timing.host.WallTimer.clock_mhz", lambda self: clocks.pop(0))
    clocks = [1980, 1700]
    output, record = invoke("quick", "--shape", "8x6")
    assert any(note.startswith("The machine was shared: load average 1000.0 on ") for note in record.notes)
    assert "The clock moved while the samples were taken: 1980 MHz to 1700 MHz." in record.cases[0].notes
    assert "swap 8x6 float32: The clock moved" in output


def test_first_calls_are_measured_with_empty_and_with_kept_caches(invoke, monkeypatch):
    asked, found = [], []

    def start(what, caches):
        asked.append((what["contender"], what["backend"], caches["FORGE_CACHE_DIR"]))
        # quack keeps its cache among the temporary files, so these must begin empty, too.
        left = Path(caches["TMPDIR"], "left-by-the-first")
        found.append(left.exists())
        left.touch()
        first = 2.0 if sum(entry[2] == caches["FORGE_CACHE_DIR"] for entry in asked) == 1 else 0.5
        return {"import_s": 0.1, "first_s": first, "again_us": 30.0}

    monkeypatch.setattr(cold, "start", start)
    output, record = invoke("cold", "--iterations", "2")
    assert [name for name, _, _ in asked] == ["forge"] * 4 + ["eager"] * 4
    assert len({folder for _, _, folder in asked}) == 4  # each pair of processes has caches of its own
    assert found == [False, True] * 4
    assert {(name, backend) for name, backend, _ in asked} == {("forge", "ref"), ("eager", None)}
    forge = record.cases[0].contender("forge")
    assert (forge.cold.empty_s, forge.cold.kept_s, forge.cold.again_us) == (2.0, 0.5, 30.0)
    assert forge.median_ms == 2000.0
    assert forge.gbs is None
    assert record.timer == "cold"
    assert "swap: first call of a process" in output


def test_a_first_call_in_a_process_of_its_own():
    asked = {"package": "forge_week0_transpose", "operator": "copy", "shape": "64x48", "dtype": "int8"}
    asked |= {"layout": "contiguous", "contender": "forge", "device": "cpu", "backend": "ref", "seed": 0}
    first = cold.start(asked, {})
    assert 0 < first["import_s"] < 30
    assert 0 < first["first_s"] < 30
    assert 0 < first["again_us"] < 1e5
    peer = cold.start({**asked, "contender": "eager", "backend": None}, {})
    assert peer["import_s"] < first["import_s"]  # a peer does not pay for importing ours, and eager imports nothing
    with pytest.raises(BenchmarkError, match=r"failed in a fresh process: .*layout"):
        cold.start({**asked, "layout": "odd"}, {})


def test_a_suite_is_spread_over_devices(forge, tmp_path):
    """Two processes on the CPU stand for two GPUs; the packages are the real ones, for a process has no stand-ins."""
    path = tmp_path / "record.json"
    arguments = ["smoke", "--package", "week0", "--operator", "copy", "--dtype", "int8", "--devices", "cpu,cpu"]
    result = forge("bench", *arguments, "--backend", "ref", "--json", path)
    assert result.exit_code == 0, result.output
    record = load(path)
    assert [case.name for case in record.cases] == ["copy 1024x1024 int8", "copy 1000003 int8"]
    assert record.devices == ["cpu", "cpu"]
    assert "[2/2] copy" in result.output


@pytest.mark.parametrize("kind", [BenchmarkError, OSError, SystemExit])
def test_every_device_that_fails_is_named(monkeypatch, kind):
    def broken(arguments, **rest):
        raise kind(f"no record of {' '.join(arguments[-2:])}")

    monkeypatch.setattr(processes, "run_bench", broken)
    with pytest.raises(BenchmarkError, match=r"cuda:0: no record of 0 2.*; cuda:1: no record of 1 2"):
        processes.spread(["smoke"], ["cuda:0", "cuda:1"], lambda name: None)


def test_the_end_is_estimated():
    now = dt.datetime(2026, 11, 21, 10, 0, 0)  # noqa: DTZ001 - a time of day, whatever the zone
    assert ends(0, 10, 3.0, now) == ""
    assert ends(2, 10, 60.0, now) == "ends about 10:04:00"
    assert ends(10, 10, 60.0, now) == "ends about 10:00:00"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.uint16, torch.bool, torch.complex64]
)
def test_inputs_are_random_repeatable_and_laid_out_as_asked(dtype, layout):
    def make(what):
        generator = generator_for(CPU, seed=3, what=what)
        return random_tensor((33, 20), dtype, device=CPU, generator=generator, layout=layout)

    x = make("a")
    assert (tuple(x.shape), x.dtype) == ((33, 20), dtype)
    assert exact(x, make("a")) == ""
    assert "differ" in exact(x, make("b"))
    assert x.is_contiguous() == (layout in ("contiguous", "offset"))
    assert (x.storage_offset() == 1) == (layout == "offset")


def test_inputs_of_a_vector_cannot_be_permuted():
    make = partial(random_tensor, (4,), torch.int8, device=CPU, generator=generator_for(CPU, seed=0, what=""))
    with pytest.raises(ValueError, match="two or more dimensions"):
        make(layout="permuted")
    with pytest.raises(ValueError, match="one of contiguous, permuted"):
        make(layout="odd")


def test_samples_are_thinned_evenly():
    assert thin([1.0, 2.0], 48) == [1.0, 2.0]
    kept = thin([float(n) for n in range(100)], 10)
    assert kept == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0]


@pytest.mark.gpu
def test_poison_reaches_the_next_output():
    poison(2**22, torch.device("cuda"))
    assert torch.empty(2**22, dtype=torch.uint8, device="cuda").eq(0xA5).all()


@pytest.mark.gpu
def test_work_on_another_stream_is_refused(stand_in):
    """A contender whose results are right, but which forgets the current stream, is done before its events are."""
    other = torch.cuda.Stream()

    def forgets_the_stream(x):
        other.wait_stream(torch.cuda.default_stream())  # made the inputs
        with torch.cuda.stream(other):
            return swap(x)

    operator = stand_in("swap", forgets_the_stream, swap)
    case = Case("swap", (8192, 8192), torch.float32)
    planned = plan.PlannedCase(Bench("stand-in", "forge_core", (operator,), None), operator, case, ("auto",), ())
    device = torch.device("cuda", 0)
    context = Context(Options(device, "ref", Policy(warmup=1, iterations=5)), EventTimer(device))
    with pytest.raises(BenchmarkError, match="landed on another stream"):
        measure(planned, context)
