"""Which variants can do a call: stated here apart from the code that chooses, and held against it both ways."""

from __future__ import annotations

import pytest
import torch

from forge_core.errors import UnsupportedError

LADDER = ("naive", "online", "single_pass")
#: The dtypes of the ladder's kernels, which convert none.
LADDER_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

#: Bytes of the rows of all tensors read that are sure to fit, by compute capability: with clusters and without.
HELD = {True: 2**18, False: 2**16}
GRID = 2**19
#: Elements of a row of any stride that a warp is sure to hold.
STRIDED = 256
#: Elements of a row from which it is sure to have vectors, if it is not whole vectors.
SHIFTED = 24
#: Bytes of a row that a block of single_pass holds at most.
LONGEST = 160 * 1024


def able(variant, x, dim, *, tensors=1, op="softmax"):
    """True, False, or None where it depends on what this does not state.

    Args:
        variant: the variant's name.
        x: a tensor of two dimensions, the widest of the call; all of the call's tensors lie as it does.
        dim: 0 or -1.
        tensors: how many tensors with an element for each element of a row are read.
        op: the operator's name.
    """
    length, contiguous = x.shape[dim], (x.shape[dim] > 1 and x.stride(dim) == 1) or x.numel() == 1
    nbytes, clusters = tensors * length * x.element_size(), torch.cuda.get_device_capability(x.device) >= (9, 0)
    if variant == "stream":
        return True
    if variant == "column":
        return not contiguous
    if variant == "split":
        return op != "logsumexp_backward"  # the parts of a row have nothing to exchange
    if variant == "held" and not contiguous:  # a thread or a warp holds a row
        return None if length == 1 else True if length <= STRIDED else None if length <= 2 * STRIDED else False
    if variant == "held":
        return True if nbytes <= HELD[clusters] else None
    if variant == "grid":
        if not contiguous or not clusters or op == "logsumexp_backward":
            return False
        vectors = length * x.element_size() >= 32 and (length >= SHIFTED or length * x.element_size() % 16 == 0)
        sure = x.numel() // length <= 8 and vectors and nbytes <= GRID
        return True if sure else None
    assert variant in LADDER
    if x.dtype not in LADDER_DTYPES:
        return False
    if variant != "single_pass":
        return True
    if not contiguous or length * x.element_size() % 16 or x.data_ptr() % 16:
        return False
    return nbytes <= LONGEST


@pytest.fixture
def attempt():
    """Runs a call by a variant: its result, or None where the variant cannot do it and says so."""

    def run(call, expected):
        if expected is True:
            return call()
        if expected is False:
            with pytest.raises(UnsupportedError, match="was asked for"):
                call()
            return None
        try:
            return call()
        except UnsupportedError:
            return None

    run.able = able
    return run
