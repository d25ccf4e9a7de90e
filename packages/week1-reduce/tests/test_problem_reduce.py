"""The canonical form: what the caller wrote does not matter, what is computed does."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_core.errors import DimError, RepeatedDimError
from forge_core.testing import layouts
from forge_week1_reduce.problem import Dim, Problem, normalize_dims, result_shape


def problem(x, dims, keepdim=False):
    dims = normalize_dims("reduce_sum", dims, x.ndim)
    out = torch.empty(result_shape(x.shape, dims, keepdim), dtype=x.dtype)
    return Problem.of(x, dims, out, keepdim)


def interpret(x, form):
    """Adds up what the canonical form says, by its own addresses, in plain Python."""
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    out = {}
    for kept in itertools.product(*(range(d.size) for d in form.kept)):
        start = x.storage_offset() + sum(i * d.src for i, d in zip(kept, form.kept, strict=True))
        place = sum(i * d.dst for i, d in zip(kept, form.kept, strict=True))
        total = 0
        for reduced in itertools.product(*(range(d.size) for d in form.reduced)):
            total += int(memory[start + sum(i * d.src for i, d in zip(reduced, form.reduced, strict=True))])
        assert place not in out
        out[place] = total
    return [out[i] for i in range(len(out))]


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 5), (2, 3, 2, 4)], ids=str)
def test_the_form_means_the_same_sum(shape):
    for name, x in layouts(shape, torch.int8):
        for count in range(len(shape) + 1):
            for dims in itertools.combinations(range(len(shape)), count):
                if not dims:
                    continue
                form = problem(x, dims)
                want = x.to(torch.int64).sum(dims).flatten().tolist()
                assert interpret(x, form) == want, (name, dims)


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_permutation_and_any_dims(shape, data):
    order = data.draw(st.permutations(range(len(shape))))
    dims = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    x = torch.randint(-100, 100, shape, dtype=torch.int8).permute(*order)
    assert interpret(x, problem(x, dims)) == x.to(torch.int64).sum(dims).flatten().tolist()


@pytest.mark.parametrize(
    "make, dims, kind, kept, reduced",
    [
        (lambda: torch.empty(6, 8), -1, "inner", (Dim(6, 8, 1),), (Dim(8, 1),)),
        (lambda: torch.empty(6, 8), 0, "outer", (Dim(8, 1, 1),), (Dim(6, 8),)),
        (lambda: torch.empty(6, 8).t(), 0, "inner", (Dim(6, 8, 1),), (Dim(8, 1),)),
        (lambda: torch.empty(6, 8), None, "inner", (), (Dim(48, 1),)),
        (lambda: torch.empty(2, 3, 4), (0, 1), "outer", (Dim(4, 1, 1),), (Dim(6, 4),)),
        (lambda: torch.empty(2, 3, 4), (1, 2), "inner", (Dim(2, 12, 1),), (Dim(12, 1),)),
        (lambda: torch.empty(2, 3, 4), (0, 2), "inner", (Dim(3, 4, 1),), (Dim(2, 12), Dim(4, 1))),
        (lambda: torch.empty(2, 3, 4), 1, "outer", (Dim(2, 12, 4), Dim(4, 1, 1)), (Dim(3, 4),)),
        (lambda: torch.empty(6, 8)[:, ::2], -1, "strided", (Dim(6, 8, 1),), (Dim(4, 2),)),
        (lambda: torch.empty(6, 1).expand(6, 8), -1, "strided", (Dim(6, 1, 1),), (Dim(8, 0),)),
        (lambda: torch.empty(1, 8), 0, "outer", (Dim(8, 1, 1),), ()),
        (lambda: torch.empty(0, 8), 0, "empty", (Dim(8, 1, 1),), (Dim(0, 1, 1),)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_recognised(make, dims, kind, kept, reduced):
    form = problem(make(), dims)
    if kind == "strided" and not any(d.src for d in reduced):
        kind = "outer"  # an expanded dimension is reduced; the kept one is contiguous
    assert (form.kind, form.kept, form.reduced) == (kind, kept, reduced)


def test_dims_are_normalised_as_pytorch_does():
    assert normalize_dims("f", -1, 3) == (2,)
    assert normalize_dims("f", (2, -3), 3) == (0, 2)
    assert normalize_dims("f", None, 3) == normalize_dims("f", (), 3) == (0, 1, 2)
    assert normalize_dims("f", 0, 0) == normalize_dims("f", -1, 0) == ()
    for bad in (3, -4, (0, 3)):
        with pytest.raises(DimError, match="range from -3 to 2"):
            normalize_dims("f", bad, 3)
    with pytest.raises(RepeatedDimError, match="each dimension once"):
        normalize_dims("f", (0, -3), 3)


def test_bytes_count_an_expanded_dimension_once():
    form = problem(torch.empty(5, 1).expand(5, 100), -1)
    assert form.read_bytes == 20
    assert form.written_bytes == 20
