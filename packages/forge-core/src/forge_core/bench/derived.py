"""The suites that no package has to write: `full`, every case of its suites, and `cold`, its operators' first calls.

A package that declares a suite of that name has its own.
"""

from __future__ import annotations

import msgspec

from forge_core.bench.declare import Bench
from forge_core.bench.schema import CaseGroup, Suite, load_suites

__all__ = ["suites_of"]

FULL = "full"
COLD = "cold"
#: Looked at last, so that a case of it has the peers and variants that another suite gives it.
SMOKE = "smoke"


def suites_of(bench: Bench) -> dict[str, Suite]:
    """The suites of a package, by name: those in its file, and the derived ones.

    Raises:
        BenchmarkError: the file cannot be read, or is not what is expected.
    """
    declared = load_suites(bench)
    return {**declared, **{n: s for n, s in _derived(bench, declared).items() if n not in declared}}


def _derived(bench: Bench, declared: dict[str, Suite]) -> dict[str, Suite]:
    timed = [declared[name] for name in sorted(declared, key=lambda name: name == SMOKE)]
    timed = [suite for suite in timed if suite.timer == "device"]
    full = Suite(
        about="Every case of every suite that times the device.",
        cases=[
            msgspec.structs.replace(group, peers=suite.peers if group.peers is None else group.peers)
            for suite in timed
            for group in suite.cases
        ],
        targets=[target for suite in timed for target in suite.targets],
        targets_for=next((suite.targets_for for suite in timed if suite.targets_for), ""),
    )
    cold = Suite(
        about="What the first call of a process costs, with empty caches and with kept ones, and what the next costs.",
        cases=[
            CaseGroup(
                operator=operator.name,
                shapes=list(operator.default_shapes[:1]),
                dtypes=list(operator.default_dtypes[:1]),
                peers=[peer.name for peer in operator.peers],
            )
            for operator in bench.operators
        ],
        timer="cold",
        cpu=True,
    )
    return {FULL: full, COLD: cold}
