"""The declaration of an operator under test, written once, beside the operator.

    SUM = Subject(
        reduce_sum,                                      the operator
        samples, floor,                                  what its error is measured on, and its derived bound
        cases=[Case((4, 6), (-1,)), Case((4, 6), (0, True))],
        reference=torch.sum,                             what it should give
    )

``forge_core.testing.battery`` makes tests of it, and ``forge_core.proofs`` measures it on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from forge_core.testing.inputs import random_bits
from forge_core.testing.planted import Planted
from forge_core.testing.tolerances import assert_near_float64, assert_same_bits

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """One kind of call.

    Attributes:
        shape: what ``Subject.make`` makes its tensors from; usually that of the first tensor.
        args: the arguments after the tensors, by position.
        kwargs: the arguments by name.
    """

    shape: tuple[int, ...]
    args: Arguments = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [str(self.shape), *map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        return " ".join(words)


class Joined:
    """An operator of several results as one of a single tensor, which :class:`Subject` takes.

    Args:
        operator: the operator.
        join: makes a tensor of its results, such as ``torch.stack``.
    """

    def __init__(self, operator: Any, join: Callable[[Any], torch.Tensor]) -> None:
        functools.update_wrapper(self, operator)  # and its attributes
        self.variants, self.explain = operator.variants, operator.explain
        self.reference = lambda **named: join(operator.reference(**named))
        self._operator, self._join = operator, join

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The joined results of a call."""
        return self._join(self._operator(*args, **kwargs))


Make = Callable[[Case, torch.dtype, torch.device, int], tuple[torch.Tensor, ...]]


def normal(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """One tensor of the case's shape: normally distributed, or whole numbers from 0 to 8 of an integer dtype."""
    generator = torch.Generator(device=device).manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return (torch.randn(case.shape, dtype=wide, device=device, generator=generator).to(dtype),)
    return (torch.randint(0, 9, case.shape, device=device, generator=generator).to(dtype),)


def bits(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
    """One tensor of the case's shape and of random bits."""
    return (random_bits(case.shape, dtype, device, seed=seed),)


@dataclass(frozen=True)
class Subject:
    """An operator under test.

    GPU validation needs the first four alone.  The battery needs ``cases`` too, and ``reference`` where the operator
    brings none.

    Attributes:
        operator: a ``forge_core.op.Operator``, a custom operator of torch, or any function of tensors.
        samples: takes a device and yields the positional arguments of the calls that determinism and error are
            measured on.  A variant may refuse some of them by UnsupportedError, not all.  None: ``cases`` and
            ``dtypes``.
        floor: takes such arguments and returns the derived error bound of each element, as for
            ``assert_near_float64``; None if the result must equal the reference's.
        absent: variants that support no call of this operator, each with the reason.
        cases: small calls, of a few hundred elements, which every check makes.
        launches: calls of real sizes, at least one for each selectable kernel; GPU only.  None: the cases.
        laid_out: the calls whose tensors and ``out`` are tested in all layouts.  None: the cases.
        laid_out_dtypes: of these calls.  None: the first dtype.
        special: the calls that NaN and infinities are put into.  None: the cases.
        shapes: the shapes that a compiled graph must accept without recompilation, with the first case's arguments.
            None: shapes of the first case's rank.
        dtypes: of the inputs; checks of one dtype use the first.
        make: ``make(case, dtype, device, seed)`` returns fresh tensors of a call.
        inexact: the same with values whose result depends on the order of operations, for ``determinism``; None:
            ``make``.
        reference: takes a call's arguments and returns the expected result; None for the operator's own, which on
            CPU tensors is compared with itself.
        compare: ``compare(got, expected)`` raises AssertionError.  None: the rule of ``tolerances`` with ``floor``,
            and bit for bit without one.
        out: ``out(*args, out=tensor)``; None for ``operator.out`` if there is one.
        overload: the registered ``OpOverload``; None where the operator has it.
        out_overload: the same of the out form.
        differentiable: whether a gradient is registered.
        planted: wrong operators that a check must find, beside those that are planted in every operator.
        inapplicable: checks that do not apply, each with the reason for the skip.
        title: the operator's name in test ids; "" for its own.
    """

    operator: Any
    samples: Callable[[torch.device], Iterable[Arguments]] | None = None
    floor: Callable[..., torch.Tensor | float] | None = None
    absent: Mapping[str, str] = field(default_factory=dict)
    cases: Sequence[Case] = field(default=(), kw_only=True)
    launches: Sequence[Case] = field(default=(), kw_only=True)
    laid_out: Sequence[Case] = field(default=(), kw_only=True)
    laid_out_dtypes: Sequence[torch.dtype] = field(default=(), kw_only=True)
    special: Sequence[Case] = field(default=(), kw_only=True)
    shapes: Sequence[tuple[int, ...]] = field(default=(), kw_only=True)
    dtypes: Sequence[torch.dtype] = field(default=(torch.float32,), kw_only=True)
    make: Make = field(default=normal, kw_only=True)
    inexact: Make | None = field(default=None, kw_only=True)
    reference: Callable[..., torch.Tensor] | None = field(default=None, kw_only=True)
    compare: Callable[[torch.Tensor, torch.Tensor], None] | None = field(default=None, kw_only=True)
    out: Callable[..., Any] | None = field(default=None, kw_only=True)
    overload: Any = field(default=None, kw_only=True)
    out_overload: Any = field(default=None, kw_only=True)
    differentiable: bool = field(default=True, kw_only=True)
    planted: Sequence[Planted] = field(default=(), kw_only=True)
    inapplicable: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    title: str = field(default="", kw_only=True)

    @property
    def name(self) -> str:
        """The operator's name in test ids."""
        schema = getattr(self.operator, "schema", None)
        own = getattr(schema, "name", None) or getattr(self.operator, "_name", None)
        return self.title or str(own or getattr(self.operator, "__name__", type(self.operator).__name__))

    def registered(self, *, out: bool = False) -> Any:
        """The ``OpOverload`` of the operator, or of its out form; None where there is none."""
        given = self.out_overload if out else self.overload
        if given is not None:
            return given
        schema = getattr(self.operator, "schema", None)
        if schema is not None and hasattr(schema, "namespace"):
            name = f"{schema.name}_out" if out else schema.name
            return getattr(getattr(torch.ops, schema.namespace), name).default
        return None if out else getattr(self.operator, "_opoverload", None)

    def call(self, case: Case) -> Callable[..., torch.Tensor]:
        """The operator as a function of a case's tensors."""
        operator, args, kwargs = self.operator, case.args, dict(case.kwargs)

        def call(*tensors: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = operator(*tensors, *args, **kwargs)
            return result

        return call

    def fresh(self, case: Case, device: torch.device) -> Callable[[int], tuple[torch.Tensor, ...]]:
        """A function of a seed that makes a case's tensors in the first dtype."""
        return lambda seed: self.make(case, self.dtypes[0], device, seed)

    def measured(self, device: torch.device) -> Iterator[Arguments]:
        """The arguments of the calls that determinism and error are measured on."""
        if self.samples is not None:
            yield from self.samples(device)
            return
        for dtype in self.dtypes:
            for seed, case in enumerate(self.cases):
                if case.kwargs:
                    raise ValueError(f"{self.name}: a case with arguments by name needs samples, which have none")
                yield (*self.make(case, dtype, device, seed), *case.args)

    def expected(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The reference's result."""
        if self.reference is not None:
            return self.reference(*args, **kwargs)
        named = self.operator.schema.bind(args, kwargs)
        named.pop("variant", None)
        result: torch.Tensor = self.operator.reference(**named)
        return result

    def right(self, case: Case, what: str = "") -> Callable[[torch.Tensor, tuple[torch.Tensor, ...]], None]:
        """A function that raises AssertionError unless a result is right for a case's tensors."""

        def right(got: torch.Tensor, tensors: tuple[torch.Tensor, ...]) -> None:
            told = f"{self.name} {case} {tensors[0].dtype} {what}".strip()
            if self.compare is not None:
                try:
                    self.compare(got, self.expected(*tensors, *case.args, **case.kwargs))
                except AssertionError as wrong:
                    raise AssertionError(f"{told}: {wrong}") from wrong
            else:
                self.judge(got, (*tensors, *case.args), dict(case.kwargs), told)

        return right

    def judge(self, got: torch.Tensor, args: Arguments, kwargs: Mapping[str, Any], what: str) -> float:
        """Decides whether a result is correct, for the battery, GPU validation and the benchmarks.

        With a ``floor`` and a floating-point result this is the rule of ``tolerances``; otherwise the result must equal
        the reference's, by ``compare`` or bit for bit.

        Args:
            got: the result.
            args: the call's positional arguments.
            kwargs: the call's keyword arguments.
            what: the call's name in the message.

        Returns:
            The largest share of its allowance that an element uses; 0.0 where results are compared exactly.

        Raises:
            AssertionError: the result is wrong.
        """
        peer = self.expected(*args, **kwargs)
        if self.floor is None or not peer.is_floating_point():
            try:
                (self.compare or assert_same_bits)(got, peer)
            except AssertionError as wrong:
                raise AssertionError(f"{what}: {wrong}") from wrong
            return 0.0
        exact = self.expected(*map(_wide, args), **kwargs).double()
        return assert_near_float64(got, exact, peer, floor=self.floor(*args, **kwargs), what=what)


def _wide(argument: Any) -> Any:
    return argument.double() if isinstance(argument, torch.Tensor) else argument
