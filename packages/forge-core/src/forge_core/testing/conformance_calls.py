"""Properties of any ``forge_core.op.Operator``: what it refuses, and how; its backends, variants and ``explain``.

Each function takes the operator, a call of it with its tensors, and ``right`` as in ``conformance``.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from forge_core.device import ARCHES, spec_for
from forge_core.errors import (
    ArgumentError,
    DeviceError,
    DimError,
    DTypeError,
    GradientError,
    LayoutError,
    ShapeError,
    UnsupportedError,
)
from forge_core.op import Operator, backend
from forge_core.settings import use_settings
from forge_core.testing.conformance import Right, Tensors, same_bits
from forge_core.testing.subject import Case


@contextlib.contextmanager
def refused(what: str, kind: type[Exception], *words: str) -> Iterator[None]:
    """The block raises an error of a kind, whose message has these words; one of an argument says what it expected."""
    try:
        yield
    except kind as error:
        wanted = (*words, "expected", "got") if isinstance(error, ArgumentError) else words
        missing = [word for word in wanted if word not in str(error)]
        if missing:
            raise AssertionError(f"{what}: the message lacks {missing}: {error}") from error
        return
    except Exception as error:
        raise AssertionError(f"{what}: expected a {kind.__name__}, got {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what}: expected a {kind.__name__}, and it is served")


def _no_tensors(device: torch.device) -> Iterator[tuple[str, Any, type[ArgumentError]]]:
    """What no operator takes for a tensor argument."""
    parts = [torch.zeros(2, 3), torch.zeros(4, 3)]
    yield "a list", [[1.0]], ArgumentError
    yield "bits", torch.zeros(3, 4, dtype=torch.uint8, device=device).view(torch.bits8), DTypeError
    yield "sparse", torch.eye(4, device=device).to_sparse(), LayoutError
    with warnings.catch_warnings():
        # torch calls these a beta feature and a prototype, and announces the end of quantised tensors.
        warnings.simplefilter("ignore", UserWarning)
        yield "sparse CSR", torch.eye(4, device=device).to_sparse_csr(), LayoutError
        yield "nested", torch.nested.nested_tensor(parts, device=device), LayoutError
        yield "quantised", torch.quantize_per_tensor(torch.zeros(3, 4, device=device), 0.1, 0, torch.qint8), LayoutError


def check_refusals(operator: Operator, case: Case, tensors: Tensors, right: Right) -> None:
    """What is no plain tensor, no variant, no dim, or on another device, is refused by an error that names it."""
    schema, args = operator.schema, case.args
    elsewhere = "cpu" if tensors[0].is_cuda else "meta"
    for i, argument in enumerate(schema.tensors[: len(tensors)]):
        others = [(*each, f"'{argument}'") for each in _no_tensors(tensors[0].device)]
        if len(tensors) > 1:
            others.append((f"one on {elsewhere}", tensors[i].to(elsewhere), DeviceError, "'"))
        for what, value, kind, told in others:
            with refused(what, kind, schema.name, told):
                operator(*tensors[:i], value, *tensors[i + 1 :], *args, **case.kwargs)
    if "variant" in schema.parameters:
        for value in ("no such", 3, None):
            with refused(f"variant {value!r}", ArgumentError, schema.name, "'variant'"):
                operator(*tensors, *args, **{**case.kwargs, "variant": value})
    if "dim" in schema.parameters:
        place, rank = schema.parameters.index("dim") - len(tensors), max(t.ndim for t in tensors)
        if len(tensors) == 1:  # True and 1.0 are refused although the equal integer was served
            operator(*tensors, *args[:place], 1 % rank, *args[place + 1 :], **case.kwargs)
        for value in (rank, -rank - 1, True, 1.0, "rows"):
            with refused(f"dim {value!r}", DimError if type(value) is int else ArgumentError, schema.name, "'dim'"):
                operator(*tensors, *args[:place], value, *args[place + 1 :], **case.kwargs)


def check_bad_out(operator: Operator, case: Case, tensors: Tensors, right: Right) -> None:
    """An ``out`` that the result does not fit, or that overlaps a tensor, is refused, and nothing is written."""
    first, *others = tensors
    like = operator(*tensors, *case.args, **case.kwargs)
    storage = torch.zeros(first.numel() + like.numel(), dtype=first.dtype, device=first.device)
    x = storage[: first.numel()].view(first.shape).copy_(first)

    def into(out: Any, x: torch.Tensor = x) -> torch.Tensor:
        return operator.out(x, *others, *case.args, out=out, **case.kwargs)

    outs: list[tuple[str, Any, type[ArgumentError]]] = [
        ("None", None, ArgumentError),
        ("another shape", like.new_zeros(3, *like.shape), ShapeError),
        ("another dtype", torch.zeros_like(like, dtype=torch.int16), DTypeError),
        ("on meta", torch.zeros_like(like, device="meta"), DeviceError),
        ("sparse", torch.zeros_like(like).to_sparse(), LayoutError),
    ]
    if like.numel() > 1:
        outs.append(("expanded", like.new_zeros(()).expand(like.shape), LayoutError))
    if like.dtype is x.dtype:
        outs.append(("overlapping", storage[x.numel() - 1 : -1].view(like.shape), LayoutError))
    for what, out, kind in outs:
        watched = [t for t in (out, storage) if t is not None and not t.is_meta and not t.is_sparse]
        before = [t.clone() for t in watched]
        with refused(f"out {what}", kind, f"{operator.schema.name}_out", "'out'"):
            into(out)
        if not all(map(same_bits, watched, before)):
            raise AssertionError(f"out {what}: something was written before it was refused")
    if like.dtype is x.dtype:
        right(into(storage[x.numel() :].view(like.shape)), tensors)
    if x.is_floating_point():
        leaf, out = x.clone().requires_grad_(), torch.zeros_like(like)
        with refused("an out form with a gradient", GradientError, f"{operator.schema.name}_out", "need no gradient"):
            into(out, leaf)
        if bool(out.any()):
            raise AssertionError("out of an out form with a gradient was written before it was refused")
        with torch.no_grad():
            right(into(out, leaf), tensors)


def check_backends(operator: Operator, case: Case, tensors: Tensors, right: Right) -> None:
    """CPU tensors are served by the reference alone; CUDA tensors by kernels, of the same bits under FORGE_DEBUG."""

    def call(**more: Any) -> torch.Tensor:
        result: torch.Tensor = operator(*tensors, *case.args, **case.kwargs, **more)
        return result

    if not tensors[0].is_cuda:
        with backend("kernel"), refused("backend 'kernel'", DeviceError, "backend 'kernel' was asked for"):
            call()
        for name in _variants(operator):
            with refused(f"variant {name!r}", DeviceError, f"variant {name!r} was asked for"):
                call(variant=name)
        return
    if operator.explain(*tensors, *case.args, **case.kwargs).backend != "kernel":
        raise AssertionError("explain does not say that CUDA tensors are served by kernels")
    with backend("ref"):
        right(call(), tensors)
        for name in _variants(operator):
            with refused(f"variant {name!r}", ArgumentError, "'ref'"):
                call(variant=name)
    for more in ({}, *({"variant": name} for name in _variants(operator))):
        with contextlib.suppress(UnsupportedError):
            plain = call(**more)
            with use_settings(debug=True):
                if not bool(same_bits(call(**more), plain)):
                    raise AssertionError(f"under FORGE_DEBUG=1 a call with {more} gives other bits")


def check_explain(operator: Operator, case: Case, tensors: Tensors, right: Right) -> None:
    """``explain`` tells what runs; of a variant that cannot do the call, it raises what names those that can."""

    def explain(**more: Any) -> Any:
        return operator.explain(*tensors, *case.args, **case.kwargs, **more)

    with use_settings(arch="sm_100a"):
        if (told := explain()).backend != "kernel" or not (tensors[0].is_cuda or told.arch == "sm_100a"):
            raise AssertionError(f"explain under FORGE_ARCH=sm_100a says {told}")
    for arch, name in itertools.product(ARCHES, ("auto", *_variants(operator))):
        try:
            told = explain(arch=arch, **({} if name == "auto" else {"variant": name}))
        except UnsupportedError as error:
            if f"{name!r} was asked for" not in str(error) or "can do this call" not in str(error):
                raise AssertionError(f"explain of variant {name!r}: {error}") from error
        else:
            found = (told.backend, told.arch, told.variant if name == "auto" else name)
            if found != ("kernel", spec_for(arch).arch, told.variant) or not (told.why and told.key and told.written):
                raise AssertionError(f"explain of {name!r} for {arch} says {told}")


def _variants(operator: Operator) -> Iterable[str]:
    return operator.variants() if "variant" in operator.schema.parameters else ()
