"""The numbers that selection decides by: defaults, until `nox -s tune` measures them: see ``forge_core.thresholds``.

They hold for all row operators.  A package that has benchmarks to measure them on declares :func:`row_thresholds` as
its own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from forge_core.thresholds import Probe, Threshold, Thresholds

#: Name, default, and what it decides.
_DECLARED = (
    (
        "almost_bytes",
        2**16,
        "Bytes in flight per multiprocessor above which fewer blocks per row beat more bytes in flight.",
    ),
    ("enough_bytes", 96 * 2**10, "Bytes in flight per multiprocessor beyond which more gain nothing."),
    ("spread_vectors", 2**10, "Vectors per block, of very few rows per row, from which few rows take more blocks."),
    ("grid_vectors", 2**15, "Vectors of a row from which few rows are held by the whole GPU, not by a cluster each."),
    ("split_elements", 2**16, "Elements of a row from which its parts have a launch per pass."),
)


@functools.cache
def thresholds() -> Thresholds:
    """The engine's; a function, because a kernel is stored only if constants can be compared with their source."""
    return Thresholds(
        week="rows",
        folder=Path(__file__).with_name("thresholds"),
        declared=tuple(Threshold(name, n, about, (n // 2, n, n * 2), ()) for name, n, about in _DECLARED),
    )


def row_thresholds(probes: Mapping[str, tuple[Probe, ...]]) -> Thresholds:
    """The engine's thresholds, with what a package measures them on.

    Args:
        probes: by threshold: cases on both sides of it, of the package's benchmarks.
    """
    declared = [replace(threshold, probes=probes[threshold.name]) for threshold in thresholds().declared]
    return replace(thresholds(), declared=tuple(declared))
