"""Reading what Nsight Compute counted, the rules of the diagnosis one by one, and two profiles side by side."""

from __future__ import annotations

import json
import re

import pytest

from forge_core.errors import UnsupportedError
from forge_core.profiling import ncu
from forge_core.profiling.diagnosis import FIGURES, Needed, compare_text, diagnose, limited_by
from forge_core.profiling.ncu import (
    COUNTERS,
    STALLS,
    KernelProfile,
    ProfileError,
    hottest_lines,
    metrics_to_collect,
    read_csv,
    read_profile,
)

WIDE = """==PROF== Connected to process 42
==PROF== Disconnected from process 42
"ID","Process ID","Kernel Name","device__attribute_display_name","gpu__time_duration.sum",\
"dram__bytes_read.sum","dram__bytes.sum.per_second","launch__shared_mem_per_block_dynamic"
"","","","","us","Mbyte","Gbyte/second","Kbyte/block"
"0","42","void first_0(int *, int)","NVIDIA H200","1,234.50","2.5","3.25","32.77"
"1","42","second_1","NVIDIA H200","0.5","n/a","0","0"
"""

LONG = """"ID","Process ID","Kernel Name","Device","Section Name","Metric Name","Metric Unit","Metric Value"
"0","42","first_0","0","Command line profiler metrics","gpu__time_duration.sum","nsecond","1,500"
"0","42","first_0","0","Command line profiler metrics","dram__bytes_read.sum","Kbyte","64"
"1","42","second_1","0","Command line profiler metrics","gpu__time_duration.sum","ms","2"
"""


def profile(**figures):
    """A profile that holds these figures, by their short names."""
    return KernelProfile("kernel_0", {COUNTERS[name][0]: float(value) for name, value in figures.items()})


def rules_of(**figures):
    needed = figures.pop("needed", None)
    return list(diagnose(profile(**figures), needed).findings)


# ----------------------------------------------------------------------------------------------------------- reading


def test_a_raw_page_is_read_in_base_units():
    first, second = read_csv(WIDE.splitlines())
    assert (first.name, second.name) == ("first_0", "second_1")
    assert first.get("duration") == pytest.approx(1.2345e-3)
    assert first.get("dram_read") == 2.5e6
    assert first.metrics["dram__bytes.sum.per_second"] == 3.25e9
    assert first.get("smem_dynamic") == pytest.approx(32770)
    assert second.get("dram_read") is None, "what is not available is not 0"


def test_the_default_page_is_read_too():
    first, second = read_csv(LONG.splitlines())
    assert first.get("duration") == pytest.approx(1.5e-6)
    assert first.get("dram_read") == 64e3
    assert second.get("duration") == pytest.approx(2e-3)


@pytest.mark.parametrize(
    "text, said",
    [("", "found none"), ("==ERROR== nothing\n", "found none"), (WIDE[: WIDE.index('"0"')], "holds no kernel")],
)
def test_what_is_no_table_is_an_error(text, said):
    with pytest.raises(ProfileError, match=said):
        read_csv(text.splitlines())


def test_files(tmp_path, monkeypatch):
    table = tmp_path / "a.csv"
    table.write_text(WIDE)
    assert len(read_profile(table)) == 2
    for name, said in (("b.csv", "no such file"), ("c.txt", "expected a profile named")):
        (tmp_path / "c.txt").write_text("")
        with pytest.raises(ProfileError, match=said):
            read_profile(tmp_path / name)
    report = tmp_path / "d.ncu-rep"
    report.write_text("binary")
    monkeypatch.setattr(ncu, "find_tool", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"ncu --import d\.ncu-rep --page raw --csv"):
        read_profile(report)


def test_a_report_is_exported_by_ncu(script, tmp_path, monkeypatch):
    report = tmp_path / "d.ncu-rep"
    report.write_text("binary")
    (tmp_path / "table").write_text(WIDE)
    right = '[ "$1 $3 $4 $5" = "--import --page raw --csv" ] || exit 7'
    tool = script("ncu", f"{right}\nexec /bin/cat {tmp_path}/table")
    monkeypatch.setattr(ncu, "find_tool", lambda name: str(tool))
    assert [p.name for p in read_profile(report)] == ["first_0", "second_1"]
    script("ncu", "echo '==ERROR== unsupported file' >&2; exit 1")
    with pytest.raises(ProfileError, match="exit status 1: ==ERROR== unsupported file"):
        read_profile(report)


def test_what_ncu_is_asked_for_is_what_is_read():
    names = metrics_to_collect()
    assert len(names) == len(set(names))
    read = {metric for metrics in COUNTERS.values() for metric in metrics}
    assert all(name in read or name.startswith("smsp__average_warps_issue_stalled_") for name in names)


# ---------------------------------------------------------------------------------------------------------- the rules


@pytest.mark.parametrize(
    "rule, fires, does_not",
    [
        (
            "spills",
            {"local_loads": 20, "local_stores": 20, "instructions": 1000},
            {"local_loads": 10, "local_stores": 9, "instructions": 1000},
        ),
        (
            "uncoalesced",
            {"load_used_pct": 50, "load_sectors": 3200, "load_requests": 100, "store_sectors": 400},
            {"load_used_pct": 50, "load_sectors": 320, "load_requests": 10, "store_sectors": 4000},
        ),
        (
            "uncoalesced",
            {"store_used_pct": 12.5, "store_sectors": 3200, "store_requests": 100, "load_sectors": 400},
            {"store_used_pct": 6.25, "store_sectors": 100, "store_requests": 100, "load_sectors": 0},
        ),
        (
            "bank conflicts",
            {"shared_wavefronts": 400, "shared_wavefronts_ideal": 300, "shared_pct": 20},
            {"shared_wavefronts": 400, "shared_wavefronts_ideal": 100, "shared_pct": 4},
        ),
        (
            "bank conflicts",  # without the counts by source line
            {"wavefronts_load": 200, "wavefronts_store": 200, "conflicts_load": 100, "conflicts_store": 0},
            {"wavefronts_load": 200, "wavefronts_store": 200, "conflicts_load": 99, "conflicts_store": 0},
        ),
        ("too little work", {"grid": 118, "sms": 132}, {"grid": 119, "sms": 132}),
        ("low occupancy", {"occupancy_pct": 29, "dram_pct": 50}, {"occupancy_pct": 29, "dram_pct": 61}),
        (
            "re-read",
            {"dram_read": 125e6, "needed": Needed(100_000_000, 100_000_000)},
            {"dram_read": 125e6, "needed": Needed(100_000_000, 200_000_000)},
        ),
        (
            "re-written",
            {"dram_written": 125e6, "needed": Needed(100_000_000, 100_000_000)},
            {"dram_written": 3e6, "needed": Needed(100_000_000, 8192)},
        ),
    ],
)
def test_each_rule_fires_at_its_threshold_and_not_below(rule, fires, does_not):
    assert rules_of(**fires) == [rule]
    assert rules_of(**does_not) == []


def test_what_a_report_does_not_hold_is_not_judged():
    assert rules_of() == []
    assert rules_of(dram_read=1e9) == [], "without knowing what must be read"
    assert diagnose(profile()).bound == "unknown"


def test_causes_come_before_what_they_lead_to():
    found = diagnose(
        profile(
            dram_read=1e9, load_used_pct=12.5, load_sectors=3200, load_requests=100, store_sectors=400, dram_pct=40
        ),
        Needed(10**8, 10**8),
    )
    assert list(found.findings) == ["uncoalesced", "re-read"]
    assert "10.0 times what it must (1000.0 MB where 100.0 MB would do)" in found.text


@pytest.mark.parametrize(
    "figures, bound, said",
    [
        ({"dram_pct": 78, "l2_pct": 77}, "DRAM", "DRAM at 78 % of its peak, the L2 at 77 %"),
        ({"dram_pct": 55, "l2_pct": 85}, "DRAM", "DRAM at 55 % of its peak, the L2 at 85 %"),
        ({"dram_pct": 9, "l2_pct": 82}, "L2", "the bandwidth of L2, at 82 %"),
        ({"l1_pct": 97, "dram_pct": 2}, "L1 and shared memory", "at 97 % of its peak"),
        ({"sm_pct": 68, "dram_pct": 40}, "arithmetic", "the multiprocessors' own throughput, at 68 %"),
        ({"sm_pct": 10, "dram_pct": 40}, "latency", "nothing is near its peak (DRAM 40 %, arithmetic 10 %)"),
    ],
)
def test_what_bounds_a_kernel(figures, bound, said):
    found = diagnose(profile(**figures))
    assert found.bound == bound and said in found.text


def test_stalls_are_shares_longest_first():
    prefix, suffix = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
    one = KernelProfile(
        "k",
        {
            f"{prefix}selected{suffix}": 1.0,
            f"{prefix}long_scoreboard{suffix}": 7.0,
            f"{prefix}barrier{suffix}": 2.0,
            f"{prefix}long_scoreboard_not_issued{suffix}": 50.0,
            "dram__throughput.avg.pct_of_peak_sustained_elapsed": 70.0,
        },
    )
    assert one.stalls() == [("long_scoreboard", 70.0), ("barrier", 20.0), ("selected", 10.0)]
    assert diagnose(one).text.endswith(
        "Its warps spend 70 % of their time waiting for data from global or local memory."
    )
    assert {"long_scoreboard", "barrier", "selected"} < set(STALLS)


def test_the_limiter_of_the_occupancy():
    assert limited_by(profile(limit_warps=8, limit_registers=3, limit_shared=6)) == "registers"
    assert limited_by(profile(limit_warps=64, limit_blocks=32, limit_barriers=32)) == "block slots"
    assert limited_by(profile(limit_blocks=32, limit_barriers=8)) == "barriers"
    assert limited_by(profile()) == ""


# -------------------------------------------------------------------------------------------------- text and compare


def test_the_text_holds_every_figure_and_what_must_be_moved():
    found = diagnose(profile(dram_read=5e6, dram_written=1e6, registers=68, limit_registers=3, limit_warps=8,
                            occupancy_max_pct=37.5), Needed(4_000_000, 1_000_000))  # fmt: skip
    text = found.report()
    assert re.search(r"DRAM read, MB +5\.000   must move 4\.000", text)
    assert re.search(r"occupancy possible, % +37\.5   limited by registers", text)
    assert re.search(r"registers a thread +68", text)
    assert json.loads(json.dumps(found.as_dict()))["figures"]["registers"] == 68


def test_two_profiles_side_by_side():
    a, b = diagnose(profile(duration=10e-6, registers=32)), diagnose(profile(duration=5e-6, dram_pct=80))
    text = compare_text([a], [b])
    assert re.search(r"time, us +10\.00 +5\.00 +0\.50$", text, re.MULTILINE)
    assert re.search(r"registers a thread +32 +-$", text, re.MULTILINE)
    assert re.search(r"DRAM, % of peak +- +80\.0$", text, re.MULTILINE)
    assert "  B: Bound by the memory's bandwidth" in text


def test_launches_are_paired_by_name_before_order():
    def named(name, duration):
        return diagnose(KernelProfile(name, {"gpu__time_duration.sum": duration}))

    text = compare_text([named("x", 1e-6), named("y", 2e-6)], [named("y", 4e-6), named("z", 3e-6)])
    assert re.search(r"^x  \|  z$.*?1\.00 +3\.00 +3\.00$", text, re.MULTILINE | re.DOTALL)
    assert re.search(r"^y$.*?2\.00 +4\.00 +2\.00$", text, re.MULTILINE | re.DOTALL)
    # A launch more on one side: those of one name are compared, and the others are named.
    for more in ([named("w", 1e-6), named("y", 4e-6), named("z", 3e-6)], [named("y", 4e-6)]):
        text = compare_text([named("x", 1e-6), named("y", 2e-6)], more)
        assert re.search(r"^y$.*?2\.00 +4\.00 +2\.00$", text, re.MULTILINE | re.DOTALL)
        assert "only in A: x" in text.splitlines()
        assert ("only in B: w, z" in text.splitlines()) == (len(more) == 3)
    with pytest.raises(ProfileError, match="got 1 and 2 launches of different kernels"):
        compare_text([named("x", 1e-6)], [named("y", 1e-6), named("z", 1e-6)])


def test_keys_of_the_figures_are_unique():
    assert len({key for key, *_ in FIGURES}) == len(FIGURES)


# ------------------------------------------------------------------------------------------------------ source lines

SOURCE = """"File Path","/somewhere/kernels/tiled.py"
"Function Name","tiled_0"
"Line No","Source","Address","Source","# Samples","Instructions Executed"
"119","  for i in range(4):","","","30","100"
"","","0x10","LDS R1, [R2]","10","50"
"","","0x20","STG R1, [R2]","20","50"
"120","  move(a, b)","","","70","10"
"121","","","","0","0"
"File Path","/somewhere/memory.py"
"Function Name","other_0"
"Line No","Source","Address","Source","# Samples","Instructions Executed"
"7","  load()","","","5","1"
"""


def test_the_lines_at_which_warps_were_seen():
    assert hottest_lines(SOURCE.splitlines()).splitlines() == [
        "tiled_0: where its warps were seen",
        "   70.0 %  tiled.py:120  move(a, b)",
        "   30.0 %  tiled.py:119  for i in range(4):",
        "other_0: where its warps were seen",
        "  100.0 %  memory.py:7  load()",
    ]
    assert "tiled.py:119" not in hottest_lines(SOURCE.splitlines(), most=1)
    assert "line information" in hottest_lines([])
