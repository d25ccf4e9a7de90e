"""The counters that Forge reads of Nsight Compute, and what they are called here.

One table: a short name, the counters that can give it (the first that a report holds is taken, since their names
change between architectures and versions), and its unit after conversion to base units.  The runner asks ncu for the
sections and counters in :data:`SECTIONS` and :func:`asked`; the rules of ``diagnosis`` know the short names alone.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COUNTERS", "SECTIONS", "STALLS", "STALL_PREFIX", "Counter", "asked"]


@dataclass(frozen=True)
class Counter:
    """One figure of a profile.

    Attributes:
        name: as the rules and the report call it.
        metrics: the names that ncu may have for it.
        unit: ``"%"``, ``"bytes"``, ``"s"``, ``"bytes/s"`` or ``""`` for a count.
        about: what it says.
    """

    name: str
    metrics: tuple[str, ...]
    unit: str
    about: str


_GLOBAL = "pipe_lsu_mem_global_op"
_SHARED = "pipe_lsu_mem_shared_op"
_PEAK = "avg.pct_of_peak_sustained_elapsed"
_ACTIVE = "avg.pct_of_peak_sustained_active"

COUNTERS: tuple[Counter, ...] = (
    Counter("duration", ("gpu__time_duration.sum",), "s", "time of the kernel, under the profiler's own conditions"),
    Counter("memory_pct", (f"gpu__compute_memory_throughput.{_PEAK}",), "%", "memory throughput of its peak"),
    Counter("sm_pct", (f"sm__throughput.{_PEAK}",), "%", "throughput of the multiprocessors of its peak"),
    Counter("dram_pct", (f"gpu__dram_throughput.{_PEAK}", f"dram__throughput.{_PEAK}"), "%", "DRAM throughput of peak"),
    Counter("l1_pct", (f"l1tex__throughput.{_ACTIVE}",), "%", "throughput of L1 and shared memory of its peak"),
    Counter("l2_pct", (f"lts__throughput.{_PEAK}",), "%", "throughput of the L2 of its peak"),
    Counter("dram_read", ("dram__bytes_read.sum",), "bytes", "bytes read from DRAM"),
    Counter("dram_written", ("dram__bytes_write.sum",), "bytes", "bytes written to DRAM"),
    Counter("l2_hit_pct", ("lts__t_sector_hit_rate.pct",), "%", "hits in the L2"),
    Counter("l1_hit_pct", ("l1tex__t_sector_hit_rate.pct",), "%", "hits in the L1"),
    Counter("load_requests", (f"l1tex__t_requests_{_GLOBAL}_ld.sum",), "", "global load requests, one a warp"),
    Counter("load_sectors", (f"l1tex__t_sectors_{_GLOBAL}_ld.sum",), "", "32-byte sectors that they touch"),
    Counter("store_requests", (f"l1tex__t_requests_{_GLOBAL}_st.sum",), "", "global store requests"),
    Counter("store_sectors", (f"l1tex__t_sectors_{_GLOBAL}_st.sum",), "", "32-byte sectors that they touch"),
    Counter(
        "load_used_pct",
        ("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",),
        "%",
        "bytes used of the sectors that loads touch",
    ),
    Counter(
        "store_used_pct",
        ("smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",),
        "%",
        "bytes used of the sectors that stores touch",
    ),
    Counter("shared_wavefronts", ("memory_l1_wavefronts_shared",), "", "passes that shared-memory accesses take"),
    Counter("shared_wavefronts_ideal", ("memory_l1_wavefronts_shared_ideal",), "", "the same without bank conflicts"),
    Counter(
        "shared_pct",
        ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed",),
        "%",
        "passes of shared memory of the most that time allows",
    ),
    Counter("conflicts_load", (f"l1tex__data_bank_conflicts_{_SHARED}_ld.sum",), "", "bank conflicts of shared loads"),
    Counter("conflicts_store", (f"l1tex__data_bank_conflicts_{_SHARED}_st.sum",), "", "the same of shared stores"),
    Counter("wavefronts_load", ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",), "", "passes of shared loads"),
    Counter("wavefronts_store", ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",), "", "of shared stores"),
    Counter(
        "local_loads",
        ("smsp__inst_executed_op_local_ld.sum", "smsp__sass_inst_executed_op_local_ld.sum"),
        "",
        "loads from local memory, where spilled registers go",
    ),
    Counter(
        "local_stores",
        ("smsp__inst_executed_op_local_st.sum", "smsp__sass_inst_executed_op_local_st.sum"),
        "",
        "stores to local memory",
    ),
    Counter("instructions", ("smsp__inst_executed.sum", "sm__inst_executed.sum"), "", "instructions, one a warp"),
    Counter("occupancy_pct", (f"sm__warps_active.{_ACTIVE}",), "%", "achieved occupancy"),
    Counter("occupancy_max_pct", ("sm__maximum_warps_per_active_cycle_pct",), "%", "theoretical occupancy"),
    Counter("registers", ("launch__registers_per_thread",), "", "registers of a thread"),
    Counter("smem_static", ("launch__shared_mem_per_block_static",), "bytes", "static shared memory of a block"),
    Counter("smem_dynamic", ("launch__shared_mem_per_block_dynamic",), "bytes", "dynamic shared memory of a block"),
    Counter("smem_driver", ("launch__shared_mem_per_block_driver",), "bytes", "CUDA's own share of a block"),
    Counter("smem_config", ("launch__shared_mem_config_size",), "bytes", "shared memory that a multiprocessor had"),
    Counter("grid", ("launch__grid_size",), "", "blocks"),
    Counter("block", ("launch__block_size",), "", "threads of a block"),
    Counter("waves", ("launch__waves_per_multiprocessor",), "", "blocks over those that the GPU holds at once"),
    Counter("sms", ("launch__sm_count", "device__attribute_multiprocessor_count"), "", "multiprocessors"),
    Counter("limit_warps", ("launch__occupancy_limit_warps",), "", "blocks a multiprocessor, by warp slots"),
    Counter("limit_blocks", ("launch__occupancy_limit_blocks",), "", "by block slots"),
    Counter("limit_registers", ("launch__occupancy_limit_registers",), "", "by registers"),
    Counter("limit_shared", ("launch__occupancy_limit_shared_mem",), "", "by shared memory"),
    Counter("limit_barriers", ("launch__occupancy_limit_barriers",), "", "by barriers"),
    Counter("issue_pct", (f"smsp__issue_active.{_ACTIVE}", "smsp__issue_active.avg.pct"), "%", "cycles with an issue"),
    Counter(
        "pipe_tensor_pct",
        (
            f"sm__pipe_tensor_cycles_active.{_ACTIVE}",
            f"sm__inst_executed_pipe_tensor.{_ACTIVE}",
            f"sm__pipe_tensor_op_hmma_cycles_active.{_ACTIVE}",
        ),
        "%",
        "use of the matrix units",
    ),
    Counter(
        "pipe_fma_pct",
        (f"sm__pipe_fma_cycles_active.{_ACTIVE}", f"sm__inst_executed_pipe_fma.{_ACTIVE}"),
        "%",
        "of FMA",
    ),
    Counter(
        "pipe_alu_pct",
        (f"sm__pipe_alu_cycles_active.{_ACTIVE}", f"sm__inst_executed_pipe_alu.{_ACTIVE}"),
        "%",
        "of ALU",
    ),
    Counter("pipe_lsu_pct", (f"sm__inst_executed_pipe_lsu.{_ACTIVE}",), "%", "of LSU"),
)

STALL_PREFIX = "smsp__average_warps_issue_stalled_"
STALL_SUFFIX = "_per_issue_active.ratio"

#: What a warp can wait for, by the word in ncu's counter, in words.
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

#: The sections of ncu in which these counters are.
SECTIONS = (
    "SpeedOfLight",
    "LaunchStats",
    "Occupancy",
    "WarpStateStats",
    "SchedulerStats",
    "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Tables",
    "ComputeWorkloadAnalysis",
    # Passes of shared memory as they are and as they would be without conflicts are counted by source line only.
    "SourceCounters",
)


def asked() -> tuple[str, ...]:
    """Every counter that the set ``forge`` asks ncu for by name, beside its sections."""
    names = [name for counter in COUNTERS for name in counter.metrics[:1]]
    names += [f"{STALL_PREFIX}{reason}{STALL_SUFFIX}" for reason in STALLS if reason != "no_instructions"]
    return tuple(dict.fromkeys(name for name in names if not name.startswith(("launch__", "device__", "memory_"))))
