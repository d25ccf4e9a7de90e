"""The course's registry: what serves ``softmax_online``, chosen by name for the whole process.

It is the operator's own choice of ``forge_core.op.backend``: a ``backend`` block and ``FORGE_BACKEND`` win over it,
and CPU tensors are served by the reference whichever is chosen.  ``softmax_online`` and ``softmax`` are one operator,
so the choice holds for both, and for their gradient.
"""

from __future__ import annotations

from forge_core import checks
from forge_core.settings import BACKENDS
from forge_week2_softmax.backward import softmax_backward
from forge_week2_softmax.ops import softmax_online

__all__ = ["get_softmax_online_backend", "list_softmax_online_backends", "set_softmax_online_backend"]


def list_softmax_online_backends() -> tuple[str, ...]:
    """The names that :func:`set_softmax_online_backend` takes; the first is where it starts."""
    return BACKENDS


def get_softmax_online_backend() -> str:
    """The name in force."""
    return softmax_online.default_backend


def set_softmax_online_backend(name: str) -> None:
    """Chooses what serves ``softmax_online`` on CUDA tensors, forward and backward, in all threads.

    Args:
        name: ``"kernel"``: Forge's kernels; ``"ref"``: the PyTorch reference.

    Raises:
        ArgumentError: another name; nothing is changed.
    """
    checks.one_of("set_softmax_online_backend", "name", name, BACKENDS)
    for op in (softmax_online, softmax_backward):
        op.set_default_backend(name)
