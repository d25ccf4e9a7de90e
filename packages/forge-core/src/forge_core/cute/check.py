"""Device assertions, compiled only with ``FORGE_DEBUG=1``.

Kernels rely on what the host guarantees of a launch: aligned pitches, tiles inside the tensor.  Under ``FORGE_DEBUG=1``
they are compiled with ``--enable-assertions`` and check it; a thread that fails prints the message with file and line,
and the launch fails.  Otherwise a check leaves the PTX unchanged, which the weeks' tests verify.
"""

from __future__ import annotations

from typing import Any

from cutlass.cute.testing import assert_
from cutlass.cutlass_dsl import dsl_user_op


@dsl_user_op  # fills in `loc`, the position that the message begins with
def check(condition: Any, message: str, *, loc: Any = None, ip: Any = None) -> None:
    """Asserts a condition in a kernel compiled with device assertions; allowed anywhere, inside branches too.

    Args:
        condition: a dynamic condition, or a Python bool that depends on the configuration only.
        message: the expected condition, as a sentence without a full stop.
        loc: source location, filled in by the DSL.
        ip: insertion point, filled in by the DSL.
    """
    assert_(condition, message, loc=loc, ip=ip)
