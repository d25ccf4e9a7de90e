"""The thresholds of this package that are measured on each GPU; the tables stand in the folder ``thresholds``."""

from __future__ import annotations

from pathlib import Path

from forge_core.thresholds import Probe, Threshold, Thresholds

__all__ = ["THRESHOLDS"]

THRESHOLDS = Thresholds(
    week="week1",
    folder=Path(__file__).with_name("thresholds"),
    declared=(
        Threshold(
            name="min_part_bytes",
            default=8192,
            about="Bytes of a row for each of the blocks that share it, below which one more costs more than it gains.",
            candidates=(2048, 4096, 8192, 16384, 32768),
            # Rows of 32 to 512 KB, too few to fill the GPU with a block each: how far they are cut is the question.
            probes=(Probe("sum_rows", ("64x16384", "64x131072", "16x65536"), ("float32", "bfloat16")),),
        ),
    ),
)
