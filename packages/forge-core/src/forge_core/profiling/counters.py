"""The counters that Forge reads of Nsight Compute.

Each figure has a short name, which the rules and the report use, and the metrics that can give it: names change between
architectures and versions, so the first one that a report holds is taken.  Values are in base units.
"""

from __future__ import annotations

__all__ = ["COUNTERS", "SECTIONS", "STALLS", "STALL_PREFIX", "asked"]

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
    # Global memory: requests of a warp, the 32-byte sectors that they touch, and the bytes used of these.
    "load_requests": (f"l1tex__t_requests_{_GLOBAL}_ld.sum",),
    "load_sectors": (f"l1tex__t_sectors_{_GLOBAL}_ld.sum",),
    "store_requests": (f"l1tex__t_requests_{_GLOBAL}_st.sum",),
    "store_sectors": (f"l1tex__t_sectors_{_GLOBAL}_st.sum",),
    "load_used_pct": (f"{_USED}_ld.pct",),
    "store_used_pct": (f"{_USED}_st.pct",),
    # Shared memory: wavefronts, those without bank conflicts, and their share of the most that the time allows.
    "shared_wavefronts": ("memory_l1_wavefronts_shared",),
    "shared_wavefronts_ideal": ("memory_l1_wavefronts_shared_ideal",),
    "shared_pct": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed",),
    "conflicts_load": (f"l1tex__data_bank_conflicts_{_SHARED}_ld.sum",),
    "conflicts_store": (f"l1tex__data_bank_conflicts_{_SHARED}_st.sum",),
    "wavefronts_load": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",),
    "wavefronts_store": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",),
    # Local memory, where spilled registers go.
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
    # Use of the pipelines.
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

#: What a warp can wait for: the word in ncu's metric, and what it means.
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

#: The sections of ncu that hold these metrics.
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


def asked() -> tuple[str, ...]:
    """The metrics that the set ``forge`` asks ncu for by name, beside its sections."""
    names = [metrics[0] for metrics in COUNTERS.values()]
    names += [f"{STALL_PREFIX}{reason}{STALL_SUFFIX}" for reason in STALLS if reason != "no_instructions"]
    return tuple(name for name in names if not name.startswith(("launch__", "device__", "memory_")))
