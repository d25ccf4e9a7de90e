"""The battery's checks: the functions of the modules ``conformance*`` on a subject's declared calls."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from operator import mul
from typing import Any

import torch

from forge_core.op import Operator
from forge_core.testing import conformance, conformance_gradients, conformance_memory
from forge_core.testing.conformance import Make, Right, Tensors
from forge_core.testing.subject import Arguments, Case, Subject

# Sizes that share no factor with a tile; the dimensions before the last two come from the second list.
_PAIRS = ((3, 5), (4, 7), (9, 11), (64, 2), (5, 128), (2, 3), (1000, 17))
_BATCHES = (2, 3, 4, 5, 6, 7, 8)


def out_form(subject: Subject) -> Callable[..., Any] | None:
    """The subject's out form, if it has one."""
    return subject.out or getattr(subject.operator, "out", None)


def _large(subject: Subject, device: torch.device) -> list[Case]:
    """The calls of real sizes on a GPU, the small ones elsewhere."""
    return list((subject.launches if device.type == "cuda" else ()) or subject.cases)


def _laid_out(subject: Subject) -> list[tuple[torch.dtype, Case]]:
    return list(itertools.product(dtypes_of(subject, "strides"), subject.laid_out or subject.cases))


def dtypes_of(subject: Subject, check: str) -> list[torch.dtype]:
    """The dtypes that a check is made for."""
    if check in ("strides", "misaligned_offset", "out_form"):
        return list(subject.laid_out_dtypes or subject.dtypes[:1])
    if check == "nan_and_inf":
        return [dtype for dtype in subject.dtypes if dtype.is_floating_point or dtype.is_complex]
    if check == "float64_error":
        return [dtype for dtype in subject.dtypes if dtype.is_floating_point]
    if check == "drawn":  # two, floating-point ones first
        return sorted(subject.dtypes, key=lambda dtype: not dtype.is_floating_point)[:2]
    if check == "gradients":  # the widest alone
        floats = sorted(dtypes_of(subject, "float64_error"), key=lambda dtype: dtype.itemsize)
        return floats[-1:] if subject.differentiable else []
    return list(subject.dtypes)


def _backend(device: torch.device) -> str:
    return "inductor" if device.type == "cuda" else "aot_eager"


def _made(subject: Subject, device: torch.device, case: Case, seed: int = 0) -> tuple[torch.Tensor, ...]:
    return subject.fresh(case, device)(seed)


def values(subject: Subject, device: torch.device) -> None:
    """The small calls in each dtype and the large ones in the first give what the reference gives."""
    large = [(subject.dtypes[0], case) for case in _large(subject, device)]
    for dtype, case in [*itertools.product(subject.dtypes, subject.cases), *large]:
        for seed in (0, 1):
            tensors = subject.make(case, dtype, device, seed)
            subject.right(case)(subject.call(case)(*tensors), tensors)


def float64_error(subject: Subject, device: torch.device) -> None:
    """The samples of the floating dtypes are correct by the rule of ``tolerances``, or equal to the reference."""
    for dtype in dtypes_of(subject, "float64_error"):
        calls: list[tuple[Arguments, Mapping[str, Any]]]
        if subject.samples is None:
            cases = subject.cases
            calls = [((*subject.make(case, dtype, device, 2), *case.args), case.kwargs) for case in cases]
        else:
            calls = [(args, {}) for args in subject.samples(device) if args[0].dtype == dtype]
        if not calls:
            raise AssertionError(f"{subject.name}: no samples of {dtype}")
        for args, kwargs in calls:
            shown = [tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args]
            subject.judge(subject.operator(*args, **kwargs), args, kwargs, f"{subject.name} {shown} {dtype}")


def _layouts(subject: Subject, device: torch.device, *, offsets: bool) -> None:
    for dtype, case in _laid_out(subject):
        tensors = subject.make(case, dtype, device, 3)
        conformance_memory.check_relaid(subject.call(case), tensors, partial(subject.right, case), offsets=offsets)


def misaligned_offset(subject: Subject, device: torch.device) -> None:
    """Tensors may begin at any element of their storage."""
    _layouts(subject, device, offsets=True)


def strides(subject: Subject, device: torch.device) -> None:
    """Tensors may have any strides: permuted, expanded, with gaps."""
    _layouts(subject, device, offsets=False)


def empties(subject: Subject, device: torch.device) -> None:
    """Where sizes are 0, the operator returns or refuses what the reference does."""
    for dtype, case in itertools.product(subject.dtypes, subject.cases):
        for kept in itertools.product((1, 0), repeat=min(len(case.shape), 3)):
            shape = (*case.shape[: len(case.shape) - len(kept)], *map(mul, case.shape[-3:], kept))
            if all(kept):
                continue
            empty = replace(case, shape=shape)
            tensors = subject.make(empty, dtype, device, 0)
            conformance_memory.check_empty(
                subject.call(empty), _expected(subject, empty), tensors, f"{subject.name} {empty} {dtype}"
            )


def nan_and_inf(subject: Subject, device: torch.device) -> None:
    """NaN and infinities come out where the reference has them."""
    for dtype, case in itertools.product(dtypes_of(subject, "nan_and_inf"), subject.special or subject.cases):
        conformance_memory.check_nan_and_inf(
            subject.call(case),
            _expected(subject, case),
            subject.make(case, dtype, device, 0),
            partial(subject.right, case),
        )


def _expected(subject: Subject, case: Case) -> Callable[..., torch.Tensor]:
    return lambda *tensors: subject.expected(*tensors, *case.args, **case.kwargs)


def fake_strides(subject: Subject, device: torch.device) -> None:
    """The fake result has the real one's metadata."""
    others = [(dtype, subject.cases[0]) for dtype in subject.dtypes[1:]]
    for dtype, case in [*((subject.dtypes[0], case) for case in subject.cases), *others]:
        conformance_memory.check_fake_strides(subject.call(case), subject.make(case, dtype, device, 0))


def inputs_untouched(subject: Subject, device: torch.device) -> None:
    """Inputs keep their bits, and the result is in memory of its own."""
    for case in _large(subject, device):
        conformance_memory.check_inputs_untouched(subject.call(case), _made(subject, device, case))


def _into(subject: Subject, case: Case) -> Callable[..., Any]:
    form, args, kwargs = out_form(subject), case.args, dict(case.kwargs)
    if form is None:
        raise AssertionError(f"{subject.name}: no out form")

    def into(*tensors: torch.Tensor, out: torch.Tensor) -> Any:
        return form(*tensors, *args, out=out, **kwargs)

    return into


def out(subject: Subject, device: torch.device) -> None:
    """The out form writes the right result, in any layout, and nothing else."""
    returns = hasattr(subject.operator, "out") and subject.out is None
    for dtype, case in _laid_out(subject):
        conformance_memory.check_out(
            _into(subject, case),
            subject.call(case),
            subject.make(case, dtype, device, 1),
            partial(subject.right, case),
            returns=returns,
        )


def out_compiles(subject: Subject, device: torch.device) -> None:
    """The out form compiles, and passes opcheck where it is registered."""
    for case in subject.cases:
        into, call = _into(subject, case), subject.call(case)
        conformance_memory.check_out_compiles(into, call, subject.fresh(case, device), subject.right(case))
        overload = subject.registered(out=True)
        if overload is not None:
            tensors = _made(subject, device, case)
            result = torch.empty_like(call(*tensors))
            conformance.check_opcheck(overload, (*tensors, *case.args), {**case.kwargs, "out": result})


def opcheck(subject: Subject, device: torch.device) -> None:
    """``torch.library.opcheck`` on contiguous, permuted, cut and offset tensors, with gradients and without."""
    overload = subject.registered()
    for case in subject.cases:
        # opcheck compares results by value, and NaN is unlike NaN; a check of its own puts NaN into inputs.
        tensors = tuple(_finite(t) for t in _made(subject, device, case))
        args, kwargs = case.args, dict(case.kwargs)
        conformance.check_opcheck(overload, (*tensors, *args), kwargs)
        chosen = dict(conformance_memory.rearranged(tensors, offsets=False))
        chosen |= dict(conformance_memory.rearranged(tensors, offsets=True))
        permuted = "reversed" if "reversed" in chosen else "transposed"
        stepped = "every_second_row" if "every_second_row" in chosen else "every_second"
        for some in (tensors, *(chosen[name] for name in (permuted, stepped, "offset_1") if name in chosen)):
            leaves = some
            if subject.differentiable and all(t.dtype.is_floating_point or t.dtype.is_complex for t in some):
                # With gradients every part of opcheck is made; detached, a tensor keeps its strides.
                leaves = tuple(t.detach().requires_grad_() for t in some)
            conformance.check_opcheck(overload, (*leaves, *args), kwargs)
    kinds = {(dtype.is_floating_point, dtype.is_complex, dtype is torch.bool): dtype for dtype in subject.dtypes[1:]}
    for dtype in kinds.values():
        case = subject.cases[0]
        tensors = tuple(_finite(t) for t in subject.make(case, dtype, device, 0))
        conformance.check_opcheck(overload, (*tensors, *case.args), dict(case.kwargs))


def _finite(x: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(x, 1.0, 1.0, 1.0) if x.dtype.is_floating_point or x.dtype.is_complex else x


def fullgraph(subject: Subject, device: torch.device) -> None:
    """``torch.compile(fullgraph=True)``, of the shapes as they are."""
    for case in subject.cases:
        conformance.check_fullgraph(*_call(subject, device, case), backend=_backend(device), dynamic=False)
    if dtypes_of(subject, "gradients"):
        given = _smooth(subject, device, subject.cases[0])
        conformance_gradients.check_compiled_gradients(*given, backend=_backend(device))


def dynamic_shapes(subject: Subject, device: torch.device) -> None:
    """``torch.compile`` with symbolic shapes: right, and not anew for another shape."""
    case = subject.cases[0]
    conformance.check_fullgraph(*_call(subject, device, case), backend=_backend(device), dynamic=True)
    rank = len(case.shape)
    derived = [(*(n + i for i in range(rank - 2)), *pair)[-rank:] for n, pair in zip(_BATCHES, _PAIRS, strict=True)]
    shapes = subject.shapes or (derived if rank else ())
    calls = [_made(subject, device, replace(case, shape=tuple(shape)), seed) for seed, shape in enumerate(shapes)]
    conformance.check_dynamic_shapes(subject.call(case), calls, subject.right(case, "of symbolic shape"))


def export(subject: Subject, device: torch.device) -> None:
    """``torch.export`` keeps the operator as one node."""
    case = subject.cases[0]
    call, make, right = _call(subject, device, case)
    conformance.check_export(call, subject.registered(), make, right)


def value(subject: Subject, device: torch.device) -> None:
    """It is pickled by its name and copied as itself."""
    conformance.check_value(subject.operator)


def traced(subject: Subject, device: torch.device) -> None:
    """``torch.fx``, ``make_fx`` and ``__torch_function__`` see the operator."""
    case = subject.cases[0]
    tensors = _made(subject, device, case)
    call, overload = subject.call(case), subject.registered()
    conformance.check_traced(subject.operator, overload, call, tensors, subject.right(case, "traced"))


def _finite_made(subject: Subject, device: torch.device, case: Case, seed: int = 0) -> Tensors:
    """Tensors of a case for derivatives."""
    [dtype] = dtypes_of(subject, "gradients")
    return tuple(map(_finite, subject.make(case, dtype, device, seed)))


def _smooth(subject: Subject, device: torch.device, case: Case) -> tuple[Any, Any, Tensors]:
    """A call, its reference and its tensors, for derivatives."""
    return subject.call(case), _expected(subject, case), _finite_made(subject, device, case)


def forward_mode(subject: Subject, device: torch.device) -> None:
    """Tangents, by dual tensors and ``torch.func.jvp``, alone and nested, eager and compiled."""
    overload = replace(subject, operator=subject.registered())
    for case in (case for case in subject.cases if math.prod(case.shape)):
        call, expected, tensors = _smooth(subject, device, case)
        directions = _finite_made(subject, device, case, 1)
        conformance.check_forward_mode(call, overload.call(case), expected, tensors, directions)


def gradients(subject: Subject, device: torch.device) -> None:
    """Gradients: of the public call, by the dispatcher, and those that ``torch.vmap`` maps."""
    for case in _derived(subject, device, conformance_gradients.check_gradients):
        if isinstance(subject.operator, Operator):
            sets = [_finite_made(subject, device, case, seed) for seed in range(3)]
            mapped, right = conformance_gradients.mapped, _right_gradient(subject, case, conformance_gradients.mapped)
            conformance_gradients.check_vmap(mapped(subject.call(case)), mapped(subject.call(case)), sets, right)


def second_derivatives(subject: Subject, device: torch.device) -> None:
    """Derivatives of the gradients, of the public call and by the dispatcher."""
    for _ in _derived(subject, device, conformance_gradients.check_second_derivatives):
        pass


def _derived(subject: Subject, device: torch.device, check: Callable[..., None]) -> Iterator[Case]:
    """Makes a check of derivatives of each case, in each way to call it; yields the cases.

    By the dispatcher they are the operator's own; of CPU tensors the public call may record the reference's.
    """
    overload = replace(subject, operator=subject.registered())
    for case in (case for case in subject.cases if math.prod(case.shape)):
        call, *others = _smooth(subject, device, case)
        check(call, *others)
        if device.type == "cpu":
            with conformance.Dispatched():
                check(call, *others)
        if isinstance(subject.operator, Operator):
            check(overload.call(case), *others)
        yield case


def vmap(subject: Subject, device: torch.device) -> None:
    """``torch.vmap`` over any dim of any tensor, nested, and over no examples."""
    overload = replace(subject, operator=subject.registered())
    for case in subject.cases:
        sets = [_made(subject, device, case, seed) for seed in range(3)]
        right = subject.right(case, "by vmap")
        conformance_gradients.check_vmap(subject.call(case), overload.call(case), sets, right)
        conformance_gradients.check_no_examples(subject.call(case), sets[0])


def _right_gradient(subject: Subject, case: Case, gradient: Callable[..., Any]) -> Right:
    def right(got: torch.Tensor, tensors: tuple[Any, ...]) -> None:
        want = gradient(_expected(subject, case))(*(t.double() for t in tensors))
        conformance.near(f"{subject.name} {case}: the gradient", got, want)

    return right


def of_operator(check: Callable[..., None]) -> Callable[[Subject, torch.device], None]:
    """A check of ``conformance_calls``, made of the first case; on a GPU of the first one of a real size."""

    def run(subject: Subject, device: torch.device) -> None:
        case = _large(subject, device)[0]
        check(subject.operator, case, _made(subject, device, case), subject.right(case))

    return run


def _calls(
    subject: Subject, device: torch.device, cases: Iterable[Case]
) -> Iterator[tuple[Callable[..., torch.Tensor], Make, Right]]:
    """The calls of some cases, and that of a gradient where there is one."""
    yield from (_call(subject, device, case) for case in cases)
    if dtypes_of(subject, "gradients"):
        case, gradient = subject.cases[0], conformance_gradients.pulled
        make = partial(_finite_made, subject, device, case)
        yield gradient(subject.call(case)), make, _right_gradient(subject, case, gradient)


def of_calls(check: Callable[..., None]) -> Callable[[Subject, torch.device], None]:
    """A check of ``conformance``, made of the calls of real sizes, and of a gradient where there is one."""

    def run(subject: Subject, device: torch.device) -> None:
        for each in _calls(subject, device, _large(subject, device)):
            check(*each)

    return run


def threads(subject: Subject, device: torch.device) -> None:
    """Calls from several threads at once, and gradients."""
    large = _large(subject, device)
    # Eight threads hold their tensors, and what tells whether they are right, at the same time.
    chosen = [case for case in large if math.prod(case.shape) <= 2**23] or large[:1]
    for each in _calls(subject, device, chosen):
        conformance.check_concurrent_threads(*each)


def _call(subject: Subject, device: torch.device, case: Case) -> tuple[Callable[..., torch.Tensor], Make, Right]:
    return subject.call(case), subject.fresh(case, device), subject.right(case)


def determinism(subject: Subject, device: torch.device) -> None:
    """The same call gives the same bits."""
    for case in _large(subject, device):
        make = subject.inexact or subject.make
        conformance.check_determinism(subject.call(case), make(case, subject.dtypes[0], device, 0))
