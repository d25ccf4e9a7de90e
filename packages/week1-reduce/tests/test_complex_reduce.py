"""Sums and means of complex numbers: those of pairs."""

from __future__ import annotations

import pytest
import torch

from forge_core.errors import DTypeError
from forge_week1_reduce import amax, mean, prod, reduce_sum

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
DTYPES = (torch.complex64, torch.complex128)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op, torchs", [(reduce_sum, torch.sum), (mean, torch.mean)], ids=["sum", "mean"])
def test_sums_and_means(op, torchs, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(5, 33, 130, dtype=dtype, device=device)
    for y in (x, x[:, 1:, ::2], x.transpose(0, 2), x[..., 1:], x.conj(), x.imag, x[:, :, :1], x.expand(2, 5, 33, 130)):
        for dim in (-1, 0, (0, 2), None, ()):
            for keepdim in (False, True):
                got, exact = (
                    op(y, dim, keepdim),
                    torchs(y.to(torch.promote_types(y.dtype, torch.float64)), dim, keepdim),
                )
                assert got.dtype == y.dtype and got.is_contiguous() and not got.is_conj()
                torch.testing.assert_close(got, exact.to(y.dtype))
    assert op(x, 0, dtype=torch.complex128).dtype == torch.complex128
    for empty in (x[:0], x[:, :0]):
        torch.testing.assert_close(op(empty, 1), torchs(empty, 1), equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients(device: str) -> None:
    x = torch.randn(3, 4, dtype=torch.complex128, device=device, requires_grad=True)
    for op in (reduce_sum, mean):
        for dim in (0, 1, None):
            assert torch.autograd.gradcheck(lambda x, op=op, dim=dim: op(x, dim), (x,), check_forward_ad=True)
    compiled = torch.compile(lambda x: reduce_sum(x * 2, 0), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x.detach()), (x.detach() * 2).sum(0))


def test_what_is_refused() -> None:
    x = torch.randn(3, 4, dtype=torch.complex64)
    for op in (amax, prod):
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
