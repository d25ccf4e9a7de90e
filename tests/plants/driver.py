"""Plants changes in a copy of the repository, one after the other, and asks the check of the proofs about each.

    python tests/plants/driver.py COPY PLANTS OUT

COPY holds packages/ of the repository.  A record is made of it first, of what the calls below launch, with results
that no GPU gave: the plants are about what is compared, not about what was measured.  PLANTS is JSON, a list of
(name, edits) with the edits of ``edits.py``; OUT gets what the check says of each, by name.

The compiler is imported once; each check runs in a fork, which imports the copy's own code.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

#: What is launched: for each operator, calls by the variants that can do them.
CALLS = {
    "transpose": ("float32[256,320]", "bfloat16[131,77]", "float32[2051,3]"),
    "reduce_sum": ("float32[300,64] -1", "bfloat16[33,4097] -1", "float32[3,131072] -1", "bfloat16[4097,40] 0"),
    "softmax": (
        "float32[300,64] -1",
        "bfloat16[33,4097] -1",
        "float32[64,100000] -1",
        "float32[4096,8192] -1",
        "bfloat16[4097,40] 0",
    ),
    "softmax_backward": ("float32[300,64] float32[300,64] -1",),
}


def main(copy: Path, plants: list, out: Path) -> None:
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(path) for path in sorted(copy.glob("packages/*/src"))]
    import cutlass.cute  # noqa: F401 - not imported again by each fork
    import torch  # noqa: F401

    sys.path.insert(0, str(Path(__file__).parent))
    from edits import applied

    os.chdir(copy)
    found = {"": _forked(lambda: _record(copy))}
    for name, edits in plants:
        start = time.perf_counter()
        try:
            with applied(copy, edits):
                says = _forked(lambda: _check(copy))
        except LookupError as error:  # neither red nor green: the table names what is there no more
            says = [f"not planted: {error}"]
        found[name] = {"says": says, "seconds": round(time.perf_counter() - start, 1)}
        out.write_text(json.dumps(found))
    out.write_text(json.dumps(found))


def _forked(function) -> object:
    """What a function gives in a fork, by way of a pipe: nothing that it imports stays."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            answer = function()
            with os.fdopen(writing, "w") as pipe:
                json.dump(answer, pipe)
            status = 0
        except BaseException as error:  # noqa: BLE001 - the parent tells it
            with os.fdopen(writing, "w") as pipe:
                json.dump([f"broke: {type(error).__name__}: {error}"], pipe)
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return json.loads(told)


def _weeks() -> list:
    """The weeks, with the operators above alone."""
    import dataclasses

    from forge_core.proofs.declare import discover

    def kept(week):
        return tuple(kernel for kernel in week.kernels if kernel.operator.rpartition("::")[2] in CALLS)

    return [dataclasses.replace(week, kernels=kept(week)) for week in discover()]


def _record(copy: Path) -> list[str]:
    import msgspec
    import torch

    from forge_core.bench.environment import read_environment
    from forge_core.device import SPECS
    from forge_core.errors import ForgeError
    from forge_core.proofs.calls import plan, run_digest
    from forge_core.proofs.chunks import TOOLS, Chunk, Result
    from forge_core.proofs.declare import measured
    from forge_core.proofs.evidence import Evidence
    from forge_core.proofs.merge import Outcome, Task, merge
    from forge_core.proofs.record import ProofRun, Record

    device = SPECS["H200"]
    evidence = Evidence(copy, jobs=1)
    environment = msgspec.structs.replace(
        read_environment(torch.device("cpu"), []), device="cuda", gpu=device.name, commit="0" * 40, dirty=False
    )
    outcome = Outcome(Record(device.name, device))
    for week in _weeks():
        launched: dict[str, dict[str, str]] = {}
        for subject in week.subjects:
            operator = subject.operator
            schema = operator.schema
            for call in CALLS.get(schema.name, ()):
                given = call.split(" ")
                for variant in ("auto", *operator.variants()):
                    rest = {**schema.defaults, "variant": variant}
                    text = " ".join([*given, *(repr(rest[name]) for name in schema.parameters[len(given) :])])
                    try:
                        launch = plan(operator, text, device)
                    except ForgeError:
                        continue
                    name = f"{operator.schema.qualified}/{launch.variant}"
                    launched.setdefault(name, {})[text] = run_digest(launch)
        names = tuple(kernel for kernel in week.kernels if kernel.name in launched)
        tests = {
            name: {"outcome": "passed", "reason": "", "launched": {} if i else launched}
            for i, name in enumerate(evidence.tests(week))
        }
        figures = {"errors": {"float32": (1e-7, 1e-7, 0.5)}, "repeats": 20}
        told = {"outcome": "passed", "reason": "", "launched": {}, **figures}
        measurements = {measured(kernel.name): told for kernel in names}
        shown = {"tests": Result(tests=tests), "measure": Result(tests=measurements)}
        shown |= {tool: Result(tests=tests, verdict="0 errors") for tool in TOOLS}
        task = Task(week, frozenset(kernel.name for kernel in names), (Chunk(week.name, "tests"),))
        merge(outcome, task, shown, ProofRun("2000-01-01T00:00:00+00:00", environment), evidence)
    outcome.record.save(copy / "docs/records/h200/proof.json.xz")
    return [*outcome.failures, *outcome.notes]


def _check(copy: Path) -> list[str]:
    import dataclasses

    from forge_core.proofs.check import check, records_in
    from forge_core.proofs.declare import ProofError
    from forge_core.proofs.evidence import Evidence

    folder = copy / "docs/records"
    try:
        names = {proof.name for record in records_in(folder).values() for proof in record.proofs}
        weeks = [dataclasses.replace(w, kernels=tuple(k for k in w.kernels if k.name in names)) for w in _weeks()]
        return [str(finding) for finding in check(weeks, folder, Evidence(copy, jobs=1))]
    except ProofError as error:
        return [f"error: {error}"]


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3]))
