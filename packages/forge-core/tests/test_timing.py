"""The stopwatch, as far as it can be tried without a GPU: statistics, order, buffers, floor, host time."""

from __future__ import annotations

import itertools
import time
from functools import partial

import pytest
import torch

from forge_core.errors import BenchmarkError, UnsupportedError
from forge_core.timing import Timing, check_floor, floor_ms, host, quantile
from forge_core.timing.host import WallTimer, host_times, import_times
from forge_core.timing.interleave import Contender, Policy, launch_order, time_interleaved
from forge_core.timing.l2 import POLICIES, L2Policy, l2_policy
from forge_core.timing.timers import MARK, TIMERS, Span, between_marks

MIB = 2**20
MILLISECONDS = {"x": 1.0, "y": 2.0}


class FakeTimer(WallTimer):
    """Its clock advances by the MILLISECONDS of a launch's contender alone; launches enter themselves in `ran`."""

    method = "a fake clock"
    batch_launches = 5

    def __init__(self):
        super().__init__(clock_ns=lambda: self.now_ns)
        self.ran, self.now_ns = [], 0

    def clock_mhz(self):
        return 1980


def interleaved(timer, **options):
    """Times x and y on three buffer sets of one number each; an output is the contender's name and that number."""

    def call(name, number):
        timer.ran.append((name, number))
        timer.now_ns += int(MILLISECONDS[name] * 1e6)
        return name, number

    contenders = {name: Contender(partial(call, name), [(n,) for n in range(3)]) for name in MILLISECONDS}
    return time_interleaved(contenders, timer=timer, **options)


def test_timing_summarises_its_samples():
    assert quantile([10.0, 0.0], 0.8) == 8.0
    timing = Timing(tuple(float(n) for n in range(11)), method="m")
    assert (timing.median_ms, timing.p20_ms, timing.p80_ms) == (5.0, 2.0, 8.0)
    assert timing.spread == pytest.approx(6 / 5)
    assert timing.clocks == "not read"
    assert Timing((1.0,), method="m", clocks_mhz=(1980, None)).clocks == "1980 MHz to not read"
    assert Timing((1.0,), method="m").spread == 0.0


@pytest.mark.parametrize("clocks, moved", [((1980, 1755), True), ((1980, 1965), False), ((1980, None), False)])
def test_a_clock_that_moved_is_noticed(clocks, moved):
    assert Timing((1.0,), method="m", clocks_mhz=clocks).clocks_moved == moved


def test_order_gives_everyone_every_place_and_several_neighbours():
    names = ["a", "b", "c", "d"]
    rounds = [launch_order(names, turn) for turn in range(8)]
    assert all(sorted(order) == names for order in rounds)
    for name in names:
        assert {order.index(name) for order in rounds} == {0, 1, 2, 3}
    flat = list(itertools.chain.from_iterable(rounds))
    before_a = {flat[i - 1] for i in range(1, len(flat)) if flat[i] == "a"}
    assert {"b", "d"} <= before_a
    assert launch_order([], 3) == []


def test_sets_exceed_three_times_the_l2_between_two_uses():
    l2 = 60 * MIB
    for nbytes in (2 * MIB, 8 * MIB, 128 * MIB, 2048 * MIB):
        count = L2Policy("cold", l2).sets(nbytes)
        assert (count - 1) * nbytes >= 3 * l2
        assert count == 2 or (count - 2) * nbytes < 3 * l2
    assert L2Policy("cold", l2).sets(4096) == 256


def test_interleaving_takes_turns_rotates_buffers_and_keeps_outputs():
    timer = FakeTimer()
    run = interleaved(timer, policy=Policy(warmup=2, iterations=7))
    assert run.timings["x"].samples_ms == (1.0,) * 7
    assert run.timings["y"].samples_ms == (2.0,) * 7
    assert run.timings["x"].method == "a fake clock"
    assert run.timings["x"].clocks == "1980 MHz to 1980 MHz"
    assert len(timer.ran) == 2 * (2 + 7)
    # The last launches read consecutive sets, and what is held names the set that it came from.
    assert {index for index, _ in run.last.values()} == {(17 - 1) % 3, 17 % 3}
    for name, (index, output) in run.last.items():
        assert output == (name, index)


def test_the_same_work_comes_before_every_launch():
    timer = FakeTimer()
    interleaved(timer, policy=Policy(warmup=1, iterations=2), before=lambda: timer.ran.append("before"))
    assert timer.ran[::2] == ["before"] * 6
    assert {name for name, _ in timer.ran[1::2]} == {"x", "y"}


def test_interleaving_refuses_unequal_sets():
    one, two = Contender(print, [(0,)]), Contender(print, [(0,), (1,)])
    for contenders in ({"x": one, "y": two}, {"x": Contender(print, [])}, {}):
        with pytest.raises(ValueError, match="common, positive number"):
            time_interleaved(contenders, timer=FakeTimer())


def test_policy_fits_the_budget_within_its_limits():
    policy = Policy(min_iterations=10, max_iterations=50, budget_ms=100.0)
    assert policy.rounds(4.0) == 25
    assert policy.rounds(1000.0) == 10
    assert policy.rounds(0.001) == 50
    assert policy.rounds(0.0) == 50
    assert Policy(iterations=1).rounds(1e6) == 1


def test_warm_up_goes_on_for_its_time():
    calls = []

    def work():
        calls.append(time.perf_counter())
        time.sleep(0.001)

    run = time_interleaved(
        {"x": Contender(work, [()])}, timer=WallTimer(), policy=Policy(warmup=1, warmup_ms=40.0, iterations=3)
    )
    assert calls[-3] - calls[0] >= 0.04
    assert len(run.timings["x"].samples_ms) == 3


def test_wall_timer_reads_its_clock_around_each_launch():
    now = [0]

    def work(nanoseconds):
        now[0] += nanoseconds

    timer = WallTimer(clock_ns=lambda: now[0])
    assert timer.batch([lambda: work(1_500_000), lambda: work(0)]) == [1.5, 0.0]
    assert timer.batch([lambda: work(2_000_000)], lambda: work(7_000_000)) == [2.0]
    assert timer.clock_mhz() is None


def test_floor_counts_reads_and_the_writes_that_pass_the_l2():
    floor = floor_ms(read=4_800_000, written=60 * MIB, l2_bytes=60 * MIB, bandwidth_gbs=4800.0)
    assert floor == pytest.approx(0.001)
    more = floor_ms(read=4_800_000, written=60 * MIB + 4_800_000, l2_bytes=60 * MIB, bandwidth_gbs=4800.0)
    assert more == pytest.approx(0.002)


def test_a_time_below_the_floor_is_refused():
    honest = Timing((1.0, 1.1, 1.2), method="m")
    check_floor(honest, 0.9)
    # One call in three did nothing: the median would not show it.
    skipping = Timing((1.0, 1.1, 0.002), method="m")
    with pytest.raises(BenchmarkError, match=r"2\.00 us is below the roofline floor of 900\.00 us") as caught:
        check_floor(skipping, 0.9, suite="s", case="c", peer="cheat")
    assert (caught.value.suite, caught.value.case, caught.value.peer) == ("s", "c", "cheat")


def test_host_time_is_the_time_of_one_call():
    calls = []
    timing = host_times({"call": lambda: calls.append(1)}, batch=10, batches=4)["call"]
    assert len(calls) == 10 * (3 + 4)  # three batches of warm-up
    assert len(timing.samples_ms) == 4
    assert 0 < timing.median_ms < 1
    assert "without synchronising" in timing.method
    slow, fast = host_times({"slow": lambda: sum(range(20000)), "fast": lambda: None}, batch=3, batches=3).values()
    assert slow.median_ms > 5 * fast.median_ms


def test_import_time_is_taken_in_fresh_processes():
    timing = import_times("fractions", after="sys", repeats=2)
    assert len(timing.samples_ms) == 2
    assert min(timing.samples_ms) > 0.1
    # What was imported before the clock started costs nothing.
    assert import_times("fractions", after="fractions", repeats=1).median_ms < min(timing.samples_ms)
    with pytest.raises(BenchmarkError, match="no_such_module_at_all"):
        import_times("no_such_module_at_all", after="sys", repeats=1)


def test_an_import_that_hangs_is_an_error_of_the_benchmark(monkeypatch):
    monkeypatch.setattr(host, "SECONDS", 0.5)
    with pytest.raises(BenchmarkError, match=r"import hanging did not end within 0\.5 s"):
        host.fresh_process(["-c", "import time; time.sleep(60)"], "import hanging")


# --------------------------------------------------------------------------------------------- the state of the cache


def test_a_warm_cache_is_made_by_an_untimed_call_of_its_own_on_the_same_buffers():
    class Twice(FakeTimer):
        """Takes every batch twice, as a timer does whose backlog ran out."""

        def batch(self, launches, before=None):
            for launch in launches:
                before()
                launch()
            return super().batch(launches, before)

    timer = Twice()
    interleaved(timer, policy=Policy(warmup=1, iterations=3), warm=True)
    assert len(timer.ran) == 2 * 2 * 2 * 4
    assert timer.ran[::2] == timer.ran[1::2]
    assert {number for _, number in timer.ran} == {0, 1, 2}


def test_the_policies_say_what_they_do():
    device, l2 = torch.device("cpu"), 1000
    made = {name: l2_policy(name, device, l2) for name in POLICIES}
    assert [name for name, policy in made.items() if policy.warm] == ["warm"]
    assert [name for name, policy in made.items() if policy.before is None] == ["warm"]
    assert (made["cold"].sets(500), made["flushed"].sets(500), made["warm"].sets(500)) == (7, 2, 2)
    for name, policy in made.items():
        assert policy.describe(500).startswith(f"{name}: ")
        if policy.before is not None:
            policy.before()


# ------------------------------------------------------------------------------------------------------ CUPTI's trace


def trace(*work, stream=7):
    """Spans one after the other, 10 ns apart: marks by "|", others by name, duration, and perhaps a stream."""
    spans, now = [], 0
    for entry in work:
        name, duration, *rest = (f"void {MARK}(long)", 5) if entry == "|" else entry
        spans.append(Span(name, rest[0] if rest else stream, now, now + duration))
        now += duration + 10
    return spans


def test_a_sample_is_from_the_first_kernel_s_begin_to_the_last_one_s_end():
    spans = trace("|", ("copy", 500), "|", ("a", 1000), "|", ("copy", 500), "|", ("a", 300), ("b", 400), "|")
    assert between_marks(spans[::-1], 2) == pytest.approx([1e-3, 0.71e-3])


@pytest.mark.parametrize(
    "work, message",
    [
        (("|", "|", ("a", 10), "|", "|"), "has 4 marks, expected 3: records were lost"),
        (("|", "|", "|"), "put no work on the GPU"),
        (("|", ("stray", 10, 13), "|", ("a", 10), "|"), "stray landed on stream 13, and the current .* is 7"),
    ],
)
def test_a_trace_that_cannot_be_believed_is_refused(work, message):
    with pytest.raises(BenchmarkError, match=message):
        between_marks(trace(*work), 1)


@pytest.mark.parametrize("name", TIMERS)
def test_every_timer_of_the_gpu_needs_one(name):
    with pytest.raises(UnsupportedError, match="CUDA device, got cpu"):
        TIMERS[name](torch.device("cpu"))
