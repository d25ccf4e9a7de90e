"""Determinism and the error against float64 of each kernel of a week, in a process of its own.

    python -m forge_core.testing.proofs.measure week1 --out FILE [--device cuda]

Each result is held to the policy of ``tolerances``, or to the reference's bits, so this is a test of every variant of
every operator, also of those that no other test names; beyond that it says how large the error is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import torch

from forge_core.errors import UnsupportedError
from forge_core.files import write_atomically
from forge_core.testing.proofs.declare import Week, discover
from forge_core.testing.proofs.observe import shape_of
from forge_core.testing.subject import Subject
from forge_core.testing.tolerances import assert_near_float64

__all__ = ["REPEATS", "measure", "measure_week"]

#: How often a call is repeated; each has to give the bits of the first.
REPEATS = 20


def measure_week(week: Week, device: torch.device) -> dict[str, dict[str, Any]]:
    """Measures all kernels of a week.

    Returns:
        For each kernel's name: ``errors``, by dtype the largest absolute and relative error; ``repeats``; ``shapes``,
        the dtypes and shapes of the first inputs; and ``problem``, "" or what is wrong.
    """
    found = {}
    for subject in week.subjects:
        for variant in subject.operator.variants():
            if variant not in subject.absent:
                name = f"{subject.operator.schema.qualified}/{variant}"
                found[name] = measure(subject, variant, device)
    return found


def measure(subject: Subject, variant: str, device: torch.device) -> dict[str, Any]:
    """Measures one kernel; see :func:`measure_week`."""
    errors: dict[str, tuple[float, float]] = {}
    shapes: list[str] = []
    operator = subject.operator
    options = {"variant": variant} if "variant" in operator.schema.parameters else {}
    for args in subject.measured(device):
        try:
            first = operator(*args, **options)
        except UnsupportedError:
            continue
        what = f"{variant} {_what(args)}"
        for _ in range(REPEATS):
            if not torch.equal(_bits(first), _bits(operator(*args, **options))):
                return _wrong(f"{what}: two calls gave different bits")
        exact = subject.expected(*[a.double() if isinstance(a, torch.Tensor) else a for a in args]).double()
        try:
            _judge(subject, first, exact, args, what)
        except AssertionError as wrong:
            return _wrong(str(wrong))
        shapes.append(shape_of(args[0]))
        error = (first.double() - exact).abs().max().item()
        scale = exact.abs().max().item()
        if not error < float("inf"):  # NaN included
            return _wrong(f"{what}: the error is {error}")
        dtype = str(first.dtype).removeprefix("torch.")
        before = errors.get(dtype, (0.0, 0.0))
        errors[dtype] = (max(before[0], error), max(before[1], error / scale if scale else error))
    problem = "" if errors else "the variant refused every sample"
    return {"errors": errors, "repeats": REPEATS if errors else 0, "shapes": sorted(set(shapes)), "problem": problem}


def _wrong(problem: str) -> dict[str, Any]:
    return {"errors": {}, "repeats": 0, "shapes": [], "problem": problem}


def _judge(subject: Subject, got: torch.Tensor, exact: torch.Tensor, args: Sequence[Any], what: str) -> None:
    peer = subject.expected(*args)
    if subject.floor is not None:
        assert_near_float64(got, exact, peer, floor=subject.floor(*args), what=what)
    elif got.shape != peer.shape or got.dtype != peer.dtype or not torch.equal(got, peer):
        raise AssertionError(f"{what}: expected exactly what the reference gives")


def _what(args: Iterable[Any]) -> str:
    return ", ".join(f"{tuple(a.shape)} {a.dtype}" if isinstance(a, torch.Tensor) else repr(a) for a in args)


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


@click.command()
@click.argument("week")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True)
@click.option("--device", default="cuda")
def main(week: str, out: Path, device: str) -> None:
    """Measure the kernels of WEEK."""
    [found] = discover([week])
    result = measure_week(found, torch.device(device))
    write_atomically(out, json.dumps(result))
    problems = [f"{name}: {told['problem']}" for name, told in result.items() if told["problem"]]
    for problem in problems:
        click.echo(problem, err=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
