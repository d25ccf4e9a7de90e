"""Bad input gets a typed error that says what was expected and the way out, and nothing is written."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

import forge_week0_transpose as week0
from forge_core.errors import ArgumentError, DeviceError, DTypeError, LayoutError, ShapeError, UnsupportedError
from forge_core.op import backend

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))

Case = tuple[str, Callable[[str], object], type[ArgumentError], str, str]


def quantised(device: str) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch announces the end of quantised tensors
        return torch.quantize_per_tensor(torch.randn(3, 4, device=device), 0.1, 0, torch.qint8)


def sparse_csr(device: str) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls sparse CSR a beta feature
        return torch.eye(4, device=device).to_sparse_csr()


def nested(device: str) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls nested tensors a prototype
        return torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(4, 3)], device=device)


def jagged(device: str) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(4, 3)], device=device, layout=torch.jagged)


def matrix(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape or (3, 4), device=device, dtype=dtype)


CASES: tuple[Case, ...] = (
    ("no tensor", lambda d: week0.transpose([[1.0]]), ArgumentError, "transpose", "'x'"),
    ("no dimension", lambda d: week0.transpose(torch.tensor(1.0, device=d)), ShapeError, "transpose", "'x'"),
    ("one dimension", lambda d: week0.transpose(torch.zeros(4, device=d)), ShapeError, "transpose", "'x'"),
    ("one dimension, tiled", lambda d: week0.copy_transpose(torch.zeros(4, device=d)), ShapeError, "copy_t", "'x'"),
    ("sparse", lambda d: week0.transpose(matrix(d).to_sparse()), LayoutError, "transpose", "'x'"),
    ("sparse copy", lambda d: week0.copy(matrix(d).to_sparse()), LayoutError, "copy", "'x'"),
    ("sparse csr", lambda d: week0.transpose(sparse_csr(d)), LayoutError, "transpose", "'x'"),
    ("quantised", lambda d: week0.transpose(quantised(d)), LayoutError, "transpose", "'x'"),
    ("nested", lambda d: week0.transpose(nested(d)), LayoutError, "transpose", "'x'"),
    ("dtype", lambda d: week0.transpose(matrix(d, dtype=torch.uint8).view(torch.bits8)), DTypeError, "transp", "'x'"),
    ("variant", lambda d: week0.transpose(matrix(d), variant="best"), ArgumentError, "transpose", "'variant'"),
    ("copy variant", lambda d: week0.copy(matrix(d), variant="tiled "), ArgumentError, "copy", "'variant'"),
    ("tile", lambda d: week0.copy_transpose(matrix(d), 8), ArgumentError, "copy_transpose", "'tile_size'"),
    ("variant of no text", lambda d: week0.transpose(matrix(d), variant=3), ArgumentError, "transpose", "'variant'"),
    ("no variant", lambda d: week0.copy(matrix(d), variant=None), ArgumentError, "copy", "'variant'"),
    ("tile of text", lambda d: week0.copy_transpose(matrix(d), "16"), ArgumentError, "copy_t", "'tile_size'"),
    ("tile of a fraction", lambda d: week0.copy_transpose(matrix(d), 16.0), ArgumentError, "copy_t", "'tile_size'"),
    ("no tensor by name", lambda d: week0.transpose(x=None), ArgumentError, "transpose", "'x'"),
    ("jagged", lambda d: week0.transpose(jagged(d)), LayoutError, "transpose", "'x'"),
    ("tile by name", lambda d: week0.copy_transpose(matrix(d), tile_size=0), ArgumentError, "copy_t", "'tile_size'"),
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_bad_arguments(case: Case, device: str) -> None:
    _, call, kind, op, argument = case
    with pytest.raises(kind) as caught:
        call(device)
    text = str(caught.value)
    assert text.startswith(op)
    assert argument in text
    assert "expected" in text
    assert "got" in text


def out_cases(device: str) -> list[tuple[str, torch.Tensor, object, type[ArgumentError]]]:
    x = torch.randn(6, 8, device=device)
    square = torch.randn(8, 8, device=device)
    storage = torch.randn(200, device=device)
    return [
        ("no tensor", x, None, ArgumentError),
        ("wrong shape", x, torch.zeros(6, 8, device=device), ShapeError),
        ("wrong rank", x, torch.zeros(1, 8, 6, device=device), ShapeError),
        ("wrong dtype", x, torch.zeros(8, 6, device=device, dtype=torch.float64), DTypeError),
        ("wrong device", x, torch.zeros(8, 6, device="meta"), DeviceError),
        ("the input itself", square, square, LayoutError),
        ("a view of the input", square, square.t(), LayoutError),
        ("half overlap", storage[:48].view(6, 8), storage[40:88].view(8, 6), LayoutError),
        ("expanded", x, torch.zeros(8, 1, device=device).expand(8, 6), LayoutError),
        ("sparse", x, torch.zeros(8, 6, device=device).to_sparse(), LayoutError),
        (
            "conjugated",
            torch.zeros(6, 8, device=device, dtype=torch.complex64),
            torch.zeros(8, 6, device=device, dtype=torch.complex64).conj(),
            LayoutError,
        ),
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("index", range(11))
def test_bad_out(index: int, device: str) -> None:
    name, x, out, kind = out_cases(device)[index]
    kept = x.clone()
    watched = isinstance(out, torch.Tensor) and out.device.type != "meta" and out.layout is torch.strided
    before = out.clone() if watched else None
    with pytest.raises(kind) as caught:
        week0.transpose_out(x, out)
    text = str(caught.value)
    assert text.startswith("transpose_out"), name
    assert "'out'" in text
    assert torch.equal(x, kept), f"{name}: the input was written"
    if watched:
        assert torch.equal(out, before), f"{name}: out was written"


@pytest.mark.parametrize("device", DEVICES)
def test_neighbours_in_one_storage_do_not_overlap(device: str) -> None:
    storage = torch.randn(96, device=device)
    x, out = storage[:48].view(6, 8), storage[48:].view(8, 6)
    week0.transpose_out(x, out)
    assert torch.equal(out, x.t())


@pytest.mark.parametrize("device", DEVICES)
def test_out_refuses_gradients(device: str) -> None:
    x = torch.randn(3, 4, device=device, requires_grad=True)
    out = torch.zeros(4, 3, device=device)
    with pytest.raises(ArgumentError, match=r"transpose_out: argument 'x'.*need no gradient"):
        week0.transpose_out(x, out)
    assert not out.any()
    with torch.no_grad():
        week0.transpose_out(x, out)
    assert torch.equal(out, x.detach().t())


def test_kernels_are_refused_on_the_cpu() -> None:
    x = torch.zeros(3, 4)
    with pytest.raises(DeviceError, match="variant 'tiled' was asked for"):
        week0.transpose(x, variant="tiled")
    with backend("kernel"), pytest.raises(DeviceError, match="backend 'kernel' was asked for"):
        week0.transpose(x)
    with backend("kernel"), pytest.raises(DeviceError, match="backend 'kernel' was asked for"):
        week0.transpose_out(x, torch.zeros(4, 3))


@pytest.mark.gpu
def test_the_reference_has_no_variants() -> None:
    x = torch.zeros(3, 4, device="cuda")
    with backend("ref"), pytest.raises(ArgumentError, match="backend asked for is 'ref'"):
        week0.transpose(x, variant="tiled")


@pytest.mark.gpu
def test_a_variant_is_never_replaced_silently() -> None:
    x = torch.zeros(40, 56, device="cuda")
    for variant in ("naive", "tiled", "shifted", "vectorized"):
        assert week0.transpose.explain(x, variant=variant).variant == variant
    with pytest.raises(UnsupportedError, match=r"'skinny' was asked for.*that can do this call: 'naive'"):
        week0.transpose(x, variant="skinny")
