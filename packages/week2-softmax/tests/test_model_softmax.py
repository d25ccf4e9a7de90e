"""The (max, sum) pair and the index maps of the kernels, modelled in NumPy.

The models show on any machine that each element of a row belongs to one thread, that the pair's merge is what its page
proves, and that the tolerances refuse a merge with a fault.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from forge_core.device import SPECS
from forge_core.testing import assert_near_float64
from forge_core.testing.softmax_bounds import softmax_bound
from forge_week2_softmax.config import plan_backward, plan_forward
from forge_week2_softmax.configs import HeldConfig
from forge_week2_softmax.layouts import held_accesses

F32 = np.float32
H200 = SPECS["H200"]


def exponential(x):
    return np.exp2((x * F32(np.log2(np.e))).astype(F32)).astype(F32)


def combine(a, b):
    """Two pairs, as the monoid merges them."""
    first = a[0] >= b[0]
    (high, high_sum), (low, low_sum) = (a, b) if first else (b, a)
    factor = F32(1) if low == high else exponential(low - high)
    return np.maximum(high, low), F32(high_sum + low_sum * factor)


def pair_of(values):
    """A thread's pair of its elements."""
    top = values.max(initial=F32(-np.inf))
    base = F32(0) if top == -np.inf else top
    return top, F32(exponential(values - base).sum(dtype=F32))


def together(pairs, *, rescale=True, lost=None, top=True):
    """Many pairs at once: the common maximum first, one exponential each, a plain sum."""
    highest = max(p[0] for p in pairs) if top else F32(0)
    base = F32(0) if highest == -np.inf else highest
    terms = [s * (exponential(np.asarray(m - base, F32)) if rescale else F32(1)) for m, s in pairs]
    if lost is not None:
        terms[lost] = F32(0)
    return highest, F32(np.sum(terms, dtype=F32))


def config_of(length, dtype=torch.float32, rows=4096, *, backward=False, variant="auto"):
    x = torch.empty(rows, length, dtype=dtype, device="meta")
    if backward:
        return plan_backward("softmax", x, x, (x,), (1,), H200, variant).config
    return plan_forward("softmax", x, x, (1,), None, H200, variant).config


def owners(config, length, shift):
    """How often each element of a row is read, by the index map of ``held``; ``shift``: where it begins in a chunk."""
    vector, lanes = config.vector, config.lanes
    seen = np.zeros(length, int)
    head = min(-shift % vector, length) if config.edges else 0
    tail = head + (length - head) // vector * vector
    for rank in range(config.blocks):
        for lane in range(lanes):
            for u in range(config.chunks):
                place = (rank * lanes + lane + u * lanes * config.blocks) * vector - shift
                if config.edges and not (place >= 0 and place + vector <= length):
                    continue
                seen[max(place, 0) : min(place + vector, length)] += 1
            for turn in range(max(1, 2 * vector // lanes) if config.edges and rank == 0 else 0):
                number = lane + turn * lanes
                place = number if number < vector else tail + number - vector
                if number < 2 * vector and place < (head if number < vector else length):
                    seen[place] += 1
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [2, 3, 7, 8, 15, 17, 64, 100, 257, 1000, 4097, 8192, 20001, 50257, 65544])
def test_every_element_is_held_once(length, dtype):
    for backward in (False, True):
        for variant in ("auto", "cluster", "single_pass"):
            if variant == "single_pass" and length > 16384:
                continue
            config = config_of(length, dtype, backward=backward, variant=variant)
            if isinstance(config, HeldConfig):
                for shift in range(config.vector) if config.edges else (0,):
                    assert (owners(config, length, shift) == 1).all(), (config, shift)


@pytest.mark.parametrize("length", [131072, 151936, 262144, 262145])
def test_long_rows_are_shared_evenly(length):
    config = config_of(length)
    assert config.blocks == 16
    assert (owners(config, length, 0) == 1).all()
    each = [
        sum(p is not None for a in held_accesses(config, length, rank=rank) for p in a.places) for rank in range(16)
    ]
    assert max(each) - min(each) <= config.lanes  # blocks take turns along the row


ROWS = {
    "random": lambda rng, n: rng.standard_normal(n),
    "sorted": lambda rng, n: np.sort(rng.standard_normal(n) * 20),
    "huge": lambda rng, n: np.where(rng.random(n) < 0.5, 1e30, -1e30),
    "large": lambda rng, n: rng.standard_normal(n) * 1e4,
    "tiny": lambda rng, n: rng.standard_normal(n) * 1e-30,
    "constant": lambda rng, n: np.full(n, 1e30),
    "one_hot": lambda rng, n: np.where(np.arange(n) == n // 3, 100.0, 0.0),
    "with_-inf": lambda rng, n: np.where(rng.random(n) < 0.9, -np.inf, rng.standard_normal(n)),
}


def softmax(x, threads=64, **faults):
    pairs = [pair_of(x[t::threads]) for t in range(threads)]
    top, total = together(pairs, **faults)
    return exponential(x - top) * (F32(1) / total)


def policy(got, x):
    row = torch.from_numpy(x)
    floor = softmax_bound(row.double(), 0, torch.float32)
    assert_near_float64(torch.from_numpy(got), row.double().softmax(0), row.softmax(0), floor=floor, what="softmax")


@pytest.mark.parametrize("kind", ROWS)
def test_the_merge_gives_a_softmax(kind):
    x = ROWS[kind](np.random.default_rng(0), 5000).astype(F32)
    with np.errstate(over="ignore"):
        got = softmax(x)
    policy(got, x)
    assert abs(float(got.sum(dtype=np.float64)) - 1) < 3e-6


@pytest.mark.parametrize("fault, scale", [({"rescale": False}, 8), ({"lost": 17}, 8), ({"top": False}, 40)], ids=str)
def test_a_merge_with_a_fault_is_refused(fault, scale):
    x = (np.random.default_rng(0).standard_normal(5000) * scale + 30).astype(F32)
    policy(softmax(x), x)
    with pytest.raises(AssertionError, match="allowed"), np.errstate(over="ignore", invalid="ignore"):
        policy(softmax(x, **fault), x)


def test_the_merge_is_commutative_bit_by_bit_and_has_an_identity():
    rng = np.random.default_rng(1)
    nothing = (F32(-np.inf), F32(0))
    assert combine(nothing, nothing) == nothing
    for _ in range(2000):
        a, b = ((F32(rng.standard_normal() * 10), F32(rng.random() * 100 + 1)) for _ in range(2))
        assert combine(a, b) == combine(b, a)
        assert combine(a, nothing) == a == combine(nothing, a)
        assert combine(a, (a[0], b[1])) == combine((a[0], b[1]), a)


def test_the_exponential_is_within_its_bound():
    x = -np.abs(np.random.default_rng(2).standard_normal(200_000) * 30).astype(F32)
    exact = np.exp(x.astype(np.float64))
    # NumPy's exp2 rounds correctly to half an ulp; the GPU's instruction may add 2^-22.
    error = np.abs(exponential(x).astype(np.float64) - exact)
    assert (error <= (1 + 3 * np.abs(x)) * 2.0**-24 * exact + 2.0**-126).all()
