"""Reading Nsight Compute: the metrics that Forge uses, and the launches of a report or of an exported CSV.

Each figure has a short name, which the rules and the report use, and a list of metrics of which the first that a report
holds is taken: names change between architectures and versions.  Values are in base units (bytes, seconds).

A CSV has one of two forms: ``--page raw`` has a row for each kernel, a column for each metric, and a row of units below
the names; the default page has a row for each kernel and metric.  A ``.ncu-rep`` is exported by ``ncu --import``.
"""

from __future__ import annotations

import contextlib
import csv
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import dropwhile
from pathlib import Path, PurePath

from forge_core.errors import ForgeError, UnsupportedError
from forge_core.files import read_unpacked
from forge_core.processes import find_tool, how_it_ended

_GLOBAL = "pipe_lsu_mem_global_op"
_SHARED = "pipe_lsu_mem_shared_op"
_USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op"
_PEAK = "avg.pct_of_peak_sustained_elapsed"
_ACTIVE = "avg.pct_of_peak_sustained_active"

COUNTERS: dict[str, tuple[str, ...]] = {
    "duration": ("gpu__time_duration.sum",),
    # Throughputs, in percent of their peaks; l1 is L1 and shared memory.
    "memory_pct": (f"gpu__compute_memory_throughput.{_PEAK}",),
    "sm_pct": (f"sm__throughput.{_PEAK}",),
    "dram_pct": (f"gpu__dram_throughput.{_PEAK}", f"dram__throughput.{_PEAK}"),
    "l1_pct": (f"l1tex__throughput.{_ACTIVE}",),
    "l2_pct": (f"lts__throughput.{_PEAK}",),
    "dram_read": ("dram__bytes_read.sum",),
    "dram_written": ("dram__bytes_write.sum",),
    "l2_hit_pct": ("lts__t_sector_hit_rate.pct",),
    "l1_hit_pct": ("l1tex__t_sector_hit_rate.pct",),
    # Global memory: requests of warps, the 32-byte sectors that they touch, and the used share of these.
    "load_requests": (f"l1tex__t_requests_{_GLOBAL}_ld.sum",),
    "load_sectors": (f"l1tex__t_sectors_{_GLOBAL}_ld.sum",),
    "store_requests": (f"l1tex__t_requests_{_GLOBAL}_st.sum",),
    "store_sectors": (f"l1tex__t_sectors_{_GLOBAL}_st.sum",),
    "load_used_pct": (f"{_USED}_ld.pct",),
    "store_used_pct": (f"{_USED}_st.pct",),
    # Shared memory: wavefronts, those without bank conflicts, and their share of the peak.
    "shared_wavefronts": ("memory_l1_wavefronts_shared",),
    "shared_wavefronts_ideal": ("memory_l1_wavefronts_shared_ideal",),
    "shared_pct": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed",),
    "conflicts_load": (f"l1tex__data_bank_conflicts_{_SHARED}_ld.sum",),
    "conflicts_store": (f"l1tex__data_bank_conflicts_{_SHARED}_st.sum",),
    "wavefronts_load": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",),
    "wavefronts_store": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",),
    # Local memory: spilled registers.
    "local_loads": ("smsp__inst_executed_op_local_ld.sum", "smsp__sass_inst_executed_op_local_ld.sum"),
    "local_stores": ("smsp__inst_executed_op_local_st.sum", "smsp__sass_inst_executed_op_local_st.sum"),
    "instructions": ("smsp__inst_executed.sum", "sm__inst_executed.sum"),
    # The launch.
    "occupancy_pct": (f"sm__warps_active.{_ACTIVE}",),
    "occupancy_max_pct": ("sm__maximum_warps_per_active_cycle_pct",),
    "registers": ("launch__registers_per_thread",),
    "smem_static": ("launch__shared_mem_per_block_static",),
    "smem_dynamic": ("launch__shared_mem_per_block_dynamic",),
    "smem_driver": ("launch__shared_mem_per_block_driver",),
    "smem_config": ("launch__shared_mem_config_size",),
    "grid": ("launch__grid_size",),
    "block": ("launch__block_size",),
    "waves": ("launch__waves_per_multiprocessor",),
    "sms": ("launch__sm_count", "device__attribute_multiprocessor_count"),
    # Blocks per SM that each resource allows.
    "limit_warps": ("launch__occupancy_limit_warps",),
    "limit_blocks": ("launch__occupancy_limit_blocks",),
    "limit_registers": ("launch__occupancy_limit_registers",),
    "limit_shared": ("launch__occupancy_limit_shared_mem",),
    "limit_barriers": ("launch__occupancy_limit_barriers",),
    # Pipelines.
    "issue_pct": (f"smsp__issue_active.{_ACTIVE}", "smsp__issue_active.avg.pct"),
    "pipe_tensor_pct": (
        f"sm__pipe_tensor_cycles_active.{_ACTIVE}",
        f"sm__inst_executed_pipe_tensor.{_ACTIVE}",
        f"sm__pipe_tensor_op_hmma_cycles_active.{_ACTIVE}",
    ),
    "pipe_fma_pct": (f"sm__pipe_fma_cycles_active.{_ACTIVE}", f"sm__inst_executed_pipe_fma.{_ACTIVE}"),
    "pipe_alu_pct": (f"sm__pipe_alu_cycles_active.{_ACTIVE}", f"sm__inst_executed_pipe_alu.{_ACTIVE}"),
    "pipe_lsu_pct": (f"sm__inst_executed_pipe_lsu.{_ACTIVE}",),
}

STALL_PREFIX = "smsp__average_warps_issue_stalled_"
STALL_SUFFIX = "_per_issue_active.ratio"

#: Stall reasons as ncu's metrics name them, and what the warp waits for.
STALLS: dict[str, str] = {
    "long_scoreboard": "data from global or local memory",
    "short_scoreboard": "data from shared memory or a slow unit",
    "lg_throttle": "room in the queue for global and local memory",
    "mio_throttle": "room in the queue for shared memory and special units",
    "tex_throttle": "room in the queue for textures",
    "barrier": "other warps at a barrier",
    "membar": "a memory fence",
    "wait": "a fixed latency",
    "math_pipe_throttle": "a busy arithmetic unit",
    "gmma": "the matrix units",
    "no_instruction": "instructions to be fetched",
    "no_instructions": "instructions to be fetched",
    "branch_resolving": "a branch to be resolved",
    "dispatch_stall": "the dispatcher",
    "drain": "its stores to be done at its end",
    "imc_miss": "constants to be fetched",
    "sleeping": "the end of a sleep",
    "not_selected": "its turn (other warps were ready)",
    "selected": "nothing: it issued",
    "misc": "something else",
}

#: The sections of ncu that hold the metrics of COUNTERS.
SECTIONS = (
    "SpeedOfLight",
    "LaunchStats",
    "Occupancy",
    "WarpStateStats",
    "SchedulerStats",
    "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Tables",
    "ComputeWorkloadAnalysis",
    # Wavefronts of shared memory, actual and ideal, are counted by source line only.
    "SourceCounters",
)


def metrics_to_collect() -> tuple[str, ...]:
    """The metrics that the set ``forge`` requests by name, beside its sections."""
    names = [metrics[0] for metrics in COUNTERS.values()]
    names += [f"{STALL_PREFIX}{reason}{STALL_SUFFIX}" for reason in STALLS if reason != "no_instructions"]
    return tuple(name for name in names if not name.startswith(("launch__", "device__", "memory_")))


#: Arguments of ``ncu --import`` that print a report as CSV for :func:`read_csv`.
EXPORT = ("--page", "raw", "--csv", "--print-units", "base")


class ProfileError(ForgeError, ValueError):
    """A profile cannot be read, or does not hold what is needed."""


@dataclass(frozen=True)
class KernelProfile:
    """The profile of one launch."""

    name: str
    metrics: dict[str, float] = field(repr=False)  # every number of the report by ncu's name, in base units

    def get(self, name: str) -> float | None:
        """A figure by its short name in :data:`COUNTERS`, or None if the report lacks it."""
        return next((self.metrics[metric] for metric in COUNTERS[name] if metric in self.metrics), None)

    def __getitem__(self, name: str) -> float:
        """The same; raises LookupError if the report lacks it."""
        value = self.get(name)
        if value is None:
            raise LookupError(name)
        return value

    def stalls(self) -> list[tuple[str, float]]:
        """Stall reasons of :data:`STALLS` and their shares in percent, largest first."""
        reasons = {f"{STALL_PREFIX}{reason}{STALL_SUFFIX}": reason for reason in STALLS}
        found = {reasons[name]: value for name, value in self.metrics.items() if name in reasons}
        total = sum(found.values()) or 1.0
        return sorted(((reason, 100 * value / total) for reason, value in found.items()), key=lambda item: -item[1])


def read_profile(path: Path) -> list[KernelProfile]:
    """The launches of a ``.csv`` that ncu wrote, packed or not, or of a ``.ncu-rep``, in order.

    Raises:
        ProfileError: the file does not exist, is neither, or holds no kernel.
        UnsupportedError: ncu is needed and not installed.
    """
    if not path.is_file():
        raise ProfileError(f"{path}: expected a profile (.ncu-rep or .csv), found no such file.")
    if path.name.endswith((".csv", ".csv.xz")):
        return read_csv(read_unpacked(path).decode(errors="replace").splitlines(), str(path))
    if path.suffix != ".ncu-rep":
        raise ProfileError(f"{path}: expected a profile named *.ncu-rep, *.csv or *.csv.xz.")
    executable = find_tool("ncu")
    if executable is None:
        raise UnsupportedError(
            f"{path}: a report is exported by ncu, which was not found. Put Nsight Compute on the PATH, or export the "
            f"report where it is: ncu --import {path.name} {' '.join(EXPORT)} > {path.stem}.csv",
            requirement="ncu",
        )
    done = subprocess.run([executable, "--import", str(path), *EXPORT], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ProfileError(
            f"{path}: ncu --import ended with {how_it_ended(done.returncode, done.stdout + done.stderr)}"
        )
    return read_csv(done.stdout.splitlines(), str(path))


def read_csv(lines: Iterable[str], source: str = "the CSV") -> list[KernelProfile]:
    """The launches of a CSV in either of ncu's two forms; other lines of ncu's output are skipped.

    Raises:
        ProfileError: there is no table, or no kernel in it.
    """
    table = dropwhile(lambda line: not line.lstrip("\ufeff").startswith('"ID"'), lines)
    header, *rows = [*filter(None, csv.reader(line for line in table if not line.startswith("==")))] or [[]]
    if not header:
        raise ProfileError(
            f'{source}: expected a CSV of ncu\'s, which begins with a column "ID"; found none. '
            "Export one with: ncu --import REPORT --page raw --csv"
        )
    launches: dict[str, KernelProfile] = {}
    units: dict[str, str] = {}
    for row in rows:
        cells = dict(zip(header, row, strict=False))
        if not row[0].strip():  # the row of units has no ID
            units = cells
            continue
        # A kernel's name without its return type and its arguments.
        name = cells.get("Kernel Name", "").partition("(")[0].removeprefix("void ").strip()
        metrics = launches.setdefault(row[0], KernelProfile(name, {})).metrics
        if "Metric Name" in cells:  # the default page
            units = {cells["Metric Name"]: cells["Metric Unit"]}
            cells = {cells["Metric Name"]: cells["Metric Value"]}
        for metric, text in cells.items():
            with contextlib.suppress(ValueError):  # text, or "n/a"
                metrics[metric] = float(text.replace(",", "")) * _factor(units.get(metric, ""))
    if not launches:
        raise ProfileError(f"{source}: the table holds no kernel; was the kernel inside the profiled range?")
    return list(launches.values())


def _factor(unit: str) -> float:
    """The number of base units in a scaled one: "Mbyte", "us", "nsecond", "Gbyte/second", "Kbyte/block"."""
    scaled = re.match(r"[KMGT](?=[a-z]*(?:/|$))|[mun](?=s(?:econd)?(?:/|$))", unit)
    return {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "m": 1e-3, "u": 1e-6, "n": 1e-9}[scaled[0]] if scaled else 1.0


def hottest_lines(lines: Iterable[str], *, most: int = 5) -> str:
    """The ``most`` source lines of each kernel with most warp samples, and their shares.

    In ncu's page ``source`` (``--print-source cuda,sass --csv``) each kernel and file has a table, with a row for each
    line, followed by a row for each of its instructions.
    """
    kernel, file, header = "", "", list[str]()
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for row in csv.reader(lines):
        if not row:
            continue
        if row[0] == "File Path":
            file = PurePath(row[1]).name
        elif row[0] == "Function Name":
            kernel = row[1]
        elif row[0] == "Line No":
            header = row
        elif row[0].isdigit() and "# Samples" in header:
            samples = row[header.index("# Samples")]
            if samples.isdigit() and int(samples):
                found[kernel].append((int(samples), f"{file}:{row[0]}  {row[1].strip()}"))
    shown: list[str] = []
    for name, sampled in found.items():
        total = sum(samples for samples, _ in sampled)
        hottest = sorted(sampled, key=lambda line: -line[0])[:most]
        shown.append(f"{name}: where its warps were seen")
        shown += [f"  {100 * samples / total:5.1f} %  {line}" for samples, line in hottest]
    return "\n".join(shown) or "no source lines: was the kernel compiled with line information?"
