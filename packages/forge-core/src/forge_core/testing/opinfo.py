"""PyTorch's own samples of its operators (OpInfo): results, gradients and errors as PyTorch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch

#: rtol and atol of gradients, by dtype: PyTorch's own of a weight are off by 2e-5 where they are 0.
GRADIENTS = {torch.float32: (1e-5, 1e-4), torch.float64: (1e-7, 1e-9)}


def entries(names: Iterable[str], variants: Collection[str] = ("",)) -> dict[tuple[str, str], Any]:
    """PyTorch's entries of these names and variants, by both; most functions have one entry, whose variant is "".

    Raises:
        LookupError: there is none of a name.
    """
    with warnings.catch_warnings():
        # PyTorch's testing module imports whatever else is installed, with the warnings of those packages.
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    wanted = set(names)
    named = [info for info in op_db if info.name in wanted and info.variant_test_name in variants]
    found = {(info.name, info.variant_test_name): info for info in named}
    if missing := wanted.difference(name for name, _ in found):
        raise LookupError(f"OpInfo has no entry of {', '.join(sorted(missing))}")
    return found


def check_forward(op: Callable[..., Any], info: Any, device: str, dtype: torch.dtype) -> None:
    """Compares results with PyTorch's, of every sample."""
    for sample in _samples(info, device, dtype, grad=False):
        want = info.op(sample.input, *sample.args, **sample.kwargs)
        torch.testing.assert_close(op(sample.input, *sample.args, **sample.kwargs), want, equal_nan=True)


def check_gradient(
    op: Callable[..., Any],
    info: Any,
    device: str,
    dtype: torch.dtype,
    tolerances: Mapping[torch.dtype, tuple[float, float]] = GRADIENTS,
) -> None:
    """Compares the gradients of all tensors with PyTorch's, of every sample; by default as near as those of weights."""
    rtol, atol = tolerances.get(dtype, (None, None))
    for sample in _samples(info, device, dtype, grad=True):
        found = []
        for function in (op, info.op):
            args = [_leaf(value) for value in (sample.input, *sample.args)]
            kwargs = {key: _leaf(value) for key, value in sample.kwargs.items()}
            y = function(*args, **kwargs)
            leaves = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
            grad = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=device).reshape(y.shape)
            found.append(torch.autograd.grad(y, leaves, grad))
        torch.testing.assert_close(*found, rtol=rtol, atol=atol, equal_nan=True)


def check_errors(op: Callable[..., Any], info: Any) -> None:
    """Compares the types of errors with PyTorch's, of every sample; ``error_inputs_func`` says if there are any."""
    for wrong in info.error_inputs("cpu"):
        try:
            op(wrong.sample_input.input, *wrong.sample_input.args, **wrong.sample_input.kwargs)
        except wrong.error_type:
            continue
        raise AssertionError(f"{info.name}: expected a {wrong.error_type.__name__}, got a result")


def _samples(info: Any, device: str, dtype: torch.dtype, *, grad: bool) -> list[Any]:
    found = list(info.sample_inputs(device, dtype, requires_grad=grad))
    if not found:
        raise AssertionError(f"{info.name}: OpInfo has no samples of {dtype} on {device}")
    return found


def _leaf(value: Any) -> Any:
    return value.detach().clone().requires_grad_() if isinstance(value, torch.Tensor) else value
