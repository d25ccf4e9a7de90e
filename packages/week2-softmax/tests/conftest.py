"""Which variants can do a call: stated here apart from the code that chooses, and held against it both ways."""

from __future__ import annotations

import pytest
import torch

from forge_core.errors import UnsupportedError

#: Bytes of a row, in the widest dtype of the call, that a block, a cluster of blocks and a part of the GPU are sure to
#: hold, for a call that reads one tensor; a half where it reads two.  Longer ones they may.
SURE = {"single_pass": 2**16, "cluster": 2**18, "grid": 2**19}


def able(variant, x, dim, *, tensors=1, op="softmax"):
    """True, False, or None where it depends on what this does not state.

    Args:
        variant: the variant's name.
        x: a tensor of two dimensions, the widest of the call; all of the call's tensors lie as it does.
        dim: 0 or -1.
        tensors: how many tensors with an element for each element of a row are read.
        op: the operator's name.
    """
    length, step = x.shape[dim], x.stride(dim)
    rows = length > 1 and step == 1
    if variant in ("naive", "online"):
        return True
    if variant == "column":
        return not rows
    if not rows:
        return False
    if op == "logsumexp_backward" and variant in ("split", "grid", "cluster"):
        return False  # the blocks of a row have nothing to exchange
    if variant == "split":
        return x.numel() // length < 2**16
    aligned = x.data_ptr() % 16 == 0 and (x.stride(0) * x.element_size()) % 16 == 0
    if variant == "grid" and not (aligned and length * x.element_size() % 16 == 0 and x.numel() // length <= 8):
        return None
    sure = SURE[variant] // tensors // (1 if aligned else 16 // x.element_size())
    nbytes = length * x.element_size()
    return True if nbytes <= sure else None


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


@pytest.fixture
def seeded():
    """Makes generators: the same numbers in every process, on the device."""
    return lambda device, seed: torch.Generator(device=device).manual_seed(seed)
