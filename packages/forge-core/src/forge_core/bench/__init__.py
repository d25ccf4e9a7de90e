"""Benchmarks as declarations: cases, peers, traffic, and a reference that every contender has to match.

A week declares a :class:`Bench` and names it in the entry-point group ``forge.bench``; its suites stand in a
``suites.yaml`` beside it.  Declaring touches no GPU.  ``forge-cute bench`` runs, shows and reports.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from forge_core import dtypes, settings
from forge_core.bench.gate import exact
from forge_core.bench.inputs import generator_for, random_tensor
from forge_core.op import Explanation, Operator
from forge_core.testing.inputs import LAYOUTS
from forge_core.thresholds import Thresholds

Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """An operator on a first input of one shape, dtype and layout (one of ``forge_core.bench.inputs.LAYOUTS``)."""

    operator: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: str = "contiguous"

    @property
    def shape_text(self) -> str:
        """The shape as it is typed: ``"4096x4096"``."""
        return "x".join(map(str, self.shape))

    @property
    def dtype_text(self) -> str:
        """The dtype's name: ``"bfloat16"``."""
        return dtypes.name_of(self.dtype)

    @property
    def name(self) -> str:
        """The case in one line: ``"transpose 4096x4096 float32"``; unique in a suite."""
        parts = [self.operator, self.shape_text, self.dtype_text]
        return " ".join(parts if self.layout == LAYOUTS[0] else [*parts, self.layout])

    @property
    def nbytes(self) -> int:
        """Bytes of the first input's elements."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Traffic:
    """The bytes that an operation must read and write at least, and why."""

    read: int
    written: int
    why: str

    @property
    def total(self) -> int:
        """Bytes read and written."""
        return self.read + self.written


def one_pass(case: Case) -> Traffic:
    """The traffic of an operator whose output has the shape and dtype of its input."""
    return Traffic(case.nbytes, case.nbytes, "each element is read once and written once")


@dataclass(frozen=True)
class Requirement:
    """A requirement of a peer: its name, a predicate on the run's device, and the distributions that meet it."""

    name: str
    met: Callable[[torch.device], bool]
    distributions: tuple[str, ...] = ()


def Package(distribution: str, module: str) -> Requirement:  # noqa: N802 - reads as the kind of requirement it makes
    """An installed distribution (several names are joined by "or"), and the module that it provides."""
    return Requirement(
        f"the package {distribution}",
        lambda device: importlib.util.find_spec(module) is not None,
        tuple(distribution.split(" or ")),
    )


CUDA_GPU = Requirement("a CUDA GPU", lambda device: device.type == "cuda")
TRITON = Package("triton", "triton")
QUACK = Package("quack-kernels", "quack")
LIGER = Package("liger-kernel", "liger_kernel")
CUPY = Package("cupy-cuda12x or cupy-cuda13x", "cupy")


@dataclass(frozen=True)
class Peer:
    """What a user would call instead.

    Attributes:
        name: as ``--peer`` takes it.
        make: takes a case and returns the call, which takes the inputs and returns the result.  Runs untimed, as does
            the first call: compile or plan there.
        requires: a peer with a missing requirement is left out.
        unable: takes a case and returns why the peer does not support it, or "".  The peer is then left out; any
            other error of it is an error.
        agree: as that of :class:`OperatorBench`, for a peer that rounds more often; None for the operator's own.
        tolerance: `agree` in words, for the record.
    """

    name: str
    make: Callable[[Case], Callable[..., torch.Tensor]]
    requires: tuple[Requirement, ...] = ()
    unable: Callable[[Case], str] = lambda case: ""
    agree: Callable[[Inputs, torch.Tensor, torch.Tensor], str] | None = None
    tolerance: str = ""

    def missing(self, device: torch.device) -> list[str]:
        """The names of the requirements that are not met."""
        return [requirement.name for requirement in self.requires if not requirement.met(device)]


def compiled_peers(function: Callable[..., Any], *, first: bool = False, **judged: Any) -> tuple[Peer, ...]:
    """The peers ``compile`` and ``autotune``: torch.compile, anew for each case, for its exact shape.

    Args:
        function: plain PyTorch.
        first: whether the first of its results is what is compared.
        **judged: ``agree`` and ``tolerance``.
    """

    def make(mode: str | None, case: Case) -> Callable[..., torch.Tensor]:
        torch._dynamo.reset()  # otherwise a function's second shape is compiled for dynamic shapes, which is slower
        call: Any = torch.compile(function, dynamic=False, mode=mode)
        return (lambda *inputs: call(*inputs)[0]) if first else call

    modes = {"compile": None, "autotune": "max-autotune-no-cudagraphs"}
    return tuple(Peer(name, partial(make, mode), (CUDA_GPU, TRITON), **judged) for name, mode in modes.items())


def one_random_tensor(case: Case, device: torch.device, generator: torch.Generator) -> Inputs:
    """The inputs of an operator on one tensor."""
    return (random_tensor(case.shape, case.dtype, device=device, generator=generator, layout=case.layout),)


@dataclass(frozen=True)
class OperatorBench:
    """The benchmark of one operator.

    Attributes:
        call: takes a variant's name and returns the operator's public call, which takes the inputs.
        variants: the names of the variants, without ``auto``.
        explain: takes the inputs and a variant's name, and returns an object with ``variant``, ``why``, ``config``.
        reference: plain PyTorch; takes the inputs.
        traffic: the bytes that a case must move.
        inputs: makes the inputs of a case on a device, which may be meta; by default one tensor of random values.
        agree: takes the inputs, a result and the reference's, and returns "" or what is wrong.  The default is for data
            movement; arithmetic uses ``gate.judged_by`` with the operator's ``Subject``.
        tolerance: `agree` in words, for the record.
        default_shapes, default_dtypes: of a run that names the operator only.
    """

    name: str
    call: Callable[[str], Callable[..., torch.Tensor]]
    variants: Callable[[], Collection[str]]
    explain: Callable[[Inputs, str], Any]
    reference: Callable[..., torch.Tensor]
    traffic: Callable[[Case], Traffic]
    peers: tuple[Peer, ...] = ()
    inputs: Callable[[Case, torch.device, torch.Generator], Inputs] = one_random_tensor
    agree: Callable[[Inputs, torch.Tensor, torch.Tensor], str] = lambda inputs, got, want: exact(got, want)
    tolerance: str = "exact equality, bit by bit"
    default_shapes: tuple[str, ...] = ("4096x4096",)
    default_dtypes: tuple[str, ...] = ("float32",)

    @classmethod
    def of(cls, operator: Operator, name: str = "", **more: Any) -> OperatorBench:
        """The benchmark of an operator that takes its inputs by position, and ``variant``.

        Args:
            operator: gives call, variants and explain.
            name: by default the operator's.
            **more: the other attributes.
        """
        return cls(
            name or operator.schema.name,
            # The plain call for auto, as a user writes it: a wrapper would be part of the host time.
            lambda variant: operator if variant == "auto" else partial(operator, variant=variant),
            operator.variants,
            lambda inputs, variant: operator.explain(*inputs, variant=variant),
            **more,
        )

    def planned(self, case: Case, variant: str, *, arch: str) -> Explanation:
        """The plan of a case on an architecture, made from meta tensors; raises what the call would raise."""
        inputs = self.inputs(case, torch.device("meta"), torch.Generator())
        with settings.use_settings(arch=arch):
            explanation: Explanation = self.explain(inputs, variant)
        return explanation

    def peer(self, name: str) -> Peer | None:
        """The peer of that name, if there is one."""
        return next((peer for peer in self.peers if peer.name == name), None)

    def wrong(self, name: str, inputs: Inputs, got: torch.Tensor, want: torch.Tensor) -> str:
        """What is wrong with a contender's result, or "", by the peer's `agree` or the operator's."""
        peer = self.peer(name)
        return ((peer and peer.agree) or self.agree)(inputs, got, want)

    def random_inputs(self, case: Case, device: torch.device, *, seed: int, what: str) -> Inputs:
        """Inputs of a case, by a generator seeded by the run's seed and a text."""
        return self.inputs(case, device, generator_for(device, seed=seed, what=what))


@dataclass(frozen=True)
class Bench:
    """The benchmarks of one package: its week, import name, operators, ``suites.yaml``, and thresholds to tune."""

    name: str
    package: str
    operators: tuple[OperatorBench, ...]
    suites: Path
    thresholds: Thresholds | None = None

    @cached_property
    def by_name(self) -> dict[str, OperatorBench]:
        """The operators by name."""
        return {operator.name: operator for operator in self.operators}
