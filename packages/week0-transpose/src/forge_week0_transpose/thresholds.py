"""The thresholds of this package that are measured on each GPU; the tables stand in the folder ``thresholds``."""

from __future__ import annotations

from pathlib import Path

from forge_core.thresholds import Probe, Threshold, Thresholds


def _probe(shapes: str, dtypes: str) -> Probe:
    return Probe("transpose", tuple(shapes.split()), tuple(dtypes.split()))


def _large(itemsize: int, default: int, candidates: tuple[int, ...], shapes: str, dtype: str) -> Threshold:
    """Probed by shapes with fewer and with more tiles than the default asks for."""
    about = f"Tiles of 256 x 256 bytes for each multiprocessor below which smaller win, for elements of {itemsize}."
    return Threshold(f"large_tiles_{itemsize}", default, about, candidates, (_probe(shapes, dtype),))


# docs/lab/week0.md says what each gained.
THRESHOLDS = Thresholds(
    week="week0",
    folder=Path(__file__).with_name("thresholds"),
    declared=(
        _large(1, 6, (3, 6, 10), "4096x4096 6144x6144 8192x8192", "int8"),
        _large(2, 10, (3, 6, 10, 20), "3072x3072 4096x4096 6144x6144 32x4096x128", "bfloat16"),
        _large(4, 20, (6, 10, 20, 40), "2048x2048 3072x3072 4096x4096 131072x64", "float32"),
        _large(8, 4, (2, 4, 10, 20), "768x768 1024x1024 2048x2048", "float64"),
        _large(16, 4, (2, 4, 10, 20), "384x384 512x512 1024x1024", "complex128"),
        Threshold(
            name="shifted_tiles",
            default=4,
            about="Tiles for each multiprocessor below which `shifted` takes smaller ones.",
            candidates=(2, 4, 8, 16),
            probes=(
                _probe("2047x2049 4095x4097 8191x8193", "float32 bfloat16 int8"),
                _probe("50257x768", "float32 bfloat16"),
            ),
        ),
        Threshold(
            name="columns_beside",
            default=16,
            about="Tiles beside one another up to which blocks walk along the columns, where input rows share lines.",
            candidates=(1, 8, 16, 32, 64),
            probes=(
                _probe("32768x1000 16384x2000", "float32"),
                _probe("32768x1000 16384x3000 8192x5000", "bfloat16"),
            ),
        ),
    ),
)
