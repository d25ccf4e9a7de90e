"""The profiles recorded on the H200: static figures agree with ncu's, and the diagnosis names the planted faults.

A record has a digest of each kernel's PTX (tools/profiling/record.py).  Where that is the one of today's kernel, the
whole path from the call to the figures is compared with what ncu said.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
from pathlib import Path

import click
import pytest

from forge_core.commands.layout import kernel_drawing
from forge_core.files import read_unpacked
from forge_core.profiling.diagnosis import Needed, diagnose, limited_by
from forge_core.profiling.layouts import coalescing, conflicts
from forge_core.profiling.ncu import ProfileError, read_profile
from forge_core.profiling.occupancy import LEAST_REGISTERS, occupancy
from forge_week0_transpose.config import NaiveConfig, RowsConfig, TiledConfig, VectorizedConfig

TOOLS = ("profiling", "ncu_extract", "record", "run")
FOLDER = Path(__file__).parents[2] / "docs" / "records" / "h200" / "profiling"
NAMES = ("planted", "week0", "week1", "week2")
WEEKS = NAMES[1:]


def record(name):
    """Each recorded launch: its work in the manifest, the launch worked out on the host, its PTX's digest, ncu's."""
    profiles = iter(read_profile(FOLDER / f"{name}.csv.xz"))
    works = json.loads(read_unpacked(FOLDER / f"{name}.manifest.json.xz"))["works"]
    kernels = json.loads((FOLDER / f"{name}.kernels.json").read_text())
    assert [work["name"] for work in works] == [entry["work"] for entry in kernels]
    for work, entry in zip(works, kernels, strict=True):
        for number, launch in enumerate(work["launches"]):
            yield work, number, launch, entry, next(profiles)
    assert next(profiles, None) is None


# ------------------------------------------------------------------------------------------------ static against ncu


def agrees(profile, *, registers, static, dynamic, grid, block):
    """Asserts that what was worked out without a GPU is what ncu saw."""
    threads = block[0] * block[1] * block[2]
    assert profile.get("registers") == max(registers, LEAST_REGISTERS), "ncu reports what a thread was given"
    assert profile.get("smem_static") == static
    # None where the launch does not say: then it is what the kernel allocates, which only the compiler knows.
    assert dynamic is None or profile.get("smem_dynamic") == dynamic
    dynamic = profile.get("smem_dynamic")
    assert profile.get("grid") == grid[0] * grid[1] * grid[2]
    assert profile.get("block") == threads
    held = occupancy((9, 0), threads=threads, registers=registers, smem=static + dynamic)
    assert profile.get("occupancy_max_pct") == pytest.approx(held.percent, abs=0.005)
    for limit in ("warps", "blocks", "registers"):
        assert profile.get(f"limit_{limit}") == held.allowed[limit]


def test_a_wrong_figure_would_be_seen():
    _, _, worked_out, _, profile = next(record("week0"))
    right = {
        "registers": profile.get("registers"),
        "static": profile.get("smem_static"),
        "dynamic": worked_out["dynamic_smem"],
        "grid": worked_out["grid"],
        "block": worked_out["block"],
    }
    agrees(profile, **right)
    for key, wrong in (
        ("registers", 40),
        ("static", 1024),
        ("dynamic", 16),
        ("grid", (1, 1, 1)),
        ("block", (128, 1, 1)),
    ):
        with pytest.raises(AssertionError):
            agrees(profile, **{**right, key: wrong})


WORKS = [(name, i) for name in NAMES for i, _ in enumerate(json.loads((FOLDER / f"{name}.kernels.json").read_text()))]


@pytest.mark.filterwarnings("ignore:This static loop has 64 iterations")  # the planted spills need them
@pytest.mark.parametrize("name, index", WORKS)
def test_what_is_compiled_today_is_what_ncu_saw(tools, name, index):
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")
    from forge_core.profiling.static import describe

    work = json.loads(read_unpacked(FOLDER / f"{name}.manifest.json.xz"))["works"][index]
    rows = [row for row in record(name) if row[0] == work]
    try:
        artefacts = tools.record.compile_work(work["case"], arch="sm_90a")
    except click.UsageError:
        pytest.skip(f"{work['name']}: there is no such variant any more; record the week anew on an H200")
    if hashlib.sha256(artefacts.ptx.encode()).hexdigest() != rows[0][3]["ptx_sha256"]:
        pytest.skip(f"{work['name']}: its code is no longer the recorded one; record it anew on an H200")
    for kernel, (*_, worked_out, _, profile) in zip(describe(artefacts, "sm_90a"), rows, strict=True):
        assert kernel.name == profile.name
        assert profile.name.rpartition("_")[0] == worked_out["name"]
        assert len(profile.name) <= 64 and "cutlass" not in profile.name, "a name that a person can filter on"
        spilled = (profile.get("local_loads") or 0) + (profile.get("local_stores") or 0)
        assert (kernel.resources.stack_bytes > 0) == (spilled > 0)
        agrees(
            profile,
            registers=kernel.resources.registers,
            static=kernel.resources.static_smem,
            dynamic=kernel.launch.dynamic_smem if kernel.launch.states_smem else None,
            grid=kernel.launch.grid,
            block=kernel.launch.block,
        )


@pytest.mark.parametrize("name", WEEKS)
def test_every_variant_is_recorded(name):
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (it exists for Linux only)")
    from forge_core.bench.plan import discover

    works = json.loads(read_unpacked(FOLDER / f"{name}.manifest.json.xz"))["works"]
    (bench,) = (bench for bench in discover() if bench.name == name)
    operator = bench.by_name[works[0]["case"]["operator"]]
    # A record is kept when a variant is deleted.
    assert [work["variant"] for work in works if work["variant"] in operator.variants()] == list(operator.variants())


# --------------------------------------------------------------------------------------------- index maps against ncu


#: The configurations that the record of week 0 was made with; the names of their kernels say the same.
RECORDED = {
    "naive": NaiveConfig(2, 2),
    "tiled": TiledConfig(2, 32),
    "vectorized": VectorizedConfig(2, 8, 16),
    "rows": RowsConfig(16),
}


@pytest.mark.parametrize("variant", RECORDED)
def test_counts_from_the_index_maps_are_those_of_ncu(variant):
    _, _, launch, _, profile = next(row for row in record("week0") if row[0]["variant"] == variant)
    config = RECORDED[variant]
    assert config.kernel_name == launch["name"]
    panels = kernel_drawing(config, variant).panels
    sides = [panel for panel in panels if not panel.shared]
    for panel, kind in ((sides[0], "load"), (sides[-1], "store")):
        found = coalescing(*panel.accesses)
        per_request = profile[f"{kind}_sectors"] / profile[f"{kind}_requests"]
        assert per_request == pytest.approx(found.sectors_per_request, rel=1e-3)
        assert profile[f"{kind}_used_pct"] == pytest.approx(found.used_pct, abs=0.01)
    shared = [access for panel in panels if panel.shared for access in panel.accesses]
    assert profile["shared_wavefronts"] == math.prod(launch["grid"]) * conflicts(*shared).passes


# ---------------------------------------------------------------------------------------------------------- diagnosis


def diagnosed(name):
    for work, number, _, _, profile in record(name):
        needed = Needed(work["read"], work["written"]) if number == 0 else Needed(0, 0)
        yield work, diagnose(profile, needed)


RULE_OF = {
    "uncoalesced": "uncoalesced",
    "bank_conflicts": "bank conflicts",
    "spills": "spills",
    "too_little_work": "too little work",
    "reread": "re-read",
}


def test_the_diagnosis_names_each_planted_fault_first_and_none_in_its_sound_twin():
    seen = []
    for work, found in diagnosed("planted"):
        rules = list(found.findings)
        if work["case"]["sound"]:
            assert rules == [], (work["name"], found.text)
        else:
            assert rules[0] == RULE_OF[work["case"]["fault"]], (work["name"], found.text)
            assert found.findings[rules[0]] in found.text
            seen.append(work["case"]["fault"])
    assert seen == list(RULE_OF)


def test_the_naive_kernels_are_told_what_is_wrong_with_them():
    by_name = {(name, work["variant"]): found for name in ("week0", "week1") for work, found in diagnosed(name)}
    for name in ("week0", "week1"):
        assert next(iter(by_name[name, "naive"].findings)) == "uncoalesced"


@pytest.mark.parametrize(
    "name, variants",
    [
        ("week0", ("vectorized", "shifted", "realigned", "rows")),
        ("week1", ("vectorized", "held")),
        ("week2", ("held",)),
    ],
)
def test_what_auto_picks_has_no_fault_and_is_bound_by_memory(name, variants):
    found = {work["variant"]: found for work, found in diagnosed(name)}
    for variant in variants:
        assert found[variant].findings == {}, found[variant].text
        assert found[variant].bound == "DRAM"


def test_an_extract_has_every_figure_that_the_diagnosis_needs():
    for name in NAMES:
        for _, found in diagnosed(name):
            assert {
                "duration_us", "memory_pct", "sm_pct", "dram_pct", "dram_read_mb", "dram_written_mb", "l2_hit_pct",
                "bank_conflicts", "occupancy_pct", "occupancy_max_pct", "registers", "smem_dynamic", "local_loads",
                "pipe_tensor_pct", "pipe_fma_pct", "pipe_alu_pct", "pipe_lsu_pct",
            } <= set(found.figures), found.profile.name  # fmt: skip
            assert limited_by(found.profile) and found.stalls and len(found.text) > 60


# --------------------------------------------------------------------------------------------------------------- page


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs" / "profiling.md").read_text(encoding="utf-8")


def test_the_page_holds_what_the_rules_and_the_records_say(tools, page):
    assert re.findall(r"<!-- profile:(\w+) begin -->", page) == ["rules", *NAMES]
    assert tools.record.filled(page) == page, "python tools/profiling/record.py makes it anew"
    with pytest.raises(ValueError, match="expected one '<!-- profile:rules end -->'"):
        tools.record.filled(page.replace("<!-- profile:rules end -->", ""))


@pytest.mark.parametrize("name", WEEKS)
def test_the_page_has_a_note_on_what_limits_each_variant(page, name):
    table, notes = page.split(f"<!-- profile:{name} begin -->")[1].split("\n#")[0].split(f"<!-- profile:{name} end -->")
    variants = set(re.findall(r"^\| (\w+)", table, re.MULTILINE)) - {"Variant"}
    assert len(variants) > 5 and {variant for variant in variants if f"`{variant}`" not in notes} == set()


# ------------------------------------------------------------------------------------------------------------ command


def extracted(tools, words):
    return tools.run.main(["ncu", "--extract", *words])


def test_the_recorded_text_is_what_the_extraction_says_today(tools, capsys):
    assert extracted(tools, [str(FOLDER / "planted.csv.xz")]) == 0
    said = capsys.readouterr().out.rstrip("\n")
    kept = read_unpacked(FOLDER / "planted.txt.xz").decode().rstrip("\n")
    assert kept == said or kept.startswith(said + "\n\n"), "nox -s profile -- ncu --extract makes it anew"


def test_one_kernel_as_json(tools, capsys):
    words = [str(FOLDER / "planted.csv.xz"), "--json", "--kernel", "reread_0"]
    assert extracted(tools, words) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["findings"] == ["re-read"] and found["needed"] == {"read": 2**28, "written": 2**28}
    assert extracted(tools, [*words, "--read", str(2**29), "--written", str(2**28)]) == 0
    assert json.loads(capsys.readouterr().out)[0]["findings"] == [], "told that it may read twice"


def test_compare_sets_two_side_by_side(tools, capsys):
    paths = [str(FOLDER / "week0.csv.xz"), str(FOLDER / "week0.csv.xz")]
    assert extracted(tools, ["compare", *paths, "--kernel", "vectorized"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"A: {paths[0]}\nB: {paths[1]}\n") and text.count("Bound by the memory's bandwidth") == 2


def test_what_cannot_be_read_is_an_error(tools, tmp_path, capsys):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    for words in ([str(tmp_path / "x.csv")], [str(FOLDER / "week0.csv.xz"), "--kernel", "nothing"]):
        assert extracted(tools, words) == 2
        assert capsys.readouterr().err.startswith("\ncannot profile: ")
    assert extracted(tools, [str(FOLDER / "week0.csv.xz"), "--read", "5"]) == 3
    assert "--read and --written belong together" in capsys.readouterr().err


def test_the_manifest_says_what_must_be_moved(tools, tmp_path):
    file, load_needed = tmp_path / "m.json", tools.ncu_extract.load_needed
    file.write_text(json.dumps({"works": [{"kernels": ["split", "finish"], "read": 100, "written": 4}]}))
    assert load_needed(file) == [("split", Needed(100, 4)), ("finish", Needed(0, 0))]
    for broken in ("", "[]", '{"works": [{"kernels": []}, {}]}'):
        file.write_text(broken)
        with pytest.raises(ProfileError, match="expected the manifest"):
            load_needed(file)


def test_where_the_manifest_of_a_profile_is(tools):
    beside = tools.ncu_extract.manifest_beside
    for profile in ("p/w.1.csv", "p/w.1.ncu-rep"):
        assert beside(Path(profile)) == Path("p/w.1.manifest.json")
    assert beside(Path("p/w.csv.xz")) == Path("p/w.manifest.json.xz")


def test_a_pruned_table_says_the_same(tools, tmp_path):
    file = FOLDER / "week0.csv.xz"
    pruned = tmp_path / "week0.csv"
    pruned.write_text(tools.record.prune(file))
    assert pruned.read_text() == read_unpacked(file).decode(), "the record is pruned already"
    rows = [[*row, "1"] for row in csv.reader(read_unpacked(file).decode().splitlines())]
    rows[0][-1] = "unknown__counter.sum"
    with (tmp_path / "wide.csv").open("w", newline="") as out:
        out.write("==PROF== Connected\n")
        csv.writer(out, quoting=csv.QUOTE_ALL).writerows(rows)
    assert tools.record.prune(tmp_path / "wide.csv") == read_unpacked(file).decode()
