"""Measures determinism and the error against float64 of each kernel of a week.

    python -m forge_core.proofs.measure JOURNAL

Each result has to meet the policy of ``tolerances``, or have the reference's bits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from forge_core.errors import UnsupportedError
from forge_core.proofs.chunks import Chunk, append_outcome, given
from forge_core.proofs.declare import Week, discover, measured
from forge_core.proofs.observe import observed
from forge_core.testing.subject import Subject
from forge_core.testing.tolerances import bytes_of

#: How often a call is repeated; each repetition has to give the bits of the first.
REPEATS = 20


def measure_week(week: Week, chunk: Chunk, device: torch.device) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measures the kernels of a week whose measurement is in a chunk.

    Yields:
        Each test id (``declare.measured``) with outcome, reason and launched as for any test; ``errors`` by dtype, each
        as ``record.Error`` takes it; ``repeats``.
    """
    subjects = {subject.operator.schema.qualified: subject for subject in week.subjects}
    with observed() as launched:
        for kernel in week.kernels:
            if chunk.runs(measured(kernel.name)):
                launched.clear()
                figures = measure(subjects[kernel.operator], kernel.variant, device)
                problem = figures.pop("problem")
                outcome = {"outcome": "failed" if problem else "passed", "reason": problem}
                yield measured(kernel.name), {**outcome, "launched": {kernel.name: {}, **launched}, **figures}


def measure(subject: Subject, variant: str, device: torch.device) -> dict[str, Any]:
    """Measures one kernel; see :func:`measure_week`."""
    errors: dict[str, tuple[float, float, float]] = {}
    operator = subject.operator
    options = {"variant": variant} if "variant" in operator.schema.parameters else {}
    for args in subject.measured(device):
        try:
            first = operator(*args, **options)
        except UnsupportedError:
            continue
        what = f"{variant} {_what(args)}"
        for _ in range(REPEATS):
            if not torch.equal(bytes_of(first), bytes_of(operator(*args, **options))):
                return _wrong(f"{what}: two calls gave different bits")
        try:
            share = subject.judge(first, args, {}, what)
        except AssertionError as wrong:
            return _wrong(str(wrong))
        exact = subject.expected(*[a.double() if isinstance(a, torch.Tensor) else a for a in args]).double()
        error = (first.double() - exact).abs().max().item()
        scale = exact.abs().max().item()
        if not error < float("inf"):  # NaN included
            return _wrong(f"{what}: the error is {error}")
        dtype = str(first.dtype).removeprefix("torch.")
        now = (error, error / scale if scale else error, share)
        before = errors.get(dtype, (0.0, 0.0, 0.0))
        errors[dtype] = (max(before[0], now[0]), max(before[1], now[1]), max(before[2], now[2]))
    problem = "" if errors else "the variant refused every sample"
    return {"errors": errors, "repeats": REPEATS if errors else 0, "problem": problem}


def _wrong(problem: str) -> dict[str, Any]:
    return {"errors": {}, "repeats": 0, "problem": problem}


def _what(args: Iterable[Any]) -> str:
    return ", ".join(f"{tuple(a.shape)} {a.dtype}" if isinstance(a, torch.Tensor) else repr(a) for a in args)


def main(journal: Path) -> None:
    """Measures the kernels of the chunk beside a journal."""
    chunk = given(journal)
    [week] = discover([chunk.week])
    for test, shown in measure_week(week, chunk, torch.device("cuda")):
        append_outcome(journal, test, shown)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
