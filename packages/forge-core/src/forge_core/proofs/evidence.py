"""What a checkout makes of recorded kernels, recomputed without a GPU.

    fingerprints    digests of the syntax trees that plan and compile a kernel; equal ones need no recomputation
    declarations    declared samples, bounds and planted faults; the tolerance policy
    tests           the name and body of every GPU test
    launches        the plan of each recorded call, made on meta tensors
    code            the PTX of configurations, compiled for the recorded GPU

Launches and code are computed by one process for each core; a compilation takes some 0.2 s.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import os
import re
import tomllib
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from forge_core.cache.sources import fingerprint, locate
from forge_core.device import Device
from forge_core.errors import ForgeError
from forge_core.op.launch import Launch, load
from forge_core.proofs.calls import plan, routed, run_digest, values
from forge_core.proofs.declare import ProofError, Week, digest_of, discover
from forge_core.proofs.definitions import Definitions, code_digest, gpu_tests

__all__ = ["Evidence", "Launched", "normalised"]

#: Calls, or compilations, in one task of a worker process.
_CALLS, _KERNELS = 2000, 8

_MEASURE = "forge_core.proofs.measure:measure"

_COMMENT = re.compile(r"//[^\n]*")
_IGNORED = re.compile(r"^\s*\.(?:version|file|loc)\b[^\n]*$", re.MULTILINE)
_DEBUG = re.compile(r"^\s*\.section\s+\.debug\w*\s*\{.*?^\s*\}", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)")

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Launched:
    """The launch that is planned for a call.

    Attributes:
        run: the digest of what the plan passes on: variant, configuration, integers, workspace.
        launch: the digest of that and of each kernel's grid, block, cluster, shared memory and arguments.
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
    """Digests of a checkout.  Launches and code are computed once: a run compares them first and records them later.

    Args:
        root: the repository's root.
        jobs: processes that plan and compile; default: one for each core.
        recompute: compare launches and code even where the fingerprint is that of the proof.
    """

    def __init__(self, root: Path, jobs: int | None = None, *, recompute: bool = False) -> None:
        self.root = root
        self.recompute = recompute
        self._jobs = jobs or len(os.sched_getaffinity(0))
        self._files: dict[str, frozenset[str]] = {}
        self._launched: dict[tuple[Device, str, str], Launched] = {}
        self._digests: dict[tuple[str, str, Any], str] = {}

    def fingerprints(self, week: Week) -> dict[str, str]:
        """By kernel, the digest of the syntax trees and threshold tables that plan and compile it.

        Raises:
            ProofError: a module of a kernel has no source file.
        """
        tables = repr([*_thresholds(week.package), *_thresholds("forge_core.rows")])
        found = {}
        for kernel in week.kernels:
            files = self._closure(kernel.builder.partition(":")[0]) | self._closure(kernel.chooser)
            found[kernel.name] = digest_of([sorted(map(code_digest, files)), tables])[:32]
        return found

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
        """By kernel, the digest of its operator's ``Subject(...)`` in the package's ``proofs`` and of the measurement.

        Raises:
            ProofError: an operator's declaration is not found.
        """
        definitions = Definitions(self.root)
        path = Path(locate(f"{week.package}.proofs"))
        operators = {kernel.operator.rpartition("::")[2]: kernel.operator for kernel in week.kernels}
        declared = {}
        for node in (node for statement in definitions.module(path).tree.body for node in ast.walk(statement)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "Subject" and node.args:
                name = ast.unparse(node.args[0]).rpartition(".")[2]
                if name in operators:
                    declared[operators[name]] = definitions.tell(path, node)
        missing = sorted(set(operators.values()) - set(declared))
        if missing:
            raise ProofError(f"{week.package}.proofs: expected a Subject(...) for each of {', '.join(missing)}")
        measured = definitions.of_name(_MEASURE)
        return {kernel.name: digest_of([declared[kernel.operator], measured])[:32] for kernel in week.kernels}

    def tests(self, week: Week) -> dict[str, str]:
        """The digest of each test function that runs on a GPU, by its name."""
        return gpu_tests(self.root, week.tests)

    def launches(self, calls: Iterable[tuple[str, str]], device: Device) -> dict[tuple[str, str], Launched]:
        """What calls launch on a device.

        Args:
            calls: each call's operator, ``"namespace::name"``, and its text.
            device: the GPU.
        """
        asked = list(dict.fromkeys(calls))
        wanted: dict[str, list[str]] = {}
        for operator, call in asked:
            if (device, operator, call) not in self._launched:
                wanted.setdefault(operator, []).append(call)
        tasks = [
            (operator, own[i : i + _CALLS], device)
            for operator, own in wanted.items()
            for i in range(0, len(own), _CALLS)
        ]
        for (operator, own, _), launched in zip(tasks, self._each(_launches, tasks), strict=True):
            self._launched |= {(device, operator, call): each for call, each in zip(own, launched, strict=True)}
        return {key: self._launched[device, *key] for key in asked}

    def code(self, kernels: Iterable[tuple[str, Any]], arch: str) -> dict[tuple[str, Any], str]:
        """The digest of the PTX of builders and configurations; ``"! ..."`` says why one does not compile."""
        asked = list(dict.fromkeys(kernels))
        wanted = [kernel for kernel in asked if (arch, *kernel) not in self._digests]
        # Neighbours take about as long to compile, so they go to different processes.
        count = -(-len(wanted) // _KERNELS)
        tasks = [(wanted[i::count], arch) for i in range(count)]
        for (own, _), digests in zip(tasks, self._each(_code, tasks), strict=True):
            self._digests |= {(arch, *kernel): digest for kernel, digest in zip(own, digests, strict=True)}
        return {kernel: self._digests[arch, *kernel] for kernel in asked}

    def _each(self, function: Callable[[Any], Answer], tasks: Sequence[Any]) -> list[Answer]:
        if self._jobs == 1 or len(tasks) < 2:
            return [function(task) for task in tasks]
        # Fresh interpreters: a process that has initialised CUDA must not fork.
        with ProcessPoolExecutor(min(self._jobs, len(tasks)), mp_context=get_context("spawn")) as pool:
            return list(pool.map(function, tasks))


def _thresholds(package: str) -> list[dict[str, Any]]:
    spec = importlib.util.find_spec(package)
    folders = list((spec and spec.submodule_search_locations) or [])[:1]
    paths = [path for folder in folders for path in sorted(Path(folder, "thresholds").glob("*.toml"))]
    return [tomllib.loads(path.read_text(encoding="utf-8")) for path in paths]


# ------------------------------------------------------------------------------------------------ in a worker process


def _launches(task: tuple[str, list[str], Device]) -> list[Launched]:
    # torch warns whenever a complex32 tensor is made, here one without memory.
    warnings.filterwarnings("ignore", message="ComplexHalf support is experimental")
    name, calls, device = task
    operators = {s.operator.schema.qualified: s.operator for week in discover() for s in week.subjects}
    if name not in operators:
        return [Launched(problem=f"there is no operator {name}")] * len(calls)
    if not routed(operators[name]):
        return [Launched(problem="calls of CUDA tensors do not reach the kernels")] * len(calls)
    found = []
    for call in calls:
        try:
            launch = plan(operators[name], call, device)
            found.append(Launched(run_digest(launch), _launch_digest(launch), launch.builder, launch.config))
        except ForgeError as error:
            found.append(Launched(problem=str(error)))
    return found


def _launch_digest(launch: Launch) -> str:
    from forge_core.profiling.geometry import record_launches

    function, pointers = _source(launch.builder, launch.config)
    kernels = record_launches(function, launch.arguments, pointers=pointers)
    told = [[k.grid, k.block, k.cluster, k.dynamic_smem, k.options, k.arguments] for k in kernels]
    return digest_of([run_digest(launch), values(told)])[:16]


@functools.lru_cache(maxsize=512)
def _source(builder: str, config: Any) -> tuple[Any, int]:
    """The function that a builder compiles, and how many of its arguments are pointers."""
    source = load(builder).__wrapped__(config)  # type: ignore[attr-defined]  # set by functools.update_wrapper
    return source.function, sum(type(a).__name__.lower().endswith("pointer") for a in source.arguments)


def _code(task: tuple[list[tuple[str, Any]], str]) -> list[str]:
    kernels, arch = task
    found = []
    for builder, config in kernels:
        try:
            made = load(builder).compile(config, arch=arch)
            text = f"{made.key.options}\n{normalised(made.ptx or '')}"
            found.append(hashlib.sha256(text.encode()).hexdigest()[:16])
        except ForgeError as error:
            found.append(f"! {error}")
    return found


def normalised(ptx: str) -> str:
    """PTX without comments, line information, its version and the names of its kernels.

    The version differs between the DSL's libraries for CUDA 12 and 13, which otherwise give the same code.
    """
    text = _IGNORED.sub("", _DEBUG.sub("", _COMMENT.sub("", ptx)))
    for number, name in enumerate(dict.fromkeys(_ENTRY.findall(text))):
        text = re.sub(rf"(?<![\w$]){re.escape(name)}(?=_param_\d|(?![\w$]))", f"kernel{number}", text)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())
