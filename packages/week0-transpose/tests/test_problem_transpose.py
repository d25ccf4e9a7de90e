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


def transposed(x: torch.Tensor) -> tuple[Problem, torch.Tensor]:
    out = x.new_empty((*x.shape[:-2], x.shape[-1], x.shape[-2]))
    return Problem.of(x, out, transposed=True), out


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


def expected_pairs(
    shape: tuple[int, ...], src: tuple[int, ...], dst: tuple[int, ...], size: int
) -> set[tuple[int, int]]:
    result = set()
    for index in itertools.product(*(range(n) for n in shape)):
        a = sum(i * s for i, s in zip(index, src, strict=True)) * size
        b = sum(i * s for i, s in zip(index, dst, strict=True)) * size
        result |= {(a + k, b + k) for k in range(size)}
    return result


def test_matrix() -> None:
    problem, _ = transposed(torch.empty(6, 10))
    matrix = problem.matrix()
    assert kind(problem) == "matrix"
    assert matrix is not None
    assert matrix == (Dim(6, 10, 1), Dim(10, 1, 6), ())
    assert problem.read_bytes == problem.nbytes == 240


def test_transposed_input_is_one_run() -> None:
    problem, _ = transposed(torch.empty(3, 6, 10).transpose(1, 2))
    assert kind(problem) == "rows"
    assert problem.dims == (Dim(180, 1, 1),)


def test_copy_of_a_transposed_tensor_is_the_transposition() -> None:
    x = torch.empty(5, 6, 10)
    problem, _ = transposed(x)
    assert copied(x.transpose(1, 2)) == problem


def test_heads_and_sequence_swapped_is_pitched_rows() -> None:
    problem = copied(torch.empty(2, 16, 4, 32).transpose(1, 2))
    rows = problem.rows()
    assert rows is not None
    assert (rows[0], [d.size for d in rows[1]]) == (32, [2, 4, 16])


def test_batches_merge_into_one_dimension() -> None:
    problem, _ = transposed(torch.empty(2, 3, 5, 6, 10))
    matrix = problem.matrix()
    assert matrix is not None
    assert matrix.batch == (Dim(30, 60, 60),)


def test_expanded_batch_keeps_its_zero_stride() -> None:
    problem, _ = transposed(torch.empty(6, 10).expand(4, 6, 10))
    matrix = problem.matrix()
    assert matrix is not None
    assert matrix.batch == (Dim(4, 0, 60),)
    assert problem.read_bytes == 240
    assert problem.nbytes == 960


def test_expanded_rows_are_a_matrix_of_pitch_zero() -> None:
    problem, _ = transposed(torch.empty(1, 10).expand(6, 10))
    matrix = problem.matrix()
    assert matrix is not None
    assert matrix.rows.src == 0


@pytest.mark.parametrize(
    "x",
    [torch.empty(6, 21)[:, ::2], torch.empty(6, 20)[:, ::2], torch.empty(12, 20)[::2, ::2].t()],
    ids=["every second column", "every second element", "every second of both"],
)
def test_strided_on_both_sides_is_a_gather(x: torch.Tensor) -> None:
    problem = copied(x)
    assert kind(problem) == "gather"
    assert problem.matrix() is None


def test_any_matrix_takes_what_matrix_does_not() -> None:
    problem = copied(torch.empty(6, 21)[:, ::2])
    matrix = problem.any_matrix()
    assert matrix == (Dim(11, 2, 1), Dim(6, 21, 11), ())


def test_expanded_columns_are_a_matrix_too() -> None:
    matrix = copied(torch.empty(6, 1).expand(6, 10)).matrix()
    assert matrix is not None
    assert (matrix.rows, matrix.cols) == (Dim(10, 0, 1), Dim(6, 1, 10))


def test_pairs_become_wide_elements() -> None:
    problem = copied(torch.empty(8, 6, 2).transpose(0, 1))
    assert (problem.itemsize, kind(problem), problem.numel) == (8, "matrix", 48)


def test_pairs_at_an_odd_element_stay_narrow() -> None:
    problem = copied(torch.empty(97)[1:].view(8, 6, 2).transpose(0, 1))
    assert (problem.itemsize, kind(problem)) == (4, "rows")


def test_foreign_memory_off_its_boundary_moves_words() -> None:
    problem = Problem.make((6, 10), (10, 1), (10, 1), 16, src_address=8)
    assert (problem.itemsize, problem.numel, problem.dims) == (8, 120, (Dim(120, 1, 1),))
    turned = Problem.make((10, 6), (1, 10), (6, 1), 16, src_address=8)
    assert (turned.itemsize, kind(turned)) == (8, "rows")


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (2, 0, 3)])
def test_empty(shape: tuple[int, ...]) -> None:
    problem, _ = transposed(torch.empty(shape))
    assert (problem.numel, problem.nbytes, problem.read_bytes) == (0, 0, 0)


def test_scalar() -> None:
    problem = copied(torch.empty(()))
    rows = problem.rows()
    assert rows is not None
    assert (*rows, problem.nbytes) == (1, (), 4)


@pytest.mark.parametrize("address, expected", [(0, 16), (1, 1), (6, 2), (12, 4), (24, 8), (48, 16), (4096, 16)])
def test_alignment(address: int, expected: int) -> None:
    problem = Problem.make((5,), (1,), (1,), 1, src_address=address)
    assert (problem.src_align, problem.dst_align) == (expected, 16)


def test_vectors_are_bounded_by_every_distance() -> None:
    problem = Problem.make((10, 6), (1, 12), (6, 1), 4)
    assert problem.widths([12], [6, 3]) == (16, 4)
    assert problem.widths([12, 10], [], [Dim(5, 16, 2)]) == (8, 8)


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
def test_the_form_moves_the_same_bytes(
    layout: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int], address: int
) -> None:
    shape, src, dst, size = layout
    problem = Problem.make(shape, src, dst, size, src_address=address)
    assert pairs(problem) == expected_pairs(shape, src, dst, size)
    sizes = [d.size for d in problem.dims]
    assert all(n > 1 for n in sizes)
    assert [d.dst for d in problem.dims] == sorted((d.dst for d in problem.dims), reverse=True)
    assert problem.src_align % problem.itemsize == 0


@given(layouts())
def test_classes_agree_with_their_strides(
    layout: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int],
) -> None:
    problem = Problem.make(*layout)
    for matrix in (problem.matrix(), problem.any_matrix()):
        if matrix is not None:
            dims = (*matrix.batch, matrix.cols, matrix.rows)
            assert pairs(Problem(dims, problem.itemsize)) == pairs(problem)
    if (matrix := problem.matrix()) is not None:
        assert matrix.cols.src == matrix.rows.dst == 1
