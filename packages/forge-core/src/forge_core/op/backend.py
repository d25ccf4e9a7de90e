"""Which backend serves a call: the kernel, or the PyTorch reference.

Resolved at each call: the innermost :func:`backend` block, else ``FORGE_BACKEND``, else the operator's own choice
(``Operator.set_default_backend``) for CUDA tensors, kernels where there is none, and the reference for CPU tensors.  A
backend that was asked for by a block or by ``FORGE_BACKEND`` and cannot serve the call is an error.

A backward pass runs on a thread of autograd's own, which a block does not reach: gradients of CUDA tensors follow
``FORGE_BACKEND`` and the operator's own choice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from forge_core import settings
from forge_core.errors import ArgumentError, DeviceError

__all__ = ["backend", "resolve"]


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Serves every call of the block by one backend, in the current context (thread or task) only.

    Args:
        name: ``"kernel"`` or ``"ref"``.

    Raises:
        SettingsError: another name.
    """
    with settings.use_settings(backend=name):
        yield


def resolve(op: str, device: torch.device, variant: str, chosen: str | None = None) -> str:
    """The backend that serves a call: ``"kernel"`` or ``"ref"``.

    Args:
        op: the operator's name, for messages.
        device: where the call's tensors are.
        variant: the variant that the call names.
        chosen: the operator's own choice for CUDA tensors.

    Raises:
        DeviceError: kernels, or one variant of them, were asked for and the tensors are not on a CUDA device.
        ArgumentError: a variant was named while the reference was asked for.
    """
    asked = settings.requested_backend()
    on_gpu = device.type == "cuda"
    if asked is None and on_gpu:
        asked = chosen
    if not on_gpu and (asked == "kernel" or variant != "auto"):
        what = f"variant {variant!r}" if variant != "auto" else "backend 'kernel'"
        raise DeviceError(
            op=op,
            argument="variant" if variant != "auto" else "backend",
            expected=f"CUDA tensors, since {what} was asked for and kernels run on GPUs",
            got=f"tensors on {device}",
            hint="Move them to a GPU, or leave the backend and the variant to 'auto'.",
        )
    if asked == "ref" and variant != "auto":
        raise ArgumentError(
            op=op,
            argument="variant",
            expected="'auto', since the backend asked for is 'ref', which has no variants",
            got=repr(variant),
            hint="Leave out the variant, or use backend 'kernel'.",
        )
    return asked or ("kernel" if on_gpu else "ref")
