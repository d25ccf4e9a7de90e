"""What lies here, to be compared with what a GPU ran: recomputed without a GPU.

    fingerprints    the sources that plan and compile a kernel, as syntax trees      the shortcut: equal, so is the rest
    declarations    declared samples, bounds, planted faults; the policy
    tests           every GPU test, name and body
    launches        the plan of each recorded call                                   on meta tensors
    code            PTX of the configurations that reach every branch                compiled for the recorded GPU

The last two take a process for each processor; what they cost is the compilations, some 0.2 s each.
"""

from __future__ import annotations

import ast
import os
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from forge_core.cache.sources import fingerprint, locate
from forge_core.device import Device
from forge_core.errors import ForgeError
from forge_core.op import Operator
from forge_core.testing.proofs.declare import Kernel, ProofError, Week, digest_of, discover
from forge_core.testing.proofs.definitions import Definitions, code_digest, sanitizer_tests, test_digests

__all__ = ["Evidence", "Launched"]

#: Calls, or compilations, that one task of a worker process has.
_CALLS, _KERNELS = 2000, 8

_MEASURE = "forge_core.testing.proofs.measure:measure"

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Launched:
    """What a call launches.

    Attributes:
        run: the digest of what is passed on: variant, configuration, integers, workspace.
        launch: that of the launch, with its geometry.
        builder: ``"module:attribute"`` of the kernel's builder.
        config: its configuration.
        problem: why nothing is launched; "" otherwise.
    """

    run: str = ""
    launch: str = ""
    builder: str = ""
    config: Any = None
    problem: str = ""


class Evidence:
    """What lies here.  Plans and code are computed once: a run compares them, and records them when it ends.

    Args:
        root: the repository's root.
        jobs: processes that plan and compile; by default one for each processor.
        recompute: whether plans and code are compared although the sources are those of the proof.
    """

    def __init__(self, root: Path, jobs: int | None = None, *, recompute: bool = False) -> None:
        self.root = root
        self.recompute = recompute
        self._jobs = jobs or len(os.sched_getaffinity(0))
        self._files: dict[str, frozenset[str]] = {}
        self._launched: dict[tuple[str, str, Device], Launched] = {}
        self._digests: dict[tuple[tuple[str, Any], str], str] = {}

    def fingerprints(self, week: Week) -> dict[str, str]:
        """For each kernel, the digest of the syntax trees of all that plans and compiles it.

        Raises:
            ProofError: a module of a kernel has no source file.
        """
        return {kernel.name: self._fingerprint(kernel) for kernel in week.kernels}

    def _fingerprint(self, kernel: Kernel) -> str:
        files = self._closure(kernel.builder.partition(":")[0]) | self._closure(kernel.chooser)
        tables = [tomllib.loads(path.read_text(encoding="utf-8")) for path in kernel.data]
        return digest_of([sorted(map(code_digest, files)), repr(tables)])[:32]

    def _closure(self, root: str) -> frozenset[str]:
        if root not in self._files:
            found = fingerprint([root], boundary=())
            if found is None:
                raise ProofError(f"{root}: expected a module with a source file; without it nothing can be proven")
            # Where other packages lie, and so whether they are followed, differs from machine to machine.
            own = root.partition(".")[0]
            parts = ((path, Path(path).parts) for path, _, _ in found.files)
            self._files[root] = frozenset(
                path for path, names in parts if any(name == own or name.startswith("forge_") for name in names)
            )
        return self._files[root]

    def declarations(self, week: Week) -> dict[str, str]:
        """For each kernel, the digest of its operator's declaration and of how it is measured.

        Raises:
            ProofError: an operator's declaration is not found.
        """
        definitions = Definitions(self.root)
        told = _declared(definitions, week)
        measured = definitions.of_name(_MEASURE)
        missing = sorted({kernel.operator for kernel in week.kernels} - set(told))
        if missing:
            raise ProofError(f"{week.package}.proofs: expected a Subject(...) for each of {', '.join(missing)}")
        return {kernel.name: digest_of([told[kernel.operator], measured])[:32] for kernel in week.kernels}

    def tests(self, week: Week) -> dict[str, str]:
        """The digest of each test function that runs on a GPU, by its name."""
        return test_digests(self.root, week.tests)

    def sanitizer_tests(self, week: Week) -> set[str]:
        """The test functions that run under compute-sanitizer, by name."""
        return sanitizer_tests(self.root, week.tests)

    def launches(self, calls: Mapping[str, Sequence[str]], device: Device) -> dict[str, list[Launched]]:
        """What calls launch on a device.

        Args:
            calls: for each operator (``"namespace::name"``) its calls as text.
            device: the GPU.
        """
        known = self._launched
        new = {
            op: [call for call in dict.fromkeys(own) if (op, call, device) not in known] for op, own in calls.items()
        }
        parts = [(op, own[i : i + _CALLS]) for op, own in new.items() for i in range(0, len(own), _CALLS)]
        for (op, own), launched in zip(parts, self._each(_launches, [(*part, device) for part in parts]), strict=True):
            known |= {(op, call, device): each for call, each in zip(own, launched, strict=True)}
        return {op: [known[op, call, device] for call in own] for op, own in calls.items()}

    def code(self, kernels: Iterable[tuple[str, Any]], arch: str) -> dict[tuple[str, Any], str]:
        """The digest of the PTX of builders and configurations; ``"! ..."`` says why one does not compile."""
        asked = list(dict.fromkeys(kernels))
        wanted = [kernel for kernel in asked if (kernel, arch) not in self._digests]
        # Neighbours take about as long to compile, so that they go to different processes.
        parts = [wanted[i :: max(1, -(-len(wanted) // _KERNELS))] for i in range(-(-len(wanted) // _KERNELS))]
        for part, digests in zip(parts, self._each(_code, [(part, arch) for part in parts]), strict=True):
            self._digests |= {(kernel, arch): digest for kernel, digest in zip(part, digests, strict=True)}
        return {kernel: self._digests[kernel, arch] for kernel in asked}

    def _each(self, function: Callable[[Any], Answer], tasks: Sequence[Any]) -> list[Answer]:
        if self._jobs == 1 or len(tasks) < 2:
            return [function(task) for task in tasks]
        # Fresh interpreters: a process that has initialised CUDA must not fork.
        with ProcessPoolExecutor(min(self._jobs, len(tasks)), mp_context=get_context("spawn")) as pool:
            return list(pool.map(function, tasks))


def _declared(definitions: Definitions, week: Week) -> dict[str, str]:
    """By operator, the text of its ``Subject(...)`` in the package's module ``proofs``."""
    path = Path(locate(f"{week.package}.proofs"))
    names = {operator.rpartition("::")[2]: operator for operator in {kernel.operator for kernel in week.kernels}}
    found = {}
    for statement in definitions.module(path).tree.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "Subject" and node.args:
                own = ast.unparse(node.args[0]).rpartition(".")[2]
                if own in names:
                    found[names[own]] = definitions.tell(path, node)
    return found


# --------------------------------------------------------------------------------------------- in a worker's process


def _operators() -> dict[str, Operator]:
    return {s.operator.schema.qualified: s.operator for week in discover() for s in week.subjects}


def _launches(task: tuple[str, list[str], Device]) -> list[Launched]:
    from forge_core.testing.proofs.calls import plan, routed, run_digest
    from forge_core.testing.proofs.code import launch_digest

    # torch says so whenever a complex32 tensor is made, here one without memory.
    warnings.filterwarnings("ignore", message="ComplexHalf support is experimental")
    name, calls, device = task
    operator = _operators().get(name)
    if operator is None:
        return [Launched(problem=f"there is no operator {name}") for _ in calls]
    if not routed(operator):
        return [Launched(problem="calls of CUDA tensors do not reach the kernels") for _ in calls]
    found = []
    for call in calls:
        try:
            launch = plan(operator, call, device)
            found.append(Launched(run_digest(launch), launch_digest(launch), launch.builder, launch.config))
        except ForgeError as error:
            found.append(Launched(problem=str(error)))
    return found


def _code(task: tuple[list[tuple[str, Any]], str]) -> list[str]:
    from forge_core.testing.proofs.code import ptx_digest

    kernels, arch = task
    found = []
    for builder, config in kernels:
        try:
            found.append(ptx_digest(builder, config, arch))
        except ForgeError as error:
            found.append(f"! {error}")
    return found
