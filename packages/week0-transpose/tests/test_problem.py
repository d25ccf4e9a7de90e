"""The canonical form: what is dropped, merged and widened, and which class a problem falls into."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forge_week0_transpose.problem import Dim, Matrix, Problem, Rows, alignment_of, contiguous_strides


def transposed(x: torch.Tensor) -> Problem:
    return Problem.transpose(x, x.new_empty(x.mT.shape))


def copied(x: torch.Tensor) -> Problem:
    return Problem.copy(x, x.new_empty(x.shape))


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


HEADS = (Dim(2, 2048, 2048), Dim(4, 32, 512), Dim(16, 128, 32))

FORMS: dict[str, tuple[Problem, Matrix | Rows | None, tuple[int, int]]] = {
    "matrix": (transposed(torch.empty(6, 10)), Matrix(6, 10, 10, 6, ()), (240, 240)),
    "transposed input is one run": (transposed(torch.empty(3, 6, 10).mT), Rows(180, ()), (720, 720)),
    "swapped heads are rows": (copied(torch.empty(2, 16, 4, 32).transpose(1, 2)), Rows(32, HEADS), (16384, 16384)),
    "batches merge": (transposed(torch.empty(2, 3, 5, 6, 10)), Matrix(6, 10, 10, 6, (Dim(30, 60, 60),)), (7200, 7200)),
    "expanded batch": (
        transposed(torch.empty(6, 10).expand(4, 6, 10)),
        Matrix(6, 10, 10, 6, (Dim(4, 0, 60),)),
        (240, 960),
    ),
    "expanded rows": (transposed(torch.empty(1, 10).expand(6, 10)), Matrix(6, 10, 0, 6, ()), (40, 240)),
    "expanded columns": (copied(torch.empty(6, 1).expand(6, 10)), Matrix(10, 6, 0, 10, ()), (24, 240)),
    "every second column": (copied(torch.empty(6, 21)[:, ::2]), None, (264, 264)),
    "every second element": (copied(torch.empty(6, 20)[:, ::2]), None, (240, 240)),
    "every second of both": (copied(torch.empty(12, 20)[::2, ::2].t()), None, (240, 240)),
    "scalar": (copied(torch.empty(())), Rows(1, ()), (4, 4)),
}


@pytest.mark.parametrize(("problem", "form", "nbytes"), FORMS.values(), ids=FORMS)
def test_forms(problem: Problem, form: Matrix | Rows | None, nbytes: tuple[int, int]) -> None:
    assert problem.kind == {Matrix: "matrix", Rows: "rows"}.get(type(form), "gather")
    assert (problem.rows() or problem.matrix()) == form
    assert (problem.read_bytes, problem.nbytes) == nbytes


def test_copy_of_a_transposed_tensor_is_the_transposition() -> None:
    x = torch.empty(5, 6, 10)
    assert copied(x.transpose(1, 2)) == transposed(x)


def test_any_matrix_takes_what_matrix_does_not() -> None:
    problem = copied(torch.empty(6, 21)[:, ::2])
    matrix = problem.any_matrix()
    assert (matrix.rows, matrix.cols) == (11, 6)
    assert (matrix.src_pitch, matrix.src_step, matrix.dst_pitch, matrix.dst_step) == (2, 21, 11, 1)


def test_pairs_become_wide_elements() -> None:
    problem = copied(torch.empty(8, 6, 2).transpose(0, 1))
    assert (problem.itemsize, problem.kind, problem.numel) == (8, "matrix", 48)


def test_pairs_at_an_odd_element_stay_narrow() -> None:
    problem = copied(torch.empty(97)[1:].view(8, 6, 2).transpose(0, 1))
    assert (problem.itemsize, problem.kind) == (4, "rows")


def test_foreign_memory_off_its_boundary_moves_words() -> None:
    problem = Problem.make((6, 10), (10, 1), (10, 1), 16, src_address=8)
    assert (problem.itemsize, problem.numel, problem.dims) == (8, 120, (Dim(120, 1, 1),))
    turned = Problem.make((10, 6), (1, 10), (6, 1), 16, src_address=8)
    assert (turned.itemsize, turned.kind) == (8, "rows")


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (2, 0, 3)])
def test_empty(shape: tuple[int, ...]) -> None:
    problem = transposed(torch.empty(shape))
    assert (problem.kind, problem.nbytes, problem.read_bytes) == ("empty", 0, 0)


@pytest.mark.parametrize("address, expected", [(0, 16), (1, 1), (6, 2), (12, 4), (24, 8), (48, 16), (4096, 16)])
def test_alignment(address: int, expected: int) -> None:
    assert alignment_of(address) == expected


def test_vectors_are_bounded_by_every_distance() -> None:
    problem = Problem.make((10, 6), (1, 12), (6, 1), 4)
    assert problem.src_vector([12]) == 16
    assert problem.src_vector([12, 10]) == 8
    assert problem.dst_vector([6, 3]) == 4


def test_contiguous_strides() -> None:
    assert contiguous_strides((2, 3, 4)) == (12, 4, 1)
    assert contiguous_strides((2, 0, 4)) == (4, 4, 1)


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
    matrix = problem.matrix()
    if matrix is not None:
        moved = Problem(
            (*matrix.batch, Dim(matrix.cols, 1, matrix.dst_pitch), Dim(matrix.rows, matrix.src_pitch, 1)),
            problem.itemsize,
            numel=problem.numel,
        )
        assert pairs(moved) == pairs(problem)
    any_matrix = problem.any_matrix()
    moved = Problem(
        (
            *any_matrix.batch,
            Dim(any_matrix.cols, any_matrix.src_step, any_matrix.dst_pitch),
            Dim(any_matrix.rows, any_matrix.src_pitch, any_matrix.dst_step),
        ),
        problem.itemsize,
        numel=problem.numel,
    )
    assert pairs(moved) == pairs(problem)
