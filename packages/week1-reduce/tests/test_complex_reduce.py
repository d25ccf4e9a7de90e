"""Sums and means of complex numbers, those of pairs; and products, by real and imaginary parts."""

from __future__ import annotations

import itertools

import pytest
import torch

from forge_core.errors import DTypeError, UnsupportedError
from forge_core.testing.conformance import Dispatched
from forge_week1_reduce import amax, amin, mean, prod, reduce_sum

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
DTYPES = (torch.complex64, torch.complex128)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op, torchs", [(reduce_sum, torch.sum), (mean, torch.mean)], ids=["sum", "mean"])
def test_sums_and_means(op, torchs, dtype: torch.dtype, device: str) -> None:
    # Integers, whose sums are exact in float32 in any order.
    x = torch.complex(*torch.randint(-8, 9, (2, 5, 33, 130), device=device).to(dtype.to_real()))
    for y in (x, x[:, 1:, ::2], x.transpose(0, 2), x[..., 1:], x.conj(), x.imag, x[:, :, :1], x.expand(2, 5, 33, 130)):
        for dim in (-1, 0, (0, 2), None, ()):
            for keepdim in (False, True):
                got = op(y, dim, keepdim)
                exact = torchs(y.to(torch.promote_types(y.dtype, torch.float64)), dim, keepdim)
                assert got.dtype == y.dtype and got.is_contiguous() and not got.is_conj()
                torch.testing.assert_close(got, exact.to(y.dtype))
    assert op(x, 0, dtype=torch.complex128).dtype == torch.complex128
    for empty in (x[:0], x[:, :0]):
        torch.testing.assert_close(op(empty, 1), torchs(empty, 1), equal_nan=True)


def factors(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """1, i, -1 and -i, whose products are exact, and every 16th of another angle: all of modulus 1, as products are."""
    generator = torch.Generator(device).manual_seed(shape[-1])
    angle = torch.rand(shape, dtype=torch.float64, device=device, generator=generator)
    units = torch.tensor([1, 1j, -1, -1j], dtype=torch.complex128, device=device)[(4 * angle).long()]
    others = torch.arange(angle.numel(), device=device).view(shape) % 16 == 0
    return torch.where(others, torch.polar(torch.ones_like(angle), 7 * angle), units).to(dtype)


def check_product(got: torch.Tensor, y: torch.Tensor, dim, keepdim: bool = False) -> None:
    """A multiplication rounds by at most sqrt(5) eps / 2; each is given twice that, since the reference rounds, too."""
    dims = tuple(range(y.ndim)) if dim in (None, ()) else dim if isinstance(dim, tuple) else (dim,)
    exact = y.to(torch.complex128)
    for d in sorted((d % y.ndim for d in dims), reverse=True):
        exact = torch.prod(exact, d, keepdim)
    rounded = ((y.real != 0) & (y.imag != 0)).sum(dims, keepdim)
    assert got.dtype == y.dtype and got.is_contiguous() and not got.is_conj() and got.shape == exact.shape
    assert ((got - exact).abs() <= (1 + rounded) * 5**0.5 * torch.finfo(y.dtype).eps * exact.abs()).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products(dtype: torch.dtype, device: str) -> None:
    x = factors((5, 33, 130), dtype, device)
    for y in (x, x[:, 1:, ::2], x.transpose(0, 2), x[..., 1:], x.conj(), x[:, :, :1], x[0].expand(2, 5, 33, 130)):
        for dim in (-1, 0, (0, 2), None, ()):
            for keepdim in (False, True):
                check_product(prod(y, dim, keepdim), y, dim, keepdim)
    check_product(prod(x[0, 0, 1], None), x[0, 0, 1:2], None)
    assert prod(x, 0, dtype=torch.complex128).dtype == torch.complex128
    out = torch.empty(5, 130, 2, dtype=dtype, device=device)[..., 1]
    prod.out(x, 1, out=out)
    torch.testing.assert_close(out, prod(x, 1), rtol=0, atol=0)
    torch.testing.assert_close(prod(x[:, :0], 1), torch.ones(5, 130, dtype=dtype, device=device))
    assert prod(x[:0], 1).shape == (0, 130)
    x[0, 0, 0] = 0
    assert prod(x, None) == 0
    x[0, 0, 0] = complex("nan")
    assert prod(x, None).isnan()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_by_every_kernel(dtype: torch.dtype) -> None:
    ran = set()
    for shape, dim in (
        ((4096, 64), -1),
        ((600, 20000), -1),
        ((2, 2**20), -1),
        ((4096, 33), 0),
        ((70000, 128), 0),
        ((3, 2**16), 0),
        ((4097, 2, 3, 5), (0, 2)),
    ):
        x = factors(shape, dtype, "cuda")
        for variant in ("auto", *prod.variants()):
            try:
                got = prod(x, dim, variant=variant)
            except UnsupportedError:
                continue
            ran.add(variant)
            check_product(got, x, dim)
            torch.testing.assert_close(prod(x, dim, variant=variant), got, rtol=0, atol=0)
    for length in (1, 50, 200, 3000, 5000):  # one element a row, expanded: lanes, a block, and a block that streams
        x = factors((40, 1), dtype, "cuda").expand(40, length)
        ran.add(prod.explain(x).variant)
        check_product(prod(x), x, -1)
    assert ran == {"auto", "stream", "split", "column", "held"}


@pytest.mark.parametrize("device", DEVICES)
def test_gradients(device: str) -> None:
    x = torch.randn(3, 4, dtype=torch.complex128, device=device, requires_grad=True)
    for op, dim in itertools.product((reduce_sum, mean, prod), (0, 1, None)):
        assert torch.autograd.gradcheck(lambda x, op=op, dim=dim: op(x, dim), (x,), check_forward_ad=True)
        with Dispatched() if device == "cpu" else torch.enable_grad():
            assert torch.autograd.gradcheck(lambda x, op=op, dim=dim: op(x, dim), (x,))
    zeros = torch.where(torch.arange(4, device=device) < 2, x.detach(), 0).requires_grad_()
    for dim in (0, 1, None):
        assert torch.autograd.gradcheck(lambda x, dim=dim: prod(x, dim), (zeros,), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(lambda x, dim=dim: prod(x, dim), (x,))
    for op, torchs in ((reduce_sum, torch.sum), (prod, torch.prod)):
        compiled = torch.compile(lambda x, op=op: op(x * 2, 0), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x.detach()), torchs(x.detach() * 2, 0))
        torch.testing.assert_close(torch.vmap(op)(x.detach()), torchs(x.detach(), -1))


def test_what_is_refused() -> None:
    x = torch.randn(3, 4, dtype=torch.complex64)
    for op in (amax, amin):
        with pytest.raises(DTypeError, match="complex64"):
            op(x)
    with pytest.raises(DTypeError, match=r"a complex dtype, as that of x, got float32\. Convert x first\."):
        reduce_sum(x, dtype=torch.float32)
    with pytest.raises(DTypeError, match="a real dtype"):
        reduce_sum(x.real, dtype=torch.complex64)


def test_it_is_planned_as_pairs() -> None:
    told = reduce_sum.explain(torch.randn(1000, 64, dtype=torch.complex64), 0, arch="sm_90a")
    pairs = reduce_sum.explain(torch.randn(1000, 64, 2), 0, arch="sm_90a")
    assert (told.variant, told.config, told.arguments) == (pairs.variant, pairs.config, pairs.arguments)


@pytest.mark.parametrize("dtype, real", [(torch.complex64, torch.float32), (torch.complex128, torch.float64)], ids=str)
def test_a_product_reads_the_parts_where_they_are(dtype: torch.dtype, real: torch.dtype) -> None:
    x = torch.randn(1000, 64, dtype=dtype)
    for y, dim in ((x, 0), (x, 1), (x.mT, 0), (x[:, 1:], 1), (x.conj(), 0), (x[:2], 1)):
        told = prod.explain(y, dim, arch="sm_90a")
        assert told.variant in ("column", "held") and told.read == y.numel() * x.itemsize
        assert told.config.binding.dtypes == (real,) * 4 and told.config.align == "element"
    told = prod.explain(x, 1, dtype=torch.complex128, arch="sm_90a")
    assert (told.config.binding.compute, told.config.binding.dtypes[0]) == (torch.float64, real)
    for variant in ("naive", "shuffle"):
        with pytest.raises(UnsupportedError, match="it needs real numbers; got complex ones"):
            prod.explain(x, 1, variant=variant, arch="sm_90a")
