"""Sweeps: an operator on random problems, beside all of its peers.

A seed draws the cases: bytes log-uniform, then rows and columns, a batch, the dtype and the layout.  Each is measured
as any case of a suite, slow ones once more with more samples.  What a sweep reports are ratios to the fastest peer of
each case and to the ceiling: by class of problem their geometric mean and 5th percentile, and the slowest cases with
the variant that ran and why.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import geometric_mean

import msgspec

from forge_core import dtypes
from forge_core.bench import Bench, Case, OperatorBench
from forge_core.bench.plan import PlannedCase, Run
from forge_core.bench.records import SWEEP, CaseRecord, ContenderRecord, Record
from forge_core.bench.report import Table
from forge_core.bench.schema import AUTO, OURS
from forge_core.errors import BenchmarkError
from forge_core.testing.inputs import log_uniform, random_layout
from forge_core.timing import quantile
from forge_core.timing.interleave import Policy

#: Cases that are measured beside peers that autotune, which takes minutes a case.
AUTOTUNED = 40
#: Cases that are shown for their low ratios.
WORST = 10
#: Speedup over the fastest peer below which a case is measured once more, and times as many samples.
SLOW, TIMES = 0.90, 5
_AGAIN = f"Measured again, with {TIMES} times the samples."
_LEAST_BYTES = 1024

#: Classes of problems; a case is of the first that applies.
CLASSES: dict[str, Callable[[CaseRecord, int], bool]] = {
    "small": lambda case, size: math.prod(case.shape) * size <= 2 * 2**20,
    "strided": lambda case, size: case.layout in ("permuted", "sliced", "stepped"),
    "few rows": lambda case, size: math.prod(case.shape[:-1]) < 128,
    "tall": lambda case, size: case.shape[-1] <= 64,
    "long": lambda case, size: case.shape[-1] >= 32768,
    "odd": lambda case, size: case.layout == "offset" or case.shape[-1] * size % 16 != 0,
    "other": lambda case, size: True,
}


def draw(operator: OperatorBench, seed: int, count: int, kinds: Sequence[str], most_bytes: int) -> list[Case]:
    """Random cases of an operator, all different, whose first input has at most `most_bytes`.

    Raises:
        ValueError: an unknown dtype among `kinds`.
    """
    # Not of Python's hash, which differs from process to process.
    choose, found = random.Random(f"{operator.name} {seed}"), dict[str, Case]()  # noqa: S311 - cases, no secret
    while len(found) < count:
        dtype = dtypes.parse(choose.choice(kinds))
        elements = log_uniform(choose, _LEAST_BYTES, most_bytes) // dtype.itemsize
        columns = log_uniform(choose, 1, elements)
        shape = [max(1, elements // columns), columns]
        if shape[0] > 4 and choose.random() < 0.2:
            batch = log_uniform(choose, 2, min(64, shape[0] // 2))
            shape = [batch, shape[0] // batch, columns]
        case = Case(operator.name, tuple(shape), dtype, random_layout(choose))
        found.setdefault(case.name, case)
    return list(found.values())


def plan(bench: Bench, operator: OperatorBench, cases: Sequence[Case]) -> Run:
    """The cases as a run, beside all peers; those that autotune beside the first ``AUTOTUNED`` cases alone."""
    quick = tuple(peer for peer in operator.peers if "autotune" not in peer.name)
    planned = [
        PlannedCase(bench, operator, case, (AUTO,), operator.peers if number < AUTOTUNED else quick)
        for number, case in enumerate(cases)
    ]
    return Run(f"{SWEEP}{operator.name}", tuple(planned), cpu=True, packages=(bench.package,))


def rest(run: Run, record: Record | None) -> Run:
    """What a record does not have yet."""
    done = {case.name for case in record.cases} if record is not None else set()
    return replace(run, cases=tuple(planned for planned in run.cases if planned.case.name not in done))


def slow(run: Run, record: Record) -> Run:
    """The cases below ``SLOW`` that were not measured again."""
    names = {case.name for ratio, _, case in _compared(record) if ratio < SLOW and _AGAIN not in case.notes}
    return replace(run, cases=tuple(planned for planned in run.cases if planned.case.name in names))


def longer(policy: Policy) -> Policy:
    """The policy by which slow cases are measured again."""
    least, most = TIMES * policy.min_iterations, TIMES * policy.max_iterations
    return replace(policy, min_iterations=least, max_iterations=most, budget_ms=TIMES * policy.budget_ms)


def continued(before: Record, after: Record) -> Record:
    """A sweep and what was measured since, the rest or slow cases again, as one record.

    Raises:
        BenchmarkError: another sweep, other sources or another machine.
    """
    for what, old, new in (
        ("suite", before.suite, after.suite),
        ("seed", before.seed, after.seed),
        ("GPU", before.environment.gpu, after.environment.gpu),
        ("sources", before.environment.sources, after.environment.sources),
    ):
        if old != new:
            raise BenchmarkError(f"cannot continue the sweep: expected the same {what}, {old!r}, got {new!r}")
    cases = {case.name: case for case in before.cases}
    for case in after.cases:
        again = [_AGAIN] if case.name in cases else []
        cases[case.name] = msgspec.structs.replace(case, notes=[*case.notes, *again])
    return msgspec.structs.replace(
        after,
        cases=[*cases.values()],
        seconds=round(before.seconds + after.seconds, 1),
        notes=list(dict.fromkeys([*before.notes, *after.notes])),
    )


# ------------------------------------------------------------------------------------------------------ what it shows


def tables(record: Record) -> list[Table]:
    """The ratios by class of problem, and the cases with the lowest ones."""
    rows, compared = [], _compared(record)
    for name in ("all", *CLASSES):
        own = [(ratio, ours) for ratio, ours, case in compared if name in ("all", _class_of(case))]
        if not own:
            continue
        of_peer = [ratio for ratio, _ in own]
        of_copy = [ours.of_ceiling for _, ours in own if ours.of_ceiling]
        row = {
            "Class": name,
            "Cases": str(len(own)),
            "Of the best peer": f"{geometric_mean(of_peer):.3f}",
            "5th percentile": f"{quantile(of_peer, 0.05):.3f}",
            "Below 0.97": str(sum(ratio < 0.97 for ratio in of_peer)),
            f"Below {SLOW:.2f}": str(sum(ratio < SLOW for ratio in of_peer)),
            "Least": f"{min(of_peer):.3f}",
            "Of the copy": f"{geometric_mean(of_copy):.3f}" if of_copy else "",
        }
        rows.append(row)
    slowest = [
        {
            "Case": case.name.removeprefix(f"{case.operator} "),
            "Class": _class_of(case),
            "Ratio": f"{ratio:.3f}",
            "Best peer": case.best_peer,
            "Variant": ours.variant,
            "Why": ours.why,
        }
        for ratio, ours, case in sorted(compared, key=lambda each: each[0])[:WORST]
    ]
    name = record.suite.removeprefix(SWEEP)
    return [
        Table.of(f"{name}: speedup over the fastest peer, {len(compared)} random cases, seed {record.seed}", rows, 1),
        Table.of(f"The {len(slowest)} slowest", slowest, 1),
    ]


def reached(record: Record) -> float:
    """The 5th percentile of the speedups over the fastest peer, over all cases."""
    return quantile([ratio for ratio, _, _ in _compared(record)], 0.05)


def _compared(record: Record) -> list[tuple[float, ContenderRecord, CaseRecord]]:
    """The cases that have a peer, each with our contender and its ratio to the fastest peer."""
    both = [(case.contender(OURS), case) for case in record.cases]
    found = [(ours.of_best_peer, ours, case) for ours, case in both if ours and ours.of_best_peer is not None]
    if not found:
        raise BenchmarkError(f"{record.suite}: expected at least one case with a peer, got none")
    return found


def _class_of(case: CaseRecord) -> str:
    size = dtypes.parse(case.dtype).itemsize
    return next(name for name, applies in CLASSES.items() if applies(case, size))
