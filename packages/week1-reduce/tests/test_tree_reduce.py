"""The trees of the kernels, modelled in NumPy: what is added to what, in which order, in fp32.

On the CPU the models show that every element is counted once, that the error is a tree's, and that the policy of
tolerances refuses a tree with a fault.  On a GPU the kernels give the models' very bits.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import forge_week1_reduce as week1
from forge_core.device import SPECS
from forge_core.errors import UnsupportedError
from forge_core.testing import assert_near_float64, tree_bound

H200 = SPECS["H200"]
VECTOR = 4  # fp32 in 16 bytes
WARP = 32


def butterfly(values, lanes, stride=1):
    """Lanes that exchange with the one whose number differs in one bit, the highest first; axis 0 is the lane."""
    index = np.arange(len(values))
    step = lanes * stride // 2
    while step >= stride:
        values = values + values[index ^ step]
        step //= 2
    return values


def collapse(lanes):
    """A thread's accumulators (the last axis) become one."""
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]


def block(threads, *, drop_warp=False):
    """The accumulators of a block's threads become one."""
    warps = len(threads) // WARP
    slots = np.concatenate([butterfly(threads[w * WARP : (w + 1) * WARP], WARP)[:1] for w in range(warps)])
    if drop_warp:
        slots[-1] = 0
    return butterfly(slots, warps)[0]


def strided_add(acc, pieces, threads):
    """Piece p goes to thread p % threads, in order."""
    for start in range(0, len(pieces), threads):
        some = pieces[start : start + threads]
        acc[: len(some)] += some


def naive(x, config):
    total = np.float32(0)
    for start in range(0, len(x), 128):
        part = np.float32(0)
        for value in x[start : start + 128]:
            part += value
        total += part
    return total


def elementwise(x, config):
    acc = np.zeros((config.threads, 4), np.float32)
    step = config.threads
    for i, start in enumerate(range(0, len(x), step)):
        some = x[start : start + step]
        acc[: len(some), i % 4] += some
    return collapse(acc)


def shared(x, config):
    values = elementwise(x, config)
    while len(values) > 1:
        half = len(values) // 2
        values = values[:half] + values[half:]
    return values[0]


def shuffle(x, config):
    return block(elementwise(x, config))


def part_of_row(x, config, part, parts, misaligned, *, drop_tail=False, drop_warp=False):
    acc = np.zeros((config.threads, VECTOR), np.float32)
    head = min(-misaligned % VECTOR, len(x)) if config.peel else 0
    chunks = (len(x) - head) // VECTOR
    tail = len(x) - head - chunks * VECTOR
    if part == 0 and config.peel:
        acc[:head, 0] += x[:head]
        if tail and not drop_tail:
            acc[16 : 16 + tail, 0] += x[len(x) - tail :]
    span = -(-chunks // (8 * parts)) * 8
    body = x[head : head + chunks * VECTOR].reshape(-1, VECTOR)[part * span : (part + 1) * span]
    strided_add(acc, body, config.threads)
    return block(collapse(acc), drop_warp=drop_warp)


def vectorized(x, config, misaligned=0, **faults):
    return part_of_row(x, config, 0, 1, misaligned, **faults)


def short(x, config):
    vector = config.width // 4
    acc = np.zeros((config.lanes, vector), np.float32)
    strided_add(acc, x.reshape(-1, vector), config.lanes)
    return butterfly(collapse(acc), config.lanes)[0]


def cluster(x, config, misaligned=0):
    parts = [part_of_row(x, config.row, rank, config.blocks, misaligned) for rank in range(config.blocks)]
    return butterfly(np.array(parts, np.float32), config.blocks)[0]


MODELS = {
    "naive": naive,
    "shared": shared,
    "shuffle": shuffle,
    "vectorized": vectorized,
    "short": short,
    "cluster": cluster,
}
COUNTS = {
    "naive": (1, 5, 128, 129, 1000, 4097),
    "shared": (1, 5, 255, 1000, 4097),
    "shuffle": (1, 5, 255, 1000, 4097),
    "vectorized": (4, 8, 128, 1000, 4096, 20000, 5, 127, 4097, 50257),
    "short": (2, 3, 4, 8, 64, 100, 256, 1000, 1024),
    "cluster": (2**16, 2**18, 2**17 + 1),
}
CASES = [(variant, count) for variant, counts in COUNTS.items() for count in counts]


def config_of(variant, count, rows=3):
    x = torch.empty(rows, count, device="meta")
    return week1.reduce_sum.explain(x, variant=variant, arch="sm_90a").config


@pytest.mark.parametrize("variant, count", CASES)
def test_every_element_is_counted_once(variant, count):
    config = config_of(variant, count)
    # Up to 2^24, whole numbers add up exactly in fp32; with a number of its own for each place, no other set of
    # elements of this size has this sum and this sum of squares.
    x = np.ones(count, np.float32)
    assert MODELS[variant](x, config) == count
    marks = (np.arange(count) % 61).astype(np.float32)
    assert MODELS[variant](marks, config) == marks.astype(np.int64).sum()


@pytest.mark.parametrize("misaligned", [0, 1, 2, 3])
def test_rows_that_begin_anywhere(misaligned):
    for count in (2, 3, 5, 127, 4099):
        config = config_of("vectorized", count)
        if config.peel:
            assert vectorized(np.ones(count, np.float32), config, misaligned) == count


def policy(got, x, what):
    row = torch.from_numpy(x)
    floor = tree_bound(row.double().abs().sum(), len(x), torch.float32)
    value = torch.tensor(got, dtype=torch.float32)
    assert_near_float64(value, row.double().sum(), row.sum(), floor=floor, what=what)


@pytest.mark.parametrize("kind", ["normal", "positive", "constant", "cancelling"])
@pytest.mark.parametrize("variant, count", CASES)
def test_the_error_is_a_tree_s(variant, count, kind):
    rng = np.random.default_rng(count)
    x = rng.standard_normal(count).astype(np.float32)
    if kind == "positive":
        x = np.abs(x) + np.float32(0.1)
    if kind == "constant":
        x = np.full(count, 0.1, np.float32)
    if kind == "cancelling":
        x[count // 2 :] = -x[: count - count // 2][::-1]
    policy(MODELS[variant](x, config_of(variant, count)), x, f"{variant} {count} {kind}")


@pytest.mark.parametrize("fault", ["drop_tail", "drop_warp"])
def test_a_tree_with_a_fault_is_refused(fault):
    count = 50257
    x = np.random.default_rng(0).standard_normal(count).astype(np.float32) + np.float32(1)
    config = config_of("vectorized", count)
    assert config.peel
    policy(vectorized(x, config), x, "right")
    with pytest.raises(AssertionError, match="allowed"):
        policy(vectorized(x, config, **{fault: True}), x, fault)


@pytest.mark.gpu
@pytest.mark.parametrize("variant, count", CASES)
def test_the_kernels_give_the_models_bits(variant, count):
    rows = 3
    x = torch.randn(rows, count, generator=torch.Generator().manual_seed(count))
    on_gpu = x.cuda()
    if variant == "cluster" and torch.cuda.get_device_capability() < (9, 0):
        with pytest.raises(UnsupportedError, match="sm_90"):
            week1.reduce_sum(on_gpu, variant=variant)
        return
    config = week1.reduce_sum.explain(on_gpu, variant=variant).config
    got = week1.reduce_sum(on_gpu, variant=variant).cpu()
    for row in range(rows):
        extra = {"misaligned": row * count % VECTOR} if variant in ("vectorized", "cluster") else {}
        want = MODELS[variant](x[row].numpy(), config, **extra)
        assert got[row].item() == float(want), f"{variant} {count}, row {row}"
