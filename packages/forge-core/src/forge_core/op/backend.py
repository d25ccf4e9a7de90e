"""Backend selection: the kernel or the PyTorch reference.

Evaluated at each call, in order of precedence:

1. the innermost :func:`backend` block
2. ``FORGE_BACKEND``
3. ``Operator.set_default_backend``, initially the kernel, for CUDA tensors; the reference for CPU tensors

A backend requested by 1 or 2 that cannot serve the call is an error.  Autograd runs a backward pass on threads of its
own, which a block does not reach: gradients of CUDA tensors follow 2 and 3.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from forge_core import settings
from forge_core.errors import ArgumentError, DeviceError


def backend(name: str) -> AbstractContextManager[Any]:
    """Context manager that selects the backend of all operators in the current context (thread or task).

    Args:
        name: ``"kernel"`` or ``"ref"``.

    Raises:
        SettingsError: unknown backend.
    """
    return settings.use_settings(backend=name)


def resolve(op: str, device: torch.device, variant: str, chosen: str | None = None) -> str:
    """Returns the backend of a call: ``"kernel"`` or ``"ref"``.

    Args:
        op: the operator's name, for error messages.
        device: the device of the call's tensors.
        variant: the requested variant, or ``"auto"``.
        chosen: the operator's default backend for CUDA tensors.

    Raises:
        DeviceError: the kernel backend or a variant was requested for tensors that are not on a CUDA device.
        ArgumentError: a variant was requested together with the reference.
    """
    asked = settings.requested_backend()
    on_gpu = device.type == "cuda"
    if asked is None and on_gpu:
        asked = chosen
    if not on_gpu and (asked == "kernel" or variant != "auto"):
        argument, what = ("variant", f"variant {variant!r}") if variant != "auto" else ("backend", "backend 'kernel'")
        expected = f"CUDA tensors, since {what} was asked for and kernels run on GPUs"
        hint = "Move them to a GPU, or leave the backend and the variant to 'auto'."
        raise DeviceError(op, argument, expected, f"tensors on {device}", hint)
    if asked == "ref" and variant != "auto":
        expected = "'auto', since the backend asked for is 'ref', which has no variants"
        raise ArgumentError(op, "variant", expected, repr(variant), "Leave out the variant, or use backend 'kernel'.")
    return asked or ("kernel" if on_gpu else "ref")
