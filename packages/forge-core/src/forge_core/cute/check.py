"""Assertions on the GPU: what a kernel takes for granted of its launch.

The host chooses a configuration so that pitches are aligned and tiles lie inside the tensor; a kernel relies on it
without looking.  With ``FORGE_DEBUG=1`` it looks: kernels are compiled with ``--enable-assertions``, a thread for which
a condition does not hold prints the message with file and line, and the launch fails.  Without it nothing is left of
a check, neither instructions nor registers: the PTX is the same byte by byte (which the weeks' tests compare).
"""

from __future__ import annotations

from typing import Any

from cutlass.cute.testing import assert_
from cutlass.cutlass_dsl import dsl_user_op

__all__ = ["check"]


@dsl_user_op  # fills in the place of the call, which the message of a failed check begins with
def check(condition: Any, message: str, *, loc: Any = None, ip: Any = None) -> None:
    """Fails the launch where a condition does not hold, in a kernel compiled with device assertions.

    May be called anywhere in a kernel, inside branches too.

    Args:
        condition: a condition on GPU values, or a Python bool where it follows from the configuration alone.
        message: what should be so, as a sentence without its full stop.
        loc: where in the source; filled in by the DSL.
        ip: where in the code that is being built; likewise.
    """
    assert_(condition, message, loc=loc, ip=ip)
