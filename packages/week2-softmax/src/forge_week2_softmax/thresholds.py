"""The thresholds of this package that are measured on each GPU; the tables stand in the folder ``thresholds``.

    single_pass -> cluster    block_chunks, block_chunks_backward
    cluster     -> grid       few_rows_grid_from, where rows are too few for their clusters to fill the GPU
    cluster     -> split      few_rows_split_from, the same for rows that grid cannot hold
    split       -> online     split_rows, where no cluster holds a row

Lengths are counted in chunks of 16 bytes, so that one threshold serves all dtypes.
"""

from __future__ import annotations

from pathlib import Path

from forge_core.thresholds import Probe, Threshold, Thresholds

__all__ = ["THRESHOLDS"]

_BOTH = ("float32", "bfloat16")
_FEW = ("1x65536", "1x131072", "1x262144", "4x131072", "4x262144")
_FEW_ASKEW = ("1x100001", "1x200001", "1x400001", "4x100001", "4x200001")

THRESHOLDS = Thresholds(
    week="week2",
    folder=Path(__file__).with_name("thresholds"),
    declared=(
        Threshold(
            name="block_chunks",
            default=2048,
            about="Chunks of a row that one block holds in a forward pass; longer rows get a cluster.",
            candidates=(1024, 2048, 4096),
            probes=(Probe("softmax", ("32768x8192", "32768x16384", "16384x32768"), _BOTH),),
        ),
        Threshold(
            name="block_chunks_backward",
            default=1024,
            about="Chunks of a row of each of two tensors that one block holds; longer rows get a cluster.",
            candidates=(512, 1024, 2048),
            probes=(Probe("softmax_backward", ("32768x4096", "32768x8192", "32768x16384"), _BOTH),),
        ),
        Threshold(
            name="few_rows_grid_from",
            default=16384,
            about="Chunks from which a row is held by blocks all over the GPU instead of one cluster, where rows are "
            "so few that their clusters leave half of it idle; twice as many where they are several.",
            candidates=(4096, 8192, 16384, 32768, 65536),
            probes=(Probe("softmax", _FEW, _BOTH), Probe("softmax_backward", _FEW, _BOTH)),
        ),
        Threshold(
            name="few_rows_split_from",
            default=32768,
            about="Chunks from which a row that these blocks cannot hold gets many blocks and a second pass instead of "
            "one cluster, where rows are so few; twice as many where they are several.",
            candidates=(8192, 16384, 32768, 65536),
            probes=(Probe("softmax", _FEW_ASKEW, _BOTH), Probe("softmax_backward", _FEW_ASKEW, _BOTH)),
        ),
        Threshold(
            name="split_rows",
            default=4,
            about="Rows for each multiprocessor up to which rows that no cluster holds get many blocks and a second "
            "pass; more of them get a block each and two reads.",
            candidates=(1, 2, 4, 8),
            probes=(Probe("softmax", ("200x1048576", "400x1048576", "800x1048576"), ("float32",)),),
        ),
    ),
)
