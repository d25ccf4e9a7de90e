"""Declarations of row operators under test, whose calls follow from the operands of their programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from forge_core.rows import RowProgram
from forge_core.testing.subject import Case, Subject

#: Calls that select each kernel: lanes, a block, a cluster; few long rows; streamed, split and column rows.
LAUNCHES = (
    Case((300, 64), (-1,)),
    Case((70, 1000), (-1,)),
    Case((70, 4097), (-1,)),
    Case((300, 30001), (-1,)),
    Case((70, 60000), (-1,)),
    Case((3, 50257), (-1,)),
    Case((1, 400000), (-1,)),
    Case((7, 5001), (-1,), {"variant": "stream"}),
    Case((3, 70001), (-1,), {"variant": "split"}),
    Case((4096, 20), (0,)),
    Case((3, 700, 64), (1,)),
    Case((30, 5, 64), ((0, 2),)),
)
_CASES = (Case((4, 6), (-1,)), Case((4, 6), (0,)), Case((3, 5, 7), (1,)), Case((2, 301), (-1,)))
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

# Terms that a thread adds serially; rounding steps of the exchange, the constants and the map.
_A_THREAD, _ROUNDINGS = 256, 40


def row_subject(
    operator: Any,
    program: RowProgram,
    *,
    reference: Callable[..., torch.Tensor],
    terms: Callable[..., torch.Tensor],
    dtypes: Sequence[torch.dtype] = _FLOATS,
    **more: Any,
) -> Subject:
    """The declaration of a row operator: small calls along any dim, and calls that select each kernel.

    Args:
        operator: takes the program's tensors in the order of its schema, and ``dim``.
        program: the arithmetic.
        reference: the expected result, of the operator's arguments.
        terms: takes the magnitudes of the same arguments in float64 and returns, for each element of the result, the
            sum of the magnitudes of its terms: the error bound is relative to it.
        dtypes: of the tensors.
        **more: fields of the :class:`Subject`.
    """
    operands = program.operands
    launches = [case for case in LAUNCHES if isinstance(case.args[0], int)]  # a row along one dim

    def make(case: Case, dtype: torch.dtype, device: torch.device, seed: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator(device=device).manual_seed(seed)
        scalar = list(case.shape)
        column = (scalar.pop(case.args[0]),)
        shapes = dict.fromkeys(operands.rows, case.shape)
        shapes |= dict.fromkeys(operands.columns, column) | dict.fromkeys(operands.scalars, tuple(scalar))
        wide = (
            torch.randn(shapes[name], device=device, generator=generator, dtype=torch.float64)
            for name in operator.schema.tensors
        )
        return tuple(t.to(dtype) for t in wide)

    def expected(*args: Any, variant: str = "auto") -> torch.Tensor:
        return reference(*args)

    def floor(*args: Any, variant: str = "auto") -> torch.Tensor:
        x = next(a for a, name in zip(args, operator.schema.tensors, strict=False) if name in operands.rows)
        length: int = x.shape[args[len(operator.schema.tensors)]]
        exact = 2.0**-53 if x.dtype is torch.float64 else 2.0**-24
        magnitudes = terms(*(a.double().abs() if isinstance(a, torch.Tensor) else a for a in args))
        return magnitudes * (exact * (length / _A_THREAD + _ROUNDINGS))

    def samples(device: torch.device) -> Iterator[tuple[Any, ...]]:
        """Calls of which each kernel supports at least one; GPU validation names the kernel."""
        for dtype in dtypes:
            for seed, case in enumerate(case for case in launches if not case.kwargs):
                yield (*make(case, dtype, device, seed), *case.args)

    return Subject(
        operator,
        samples,
        floor,
        cases=_CASES,
        launches=launches,
        dtypes=dtypes,
        make=make,
        reference=expected,
        shapes=[(4, n) for n in (6, 9, 40, 300)],
        **more,
    )
