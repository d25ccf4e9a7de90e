"""Properties of any operator towards memory and special values: layouts, empty tensors, ``out``, NaN, infinities.

The arguments are those of ``conformance``; ``expected`` is the reference as a function of a call's tensors, and
``right`` takes the name of a layout first where there are several: ``right(name)(result, tensors)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from forge_core.errors import CacheError, CompileError
from forge_core.testing.conformance import Call, Make, Right, Tensors, same_bits
from forge_core.testing.inputs import layouts, relaid
from forge_core.testing.tolerances import assert_same_bits

#: The exceptions with which PyTorch's operators reject a call.
REFUSALS = (RuntimeError, IndexError, ValueError)

#: RuntimeErrors that do not reject a call: a kernel does not compile, load or run, or memory is exhausted.
FAILURES = (CompileError, CacheError, torch.AcceleratorError, torch.OutOfMemoryError)


def rearranged(tensors: Tensors, *, offsets: bool) -> Iterator[tuple[str, Tensors]]:
    """The tensors of a call in other layouts, by name: all of them alike, and each alone among contiguous ones.

    With ``offsets`` the contiguous layouts whose first element is unaligned, otherwise the others.
    """
    kinds = [dict(relaid(t, seed=i)) for i, t in enumerate(tensors)]
    wanted = [name for kind in kinds for name in kind if name.startswith("offset") == offsets]
    for name in dict.fromkeys(wanted):
        if name == "contiguous" and len(tensors) > 1:
            continue
        yield name, tuple(kind.get(name, t) for kind, t in zip(kinds, tensors, strict=True))
        if len(tensors) > 1:
            for index, kind in enumerate(kinds):
                if name in kind:
                    yield f"{name} of tensor {index}", (*tensors[:index], kind[name], *tensors[index + 1 :])


def check_relaid(call: Call, tensors: Tensors, right: Callable[[str], Right], *, offsets: bool) -> None:
    """Tensors of other strides and offsets give the right result; see :func:`rearranged`."""
    for name, arranged in rearranged(tensors, offsets=offsets):
        right(name)(call(*arranged), arranged)


def check_fake_strides(call: Call, tensors: Tensors) -> None:
    """The fake result has the real one's shape, strides, dtype and device, in every layout of the inputs.

    So it has on ``meta``, and for a GPU that the machine need not have.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    def elsewhere(t: torch.Tensor, device: str) -> torch.Tensor:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)

    for name, arranged in (("as made", tensors), *rearranged(tensors, offsets=False)):
        real = call(*arranged)
        meta = call(*(elsewhere(t, "meta") for t in arranged))
        with FakeTensorMode() as mode:
            fake, cuda = call(*map(mode.from_tensor, arranged)), call(*(elsewhere(t, "cuda") for t in arranged))
        for told, device in ((fake, str(real.device)), (cuda, "cuda"), (meta, "meta")):
            same = told.shape == real.shape and told.dtype is real.dtype and str(told.device).startswith(device)
            # The stride of a dimension of size 1 is never used, and that of an empty tensor neither.
            steps = [[n for n, size in zip(t.stride(), t.shape, strict=True) if size > 1] for t in (told, real)]
            if not same or (real.numel() and steps[0] != steps[1]):
                shown = [(t.shape, t.stride(), t.dtype, t.device) for t in (told, real)]
                raise AssertionError(f"fake result, inputs {name}, on {device}: {shown[0]}, the real one is {shown[1]}")


def check_inputs_untouched(call: Call, tensors: Tensors) -> None:
    """A call writes none of its inputs, and its result shares no memory with them."""
    before = [t.clone() for t in tensors]
    result = call(*tensors)
    for index, (now, then) in enumerate(zip(tensors, before, strict=True)):
        if not bool(same_bits(now, then)):
            raise AssertionError(f"the call wrote into its tensor {index}")
        if result.numel() and result.untyped_storage().data_ptr() == now.untyped_storage().data_ptr():
            raise AssertionError(f"the result is in the memory of tensor {index}")


def check_empty(call: Call, expected: Call, tensors: Tensors, what: str) -> None:
    """On tensors without elements the operator returns, or raises, what the reference does."""
    try:
        want = expected(*tensors)
    except FAILURES:
        raise
    except REFUSALS as error:
        try:
            call(*tensors)
        except FAILURES as failure:
            kind = type(failure).__name__
            raise AssertionError(
                f"{what}: the reference refuses this, and the operator fails: {kind}: {failure}"
            ) from failure
        except REFUSALS:
            return
        raise AssertionError(f"{what}: the reference refuses this ({error}), and the operator does not") from None
    try:
        got = call(*tensors)
    except Exception as error:
        raise AssertionError(f"{what}: the operator refuses it: {type(error).__name__}: {error}") from error
    for aspect in ("shape", "dtype", "device"):
        if getattr(got, aspect) != getattr(want, aspect):
            raise AssertionError(f"{what}: {aspect}: expected {getattr(want, aspect)}, got {getattr(got, aspect)}")
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{what}: {text}")


def with_specials(tensors: Tensors) -> Iterator[tuple[str, Tensors]]:
    """The tensors of a call with NaN and infinities, by position: both in the first tensor, NaN in each other."""
    inf, nan = float("inf"), float("nan")
    for index, x in enumerate(tensors):
        if not x.numel() or not (x.dtype.is_floating_point or x.dtype.is_complex):
            continue
        kinds: list[tuple[str, list[tuple[Any, float]]]] = []
        first, last = (0,) * x.ndim, tuple(size - 1 for size in x.shape)
        middle = tuple(size // 2 for size in x.shape)
        kinds += [(f"nan at {place}", [(place, nan)]) for place in (first, middle, last)]
        if index == 0:
            kinds += [("inf", [(middle, inf)]), ("-inf", [(middle, -inf)])]
            for dim, size in enumerate(x.shape):
                line = tuple(slice(None) if d == dim else size // 2 for d, size in enumerate(x.shape))
                kinds += [(f"{value} along {dim}", [(line, value)]) for value in (inf, -inf)]
                if size > 1:
                    other = tuple(size - 1 if d == dim else 0 for d in range(x.ndim))
                    kinds.append((f"inf and -inf along {dim}", [(first, inf), (other, -inf)]))
        for name, places in kinds:
            changed = x.clone()
            for place, value in places:
                changed[place] = value
            yield f"{name} of tensor {index}", (*tensors[:index], changed, *tensors[index + 1 :])


def check_nan_and_inf(call: Call, expected: Call, tensors: Tensors, right: Callable[[str], Right]) -> None:
    """NaN and infinities are where the reference has them, of its sign, and all else is right."""
    for name, special in with_specials(tensors):
        got, want = call(*special), expected(*special)
        if got.dtype.is_floating_point:
            for kind in (torch.isnan, torch.isposinf, torch.isneginf):
                if not torch.equal(kind(got), kind(want)):
                    told = f"expected at {_where(kind(want))}, got at {_where(kind(got))}"
                    raise AssertionError(f"{name}: {kind.__name__}: {told}")
        right(name)(got, special)


def _where(mask: torch.Tensor) -> str:
    places = mask.nonzero().tolist()
    return f"{len(places)} places, {places[:3]}" if places else "no place"


def check_out(into: Call, call: Call, tensors: Tensors, right: Callable[[str], Right], *, returns: bool) -> None:
    """The out form writes the right result into an ``out`` of any layout, and nothing else of its storage."""
    like = call(*tensors)
    for name, out in layouts(like.shape, like.dtype, like.device, seed=2):
        if any(step == 0 and size > 1 for step, size in zip(out.stride(), out.shape, strict=True)):
            continue  # elements overlap, so it cannot be written
        storage = out.as_strided((out.untyped_storage().nbytes() // out.element_size(),), (1,), 0)
        before, version = storage.clone(), out._version
        result = into(*tensors, out=out)
        if returns and result is not out:
            raise AssertionError(f"out {name}: the call returned something else than out")
        right(f"out {name}")(out.contiguous(), tensors)
        if out.numel() and out._version == version:
            raise AssertionError(f"out {name}: autograd was not told that out was written")
        # With the old elements of out written back, the whole storage has to be unchanged.
        out.copy_(before.as_strided(out.shape, out.stride(), out.storage_offset()))
        assert_same_bits(storage, before, what=f"the rest of the storage of out {name}")


def check_out_compiles(into: Call, call: Call, make: Make, right: Right) -> None:
    """The out form compiles as one graph, which writes ``out``."""
    torch._dynamo.reset()

    def run(out: torch.Tensor, *tensors: torch.Tensor) -> None:
        into(*tensors, out=out)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for seed in (0, 1):
        tensors = make(seed)
        out = torch.zeros_like(call(*tensors))
        compiled(out, *tensors)
        right(out, tensors)
