"""Properties of any differentiable operator: gradients of both orders, and what ``torch.vmap`` makes of calls.

The arguments are those of ``conformance``; ``expected`` is the reference as a function of a call's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from forge_core.testing.conformance import Arguments, Call, Right, Tensors, near


def weights(like: torch.Tensor) -> torch.Tensor:
    """Numbers from -1 to 1, all different, for each element of a result."""
    return torch.linspace(-1, 1, like.numel(), dtype=like.dtype, device=like.device).reshape(like.shape)


def pulled(call: Call) -> Call:
    """The gradient of a call's first tensor, for :func:`weights` of the result, as a function of its tensors."""

    def gradient(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        leaf = first.detach().requires_grad_()
        y = call(leaf, *others)
        return torch.autograd.grad(y, leaf, weights(y))[0]

    return gradient


def mapped(call: Call) -> Call:
    """The gradient of a call's first tensor as a function that ``torch.vmap`` can map."""

    def loss(*tensors: torch.Tensor) -> torch.Tensor:
        y = call(*tensors)
        return (y * weights(y)).sum()

    return torch.func.grad(loss)


def _first_order(call: Call, leaves: Tensors, weight: torch.Tensor) -> Tensors:
    y = call(*leaves)
    return torch.autograd.grad(y, leaves, weight, create_graph=True, allow_unused=True, materialize_grads=True)


def _second_order(call: Call, leaves: Tensors, weight: torch.Tensor) -> Tensors:
    first = _first_order(call, leaves, weight)
    loss = torch.stack([(each * (2 + weights(each))).sum() for each in first]).sum()
    return torch.autograd.grad(loss, (*leaves, weight), allow_unused=True, materialize_grads=True)


def _check_order(order: Callable[..., Tensors], call: Call, expected: Call, tensors: Tensors) -> None:
    def derivatives(call: Call, tensors: Tensors) -> Tensors:
        leaves = tuple(t.detach().requires_grad_() for t in tensors)
        return order(call, leaves, weights(call(*tensors)).requires_grad_())

    exact = derivatives(expected, tuple(t.double() for t in tensors))
    for i, (got, want) in enumerate(zip(derivatives(call, tensors), exact, strict=True)):
        near(f"the derivative of{order.__name__.replace('_', ' ')} by tensor {i}", got, want)


def check_gradients(call: Call, expected: Call, tensors: Tensors) -> None:
    """Gradients are those of the reference; nothing is recorded where grad mode is off."""
    _check_order(_first_order, call, expected, tensors)
    parameters = tuple(torch.nn.Parameter(t.detach()) for t in tensors)
    if not call(*parameters).requires_grad:
        raise AssertionError("the result of parameters needs no gradient")
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            if call(*parameters).requires_grad:
                raise AssertionError(f"under {mode.__name__} the result needs a gradient")


def check_second_derivatives(call: Call, expected: Call, tensors: Tensors) -> None:
    """Derivatives of the gradients are those of the reference."""
    _check_order(_second_order, call, expected, tensors)


def check_compiled_gradients(call: Call, expected: Call, tensors: Tensors, *, backend: str) -> None:
    """A compiled model has the reference's gradients through the operator, and through what is around it."""
    torch._dynamo.reset()

    def model(function: Call) -> Call:
        return lambda *given: torch.tanh(function(*(t / 2 for t in given)))

    compiled = torch.compile(model(call), fullgraph=True, backend=backend)
    exact = pulled(model(expected))(*(t.double() for t in tensors))
    near("the compiled gradient", pulled(compiled)(*tensors), exact)


def check_vmap(call: Call, overload: Call, sets: Sequence[Arguments], right: Right) -> None:
    """``torch.vmap`` over any dim of all tensors, over each tensor alone, and nested.

    ``sets`` are the tensors of several calls of one shape.
    """
    alone, stacked = sets[0], [torch.stack(each) for each in zip(*sets, strict=True)]

    def compare(got: torch.Tensor, calls: Sequence[Arguments]) -> None:
        for one, tensors in zip(got.unbind(), calls, strict=True):
            right(one.contiguous(), tensors)

    for dim in (-1, *range(min(t.ndim for t in stacked))):
        compare(torch.vmap(call, dim)(*(t.movedim(0, dim) for t in stacked)), sets)
    compare(torch.vmap(overload)(*stacked), sets)
    for i in range(len(alone)) if len(alone) > 1 else ():
        in_dims = tuple(0 if j == i else None for j in range(len(alone)))
        mixed = [(*alone[:i], tensors[i], *alone[i + 1 :]) for tensors in sets]
        compare(torch.vmap(call, in_dims)(*(*alone[:i], stacked[i], *alone[i + 1 :])), mixed)
    nested = torch.vmap(torch.vmap(call))(*(torch.stack([t, t.flip(0)]) for t in stacked))
    compare(nested[0], sets)
    compare(nested[1], sets[::-1])


def check_no_examples(call: Call, tensors: Tensors) -> None:
    """``torch.vmap`` over no examples of these shapes."""
    want, got = (0, *call(*tensors).shape), torch.vmap(call)(*(t.new_empty((0, *t.shape)) for t in tensors)).shape
    if got != want:
        raise AssertionError(f"expected a result of no examples of shape {want}, got {tuple(got)}")
