"""What a record binds to, recomputed from the checkout without a GPU.

The methods of :class:`Evidence` are the rows of the table "What a proof binds to" in ``docs/proofs.md``.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import re
import tomllib
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from forge_core.cache import builder_at
from forge_core.cache.sources import fingerprint, locate
from forge_core.device import Device
from forge_core.errors import ForgeError
from forge_core.op import Operator
from forge_core.op.plan import Plan
from forge_core.proofs.calls import plan, run_digest, values
from forge_core.proofs.declare import ProofError, Week, digest_of, discover
from forge_core.proofs.definitions import Definitions, code_digest
from forge_core.toolchain import package_folder

#: Calls, or kernels, that a worker process takes at once; no more than that are planned, or compiled, without one.
CALLS_EACH, KERNELS_EACH = 2000, 4

_COMMENT = re.compile(r"//[^\n]*")
_IGNORED = re.compile(r"^\s*\.(?:version|file|loc)\b[^\n]*$", re.MULTILINE)
_DEBUG = re.compile(r"^\s*\.section\s+\.debug\w*\s*\{.*?^\s*\}", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)")

Recompute = Literal["changed", "always", "never"]
Key = TypeVar("Key", bound="tuple[Any, ...]")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Launched:
    """The launch that is planned for a call."""

    run: str = ""  # the digest of the plan: variant, configuration, integers, workspace
    launch: str = ""  # that of the plan and of each kernel's grid, block, cluster, shared memory and arguments
    kernel: tuple[str, Any] = ("", None)  # "module:attribute" of the kernel's builder, and its configuration
    problem: str = ""  # why nothing is launched


class Evidence:
    """Digests of a checkout.  Each plan and PTX is computed once: a run compares it first and records it later.

    Args:
        root: the repository's root.
        jobs: processes that plan and compile; by default one for each core.
        recompute: whether plans and PTX are recomputed if the fingerprint changed, always, or never.
    """

    def __init__(self, root: Path, jobs: int | None = None, *, recompute: Recompute = "changed") -> None:
        self.root = root.resolve()
        self.recompute = recompute
        self._jobs = jobs or len(os.sched_getaffinity(0))
        self._sources = functools.cache(_sources)
        self._computed: dict[tuple[Any, ...], Any] = {}

    def fingerprints(self, week: Week) -> dict[str, str]:
        """By kernel, the digest of the syntax trees and threshold tables that plan and compile it."""
        tables = repr([*_thresholds(week.package), *_thresholds("forge_core.rows")])
        return {
            kernel.name: digest_of([self._sources(kernel.builder.partition(":")[0], kernel.chooser), tables])[:32]
            for kernel in week.kernels
        }

    def declarations(self, week: Week) -> dict[str, str]:
        """By kernel, the digest of its operator's declaration in the package's ``proofs`` and of the measurement.

        A declaration is a call of ``Subject`` or ``row_subject`` whose first argument is the operator.
        """
        definitions = Definitions(self.root)
        path = Path(locate(f"{week.package}.proofs"))
        declared = {}
        for node in ast.walk(definitions.module(path).tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            if ast.unparse(node.func).rpartition(".")[2] in ("Subject", "row_subject"):
                declared[ast.unparse(node.args[0]).rpartition(".")[2]] = definitions.text(path, node)
        operators = {kernel.name: kernel.operator.rpartition("::")[2] for kernel in week.kernels}
        missing = sorted(set(operators.values()) - set(declared))
        if missing:
            raise ProofError(f"{week.package}.proofs: expected a Subject(...) for each of {', '.join(missing)}")
        measure = definitions.of(Path(__file__).with_name("measure.py"), "measure")
        return {name: digest_of([declared[operator], measure])[:32] for name, operator in operators.items()}

    def tests(self, week: Week, mark: str = "gpu") -> dict[str, str]:
        """The digest of each test function with a mark, by its name ``"packages/.../test_x.py::test_y"``."""
        definitions = Definitions(self.root)
        return {
            f"{path.relative_to(self.root).as_posix()}::{name}": definitions.of(path, name)
            for path in sorted((self.root / week.tests).rglob("test_*.py"))
            for name in definitions.tests(path, mark)
        }

    def launches(self, calls: Iterable[tuple[str, str]], device: Device) -> dict[tuple[str, str], Launched]:
        """What calls, each an operator ``"namespace::name"`` and its text, launch on a device."""
        return self._each(_launched, calls, device, CALLS_EACH)

    def code(self, kernels: Iterable[tuple[str, Any]], arch: str) -> dict[tuple[str, Any], str]:
        """The digest of the PTX of each builder and configuration; ``"! ..."`` says why one does not compile."""
        return self._each(_code, kernels, arch, KERNELS_EACH)

    def _each(
        self, compute: Callable[[Any, Key], Answer], keys: Iterable[Key], target: Any, together: int
    ) -> dict[Key, Answer]:
        asked = list(dict.fromkeys(keys))
        new = [key for key in asked if (target, key) not in self._computed]
        one = functools.partial(compute, target)
        if self._jobs == 1 or len(new) <= together:
            answers = list(map(one, new))
        else:
            # Fresh interpreters: a process that has initialised CUDA must not fork.
            with ProcessPoolExecutor(min(self._jobs, len(new)), mp_context=get_context("spawn")) as pool:
                answers = list(pool.map(one, new, chunksize=together))
        self._computed |= {(target, key): answer for key, answer in zip(new, answers, strict=True)}
        return {key: self._computed[target, key] for key in asked}


def _sources(*modules: str) -> list[str]:
    """Digests of the files of some modules and of what they import from their own packages and from Forge."""
    found = fingerprint(modules, excluded=())
    if found is None:
        raise ProofError(f"{' and '.join(modules)}: expected modules with a source file each")
    # Where other packages are installed, and so whether they are followed, differs from machine to machine.
    own = {module.partition(".")[0] for module in modules}
    paths = {Path(path) for path, _, _ in found.files}
    followed = (path for path in paths if any(name in own or name.startswith("forge_") for name in path.parts))
    return sorted(code_digest(path.read_bytes()) for path in followed)


def _thresholds(package: str) -> list[dict[str, Any]]:
    folder = package_folder(package)
    paths = sorted(folder.glob("thresholds/*.toml")) if folder is not None else []
    return [tomllib.loads(path.read_text(encoding="utf-8")) for path in paths]


# ------------------------------------------------------------------------------------------------ in a worker process


@functools.cache
def _operators() -> dict[str, Operator]:
    return {s.operator.schema.qualified: s.operator for week in discover() for s in week.subjects}


def _launched(device: Device, key: tuple[str, str]) -> Launched:
    name, call = key
    operator = _operators()[name]
    if operator.table.resolve(torch.device("cuda"), "auto") != "kernel":
        return Launched(problem="calls of CUDA tensors do not reach the kernels")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="ComplexHalf support is experimental")
        try:
            launch = plan(operator, call, device)
            return Launched(run_digest(launch), _launch_digest(launch), (launch.builder, launch.config))
        except ForgeError as error:
            return Launched(problem=str(error))


def _launch_digest(launch: Plan) -> str:
    from forge_core.profiling.compiled import launches_of

    kernels = launches_of(launch.builder, launch.config, launch.arguments)
    fields = [[k.grid, k.block, k.cluster, k.dynamic_smem, k.options, k.arguments] for k in kernels]
    return digest_of([run_digest(launch), values(fields)])[:16]


def _code(arch: str, key: tuple[str, Any]) -> str:
    builder, config = key
    try:
        made = builder_at(builder).compile(config, arch=arch)
    except ForgeError as error:
        return f"! {error}"
    return hashlib.sha256(f"{made.key.options}\n{normalised(made.ptx or '')}".encode()).hexdigest()[:16]


def refusal(code: Iterable[str]) -> str:
    """Why the first of some kernels that does not compile does not, from their digests; "" if all compile."""
    return next((digest.removeprefix("! ") for digest in code if digest.startswith("!")), "")


def normalised(ptx: str) -> str:
    """PTX without comments, line information, version and kernel names.

    Only the version differs between the DSL's libraries for CUDA 12 and 13.
    """
    text = _IGNORED.sub("", _DEBUG.sub("", _COMMENT.sub("", ptx)))
    for number, name in enumerate(dict.fromkeys(_ENTRY.findall(text))):
        text = re.sub(rf"(?<![\w$]){re.escape(name)}(?=_param_\d|(?![\w$]))", f"kernel{number}", text)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())
