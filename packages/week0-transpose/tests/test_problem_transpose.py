"""The canonical form: what is dropped, merged and widened, and which class a problem falls into."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forge_core.strided import Dim
from forge_week0_transpose.problem import Problem


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def kind(problem: Problem) -> str:
    return "rows" if problem.rows() else "matrix" if problem.matrix() else "gather"


def transposed(x: torch.Tensor) -> Problem:
    return Problem.of(x, x.new_empty((*x.shape[:-2], x.shape[-1], x.shape[-2])), transposed=True)


def copied(x: torch.Tensor) -> Problem:
    return Problem.of(x, x.new_empty(x.shape))


def pairs(problem: Problem) -> set[tuple[int, int]]:
    """Every (source, destination) pair of byte offsets that the problem moves a byte between."""
    result = set()
    for index in itertools.product(*(range(d.size) for d in problem.dims)):
        src = sum(i * d.src for i, d in zip(index, problem.dims, strict=True)) * problem.itemsize
        dst = sum(i * d.dst for i, d in zip(index, problem.dims, strict=True)) * problem.itemsize
        result |= {(src + b, dst + b) for b in range(problem.itemsize)}
    return result if problem.numel else set()


def expected_pairs(shape, src, dst, size):
    result = set()
    for index in itertools.product(*(range(n) for n in shape)):
        a = sum(i * s for i, s in zip(index, src, strict=True)) * size
        b = sum(i * s for i, s in zip(index, dst, strict=True)) * size
        result |= {(a + k, b + k) for k in range(size)}
    return result


# ---- the classes of problems: what is a matrix, what are rows, and what is neither --------------------------------

X = torch.empty(6, 10)


@pytest.mark.parametrize(
    "problem, dims",
    [
        (transposed(X), (Dim(6, 10, 1), Dim(10, 1, 6))),
        (transposed(torch.empty(2, 3, 5, 6, 10)), (Dim(6, 10, 1), Dim(10, 1, 6), Dim(30, 60, 60))),  # batches merge
        (transposed(X.expand(4, 6, 10)), (Dim(6, 10, 1), Dim(10, 1, 6), Dim(4, 0, 60))),  # a batch keeps stride 0
        (transposed(X[:1].expand(6, 10)), (Dim(6, 0, 1), Dim(10, 1, 6))),  # rows of pitch 0
        (copied(torch.empty(6, 1).expand(6, 10)), (Dim(10, 0, 1), Dim(6, 1, 10))),
    ],
)
def test_a_matrix(problem, dims):
    matrix = problem.matrix()
    assert kind(problem) == "matrix"
    assert matrix == (*dims[:2], dims[2:])


def test_a_copy_of_a_transposed_tensor_is_the_transposition():
    x = torch.empty(5, 6, 10)
    assert copied(x.transpose(1, 2)) == transposed(x)


@pytest.mark.parametrize(
    "problem, inner, outer",
    [
        (transposed(torch.empty(3, 6, 10).transpose(1, 2)), 180, []),  # one run
        (copied(torch.empty(2, 16, 4, 32).transpose(1, 2)), 32, [2, 4, 16]),  # heads and sequence swapped
        (copied(torch.empty(())), 1, []),
    ],
)
def test_rows(problem, inner, outer):
    rows = problem.rows()
    assert rows is not None
    assert (rows[0], [d.size for d in rows[1]]) == (inner, outer)


@pytest.mark.parametrize(
    "x",
    [torch.empty(6, 21)[:, ::2], torch.empty(6, 20)[:, ::2], torch.empty(12, 20)[::2, ::2].t()],
    ids=["every second column", "every second element", "every second of both"],
)
def test_strided_on_both_sides_is_a_gather(x):
    assert kind(copied(x)) == "gather"


def test_any_matrix_takes_what_matrix_does_not():
    assert copied(torch.empty(6, 21)[:, ::2]).any_matrix() == (Dim(11, 2, 1), Dim(6, 21, 11), ())


def test_bytes_are_those_of_distinct_elements():
    for x, read, moved in ((X, 240, 240), (X.expand(4, 6, 10), 240, 960), (X[:0], 0, 0), (X[:, :0], 0, 0)):
        problem = transposed(x)
        assert (problem.read_bytes, problem.nbytes, problem.numel) == (read, moved, x.numel())


@pytest.mark.parametrize(
    "problem, itemsize, named, numel",
    [
        (copied(torch.empty(8, 6, 2).transpose(0, 1)), 8, "matrix", 48),  # pairs become wide elements
        (
            copied(torch.empty(97)[1:].view(8, 6, 2).transpose(0, 1)),
            4,
            "rows",
            96,
        ),  # at an odd element they stay narrow
        # Foreign memory off its boundary moves words.
        (Problem.make((6, 10), (10, 1), (10, 1), 16, src_address=8), 8, "rows", 120),
        (Problem.make((10, 6), (1, 10), (6, 1), 16, src_address=8), 8, "rows", 120),
    ],
)
def test_elements_are_as_wide_as_the_problem_allows(problem, itemsize, named, numel):
    assert (problem.itemsize, kind(problem), problem.numel) == (itemsize, named, numel)


@pytest.mark.parametrize("address, expected", [(0, 16), (1, 1), (6, 2), (12, 4), (24, 8), (48, 16), (4096, 16)])
def test_alignment(address, expected):
    problem = Problem.make((5,), (1,), (1,), 1, src_address=address)
    assert (problem.src_align, problem.dst_align) == (expected, 16)


def test_vectors_are_bounded_by_every_distance():
    problem = Problem.make((10, 6), (1, 12), (6, 1), 4)
    assert problem.widths([12], [6, 3]) == (16, 4)
    assert problem.widths([12, 10], [], [Dim(5, 16, 2)]) == (8, 8)


# ---- the form moves the same bytes --------------------------------------------------------------------------------


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    rank = draw(st.integers(0, 5))
    shape = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    order = draw(st.permutations(range(rank)))
    stored = [shape[i] + draw(st.integers(0, 2)) for i in order]
    strides = dict(zip(order, contiguous_strides(stored), strict=True))
    src = tuple(0 if draw(st.booleans()) and draw(st.booleans()) else strides[i] for i in range(rank))
    return shape, src, contiguous_strides(shape), draw(st.sampled_from([1, 2, 4, 8, 16]))


@given(layouts(), st.sampled_from([0, 1, 2, 4, 8, 16]))
def test_the_form_moves_the_same_bytes(layout, address):
    shape, src, dst, size = layout
    problem = Problem.make(shape, src, dst, size, src_address=address)
    assert pairs(problem) == expected_pairs(shape, src, dst, size)
    sizes = [d.size for d in problem.dims]
    assert all(n > 1 for n in sizes)
    assert [d.dst for d in problem.dims] == sorted((d.dst for d in problem.dims), reverse=True)
    assert problem.src_align % problem.itemsize == 0


@given(layouts())
def test_classes_agree_with_their_strides(layout):
    problem = Problem.make(*layout)
    for matrix in (problem.matrix(), problem.any_matrix()):
        if matrix is not None:
            dims = (*matrix.batch, matrix.cols, matrix.rows)
            assert pairs(Problem(dims, problem.itemsize)) == pairs(problem)
    if (matrix := problem.matrix()) is not None:
        assert matrix.cols.src == matrix.rows.dst == 1
