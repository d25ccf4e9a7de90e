"""Comparing records: what is slower is found, what is not is left alone, and the machine's share is taken out."""

from __future__ import annotations

import random
import re
from pathlib import Path

import msgspec
import pytest

from forge_core.bench import processes
from forge_core.bench.compare import commit_message, compare, comparison_markdown, percent, time_text
from forge_core.bench.records import ContenderRecord, Run, figures, load, pool, union
from forge_core.errors import BenchmarkError

SHAPES = (1024, 2048, 4096)
RECORDS = Path(__file__).parents[3] / "docs" / "records" / "h200"
MEASURED = load(max(RECORDS.glob("week0-*.json.xz")))
(CASE,) = [case for case in MEASURED.cases if case.name == "transpose 4096x4096 float32"]
H200 = msgspec.structs.replace(MEASURED.environment, commit="a" * 40, dirty=False, sources={}, peers={})


def contender(rng, name, kind, milliseconds, noise, runs, variant=""):
    taken = [[milliseconds * rng.gauss(1, noise) for _ in range(16)] for _ in range(runs)]
    medians = [sorted(samples)[8] for samples in taken]
    own = [Run(median, median, median, 16) for median in medians]
    return ContenderRecord(
        name=name,
        kind=kind,
        **figures(own, 10**8),
        runs=own,
        samples_ms=[sample for samples in taken for sample in samples],
        variant=variant,
        config=f"Config({variant})" if variant else "",
    )


def record(seed, slow=1.0, *, machine=1.0, noise=0.02, runs=3, variant="tiled", only=None, **changes):
    """A run in which our kernel takes `slow` times as long (in the case `only`) and everything `machine` times."""
    rng = random.Random(seed)
    cases = []
    for n in SHAPES:
        base = n * n * 8 / 4e9 * machine
        factor = slow if only in (None, n) else 1.0
        contenders = [
            contender(rng, "forge", "ours", base * 1.1 * factor, noise, runs, variant),
            contender(rng, "eager", "peer", base * 3, noise, runs),
            contender(rng, "ceiling", "ceiling", base, noise, runs),
        ]
        name, nbytes = f"transpose {n}x{n} float32", 4 * n * n
        made = msgspec.structs.replace(CASE, name=name, shape=[n, n], read=nbytes, written=nbytes, best_peer="eager")
        cases.append(msgspec.structs.replace(made, contenders=contenders))
    date = f"2026-11-2{seed % 10}T10:00:00+00:00"
    made = msgspec.structs.replace(MEASURED, date=date, environment=H200, repeats=runs, cases=cases)
    return msgspec.structs.replace(made, **changes)


def broken(seed):
    made = record(seed)
    cases = [msgspec.structs.replace(made.cases[0], contenders=[], error="it broke"), *made.cases[1:]]
    return msgspec.structs.replace(made, cases=cases)


def with_contenders(made, change):
    """The record with the contenders of each case that `change` makes of them."""
    cases = [msgspec.structs.replace(case, contenders=change(case.contenders)) for case in made.cases]
    return msgspec.structs.replace(made, cases=cases)


@pytest.mark.parametrize("runs", [1, 3])
def test_a_tenth_slower_is_always_found_and_the_same_never_accused(runs):
    for seed in range(8):
        old = record(seed, runs=runs)
        found = compare(old, record(1000 + seed, 1.10, only=2048, runs=runs))
        assert [change.case for change in found.regressions] == ["transpose 2048x2048 float32"]
        assert found.regressions[0].change == pytest.approx(0.10, abs=0.03)
        assert found.regressions[0].low < 0.10 < found.regressions[0].high
        assert compare(old, record(2000 + seed, runs=runs)).regressions == []


def test_what_the_machine_moved_by_is_taken_out():
    found = compare(record(1), record(2, machine=1.2))
    assert found.regressions == []
    assert found.control == pytest.approx(0.2, abs=0.02)
    # A slower machine does not hide a slower kernel either.
    found = compare(record(1), record(2, 1.1, machine=0.8))
    assert len(found.regressions) == 3
    assert found.regressions[0].new_ms < found.regressions[0].old_ms


def test_one_peer_that_moved_accuses_nobody():
    def beside(made, seed, factor):
        rng = random.Random(seed)
        peers = [contender(rng, "compile", "peer", 0.01 * factor, 0.02, 3), contender(rng, "slow", "peer", 9, 0.02, 3)]
        return with_contenders(made, lambda contenders: [*contenders, *peers])

    found = compare(beside(record(1), 11, 1.0), beside(record(2), 12, 0.75))
    assert found.regressions == []
    assert all(abs(change.change) < 0.03 for change in found.changes)


@pytest.mark.parametrize(
    "changes, note",
    [
        ({"torch": "2.99.0"}, f"torch: {H200.torch} -> 2.99.0."),
        ({"peers": {"quack-kernels": "0.7.0"}}, "quack-kernels: 0.6.5 -> 0.7.0."),
    ],
)
def test_a_peer_of_another_version_is_no_control(changes, note):
    older = msgspec.structs.replace(H200, peers={"quack-kernels": "0.6.5"})
    newer = msgspec.structs.replace(older, **changes)

    def halved(c):
        samples = [sample / 2 for sample in c.samples_ms]
        return msgspec.structs.replace(c, median_ms=c.median_ms / 2, samples_ms=samples) if c.name == "eager" else c

    new = with_contenders(record(2, environment=newer), lambda contenders: list(map(halved, contenders)))
    found = compare(record(1, environment=older), new)
    assert found.control == pytest.approx(0, abs=0.02)
    assert found.notes == [note]


def test_a_small_change_within_chance_is_not_reported():
    found = compare(record(1, noise=0.1), record(2, 1.02, noise=0.1))
    assert found.regressions == []
    assert found.moved == []
    # The same change with quiet samples is.
    assert len(compare(record(1, noise=0.002), record(2, 1.02, noise=0.002)).moved) == 3


def test_a_single_short_run_accuses_nobody_of_what_an_address_may_cost():
    """A few microseconds differ by some percent from run to run; one run cannot show it, three do."""
    one = compare(record(1, runs=1, noise=0.005), record(2, 1.06, only=1024, runs=1, noise=0.005))
    assert one.regressions == []
    assert [change.case for change in one.suspects] == ["transpose 1024x1024 float32"]
    three = compare(record(1, noise=0.005), record(2, 1.06, only=1024, noise=0.005))
    assert len(three.regressions) == 1


def test_what_is_gone_what_is_new_and_what_broke_is_said():
    old, new = record(1), record(2, variant="vectorized")
    bad = msgspec.structs.replace(new.cases[1], contenders=[], error="wrong result")
    added = msgspec.structs.replace(new.cases[2], name="transpose 9x9 float32")
    found = compare(old, msgspec.structs.replace(new, cases=[new.cases[0], bad, added]))
    assert found.gone == ["transpose 4096x4096 float32"]
    assert found.added == ["transpose 9x9 float32"]
    assert found.broken == {"transpose 2048x2048 float32": "wrong result"}
    assert found.changes[0].became == "tiled Config(tiled) -> vectorized Config(vectorized)"


def test_texts_for_a_pull_request_and_a_commit():
    found = compare(record(1), record(2, 1.3, only=4096))
    text = comparison_markdown(found)
    assert "**1 regressions** at 5 %." in text
    assert re.search(
        r"\| transpose 4096x4096 float32 \| auto \| .* us \| .* us \| \+\d+\.\d % \| .* \| REGRESSION \|", text
    )
    block = commit_message(found)
    assert block.startswith(
        "Bench: week0, NVIDIA H200\n  aaaaaaaaaaaa -> aaaaaaaaaaaa\n  transpose 4096x4096 float32\n"
    )
    assert "  2 of 3 unchanged; controls " in block
    assert max(map(len, block.splitlines())) <= 72
    assert [time_text(time_ms) for time_ms in (0.00755, 0.263, 1.25, 2500)] == ["7.55 us", "263 us", "1.25 ms", "2.5 s"]
    assert percent(-0.083) == "-8.3 %"


@pytest.fixture
def run(forge, tmp_path):
    def run(old, new, *options):
        for name, made in (("old", old), ("new", new)):
            (tmp_path / f"{name}.json").write_text(made.dumps())
        result = forge("bench", "compare", tmp_path / "old.json", tmp_path / "new.json", *options)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, " ".join(result.output.split())

    return run


@pytest.mark.parametrize(
    "new, options, status, words",
    [
        (broken(2), ("--fail-on-regression", "5%"), 1, "ERROR: transpose 1024x1024 float32: it broke"),
        (record(2, 1.1), ("--fail-on-regression", "5%"), 2, "suspects were not measured again: there is no GPU here."),
        (record(2, 1.1), ("--fail-on-regression", "5%"), 2, "REGRESSION"),
        (record(2), ("--fail-on-regression", "5%"), 0, "0 slower and 0 faster by more than 5 %, 3 within"),
        (record(2, 1.1), ("--fail-on-regression", "0.05"), 2, "3 slower"),
        (record(2, 1.1), ("--fail-on-regression", "20%"), 0, "0 slower"),
        (record(2, 1.1), (), 0, "3 slower"),
        (record(2, 0.9), ("--fail-on-regression", "5%"), 0, "3 faster"),
        (record(2, 1.1), ("--fail-on-regression", "5%", "--markdown"), 2, "**3 regressions**"),
        (record(2, 1.1), ("--fail-on-regression", "5%", "--commit-message"), 2, "Bench: week0"),
        (record(2), ("--fail-on-regression", "much"), 3, "such as 5% or 0.05, got 'much'"),
        (record(2), ("--fail-on-regression", "120%"), 3, "between 0 and 1"),
        (record(2, suite="week1"), (), 3, "different suites, week0 and week1"),
        (record(2, timer="host"), (), 3, "different timers, device and host"),
        (record(2, environment=msgspec.structs.replace(H200, gpu="NVIDIA B200")), (), 3, "NVIDIA H200 and NVIDIA B200"),
    ],
)
def test_the_exit_status_says_what_was_found(run, new, options, status, words):
    code, output = run(record(1), new, *options)
    assert (code, words in output) == (status, True), output


@pytest.mark.parametrize("truth, regressions", [(1.0, 0), (1.1, 1)])
def test_measuring_by_turns_decides_what_the_records_only_suspected(truth, regressions):
    first = compare(record(1), record(2, 1.1, only=2048))
    assert len(first.suspects) == 1
    asked = []

    def measure(which):
        asked.append(which)
        slow = truth if which == "new" else 1.0
        return record(50 + len(asked), slow, only=2048, machine=1 + 0.05 * len(asked), runs=1)

    found = processes.in_turns(first, measure)
    assert asked == ["old", "new", "new", "old"]
    assert len(found.regressions) == regressions
    assert found.rerun.startswith("1 suspect cases were measured again, old new new old in turn")


def test_runs_are_pooled_and_shares_united():
    parts = [record(n, runs=1) for n in range(3)]
    pooled = pool(parts)
    forge = pooled.cases[0].contender("forge")
    assert pooled.repeats == 3
    assert len(forge.runs) == 3
    assert [samples[0] for samples in forge.samples_by_run()] == pytest.approx(
        [part.cases[0].contender("forge").samples_ms[0] for part in parts], abs=1e-6
    )
    whole = record(5)
    shares = [msgspec.structs.replace(whole, cases=whole.cases[n::2], notes=["A note."]) for n in range(2)]
    united = union(shares, ["cuda:0", "cuda:1"])
    assert [case.name for case in united.cases] == [case.name for case in whole.cases]
    assert [case.device for case in united.cases] == ["cuda:0", "cuda:1", "cuda:0"]
    assert united.notes == ["A note."]
    assert united.devices == ["cuda:0", "cuda:1"]


def test_a_record_of_version_1_is_compared(run, tmp_path):
    path = tmp_path / "v1.json"
    text = record(1).dumps().replace('"schema_version": 2', '"schema_version": 1')
    for key in ("stopwatch", "l2_policy", "interrupted", "not_run", "devices"):
        text = re.sub(rf',\n "{key}": [^\n,]*', "", text)
    path.write_text(text)
    assert "stopwatch" not in text
    assert load(path).stopwatch == "events"
    assert compare(load(path), record(2, 1.1)).regressions


# ------------------------------------------------------------------------------------- the old sources and the new ones


@pytest.fixture
def two_sources(git, tmp_path, monkeypatch):
    """A checkout whose commit before this one is the old sources; returns its folder and that commit."""
    root = tmp_path / "repo"
    source = root / "packages" / "week0" / "src"
    source.mkdir(parents=True)
    git(root, "init", "-q")
    for text in ("old", "new"):
        (source / "kernel.py").write_text(text)
        git(root, "add", ".")
        git(root, "commit", "-q", "-m", text)
    monkeypatch.setattr(processes, "_root", lambda: root)
    monkeypatch.setattr(processes.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(processes.torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    return root, git(root, "rev-parse", "HEAD~1")


@pytest.fixture
def suspected(two_sources):
    environment = msgspec.structs.replace(H200, commit=two_sources[1])
    return compare(record(1, environment=environment), record(2, 1.1, only=2048))


def test_suspects_run_by_turns_from_the_old_commit(suspected, monkeypatch):
    ran = []

    def run_bench(arguments, *, environment):
        source, before = environment["PYTHONPATH"].split(":")
        ran.append((Path(source) / "kernel.py").read_text())
        assert before == "where/torch/is"
        selected = "--shape 2048x2048 --dtype float32 --variant auto --seed 0"
        assert arguments == ["week0", *selected.split()]
        return record(60 + len(ran), 1.1 if ran[-1] == "new" else 1.0, only=2048)

    monkeypatch.setattr(processes, "run_bench", run_bench)
    monkeypatch.setenv("PYTHONPATH", "where/torch/is")
    found = processes.confirm(suspected)
    assert ran == ["old", "new", "new", "old"]
    assert len(found.regressions) == 1


def test_suspects_are_measured_again_as_they_were_measured(two_sources, monkeypatch):
    """A variant beside auto, another timer, another state of the L2: what is measured again is what was accused."""

    def naive(made):
        made = with_contenders(made, lambda found: [msgspec.structs.replace(found[0], name="forge:naive"), *found[1:]])
        return msgspec.structs.replace(made, stopwatch="graph", l2_policy="warm", seed=7)

    asked = []

    def run_bench(arguments, *, environment):
        asked.append(" ".join(arguments))
        return record(70 + len(asked), only=2048)  # of auto alone

    monkeypatch.setattr(processes, "run_bench", run_bench)
    accused = compare(naive(record(1)), naive(record(2, 1.1, only=2048)))
    found = processes.confirm(accused, old_source=two_sources[0])
    assert "--variant all --timer graph --l2 warm --seed 7" in asked[0]
    # The processes said nothing of the variant: the records' verdict stays, and nothing says otherwise.
    assert found.changes == accused.changes
    assert "could not be measured again: the processes left no figures of transpose 2048x2048" in found.rerun


def test_a_process_that_fails_leaves_the_records_verdict_and_says_so(suspected, monkeypatch):
    def run_bench(arguments, *, environment):
        raise BenchmarkError("a process of the bench ended with status 1")

    monkeypatch.setattr(processes, "run_bench", run_bench)
    found = processes.confirm(suspected)
    assert "could not be measured again: a process of the bench ended with status 1" in found.rerun
    assert found.changes == suspected.changes


@pytest.mark.parametrize(
    "change, why",
    [
        ({"gpu": "NVIDIA B200"}, "this is NVIDIA H200, and the records are of NVIDIA B200"),
        ({"sources": {"forge_core": "0" * 64}}, "the sources here are not those of the new record (forge_core)"),
        ({"commit": "not a checkout"}, "the old record has no clean commit; name a checkout of it by --old-source"),
        ({"dirty": True}, "the old record has no clean commit"),
    ],
)
def test_what_stands_in_the_way_is_said(two_sources, change, why):
    environment = msgspec.structs.replace(H200, **change)
    found = compare(record(1, environment=environment), record(2, 1.1, environment=environment))
    assert why in processes.confirm(found).rerun


def test_without_suspects_nothing_is_measured(two_sources):
    assert processes.confirm(compare(record(1), record(2))).rerun == ""
