"""The public operators of week 2: softmax and its family.

Each body is the operator's fake implementation (``torch.library.register_fake``): it checks the arguments and returns
an empty tensor with the output's metadata; the launch allocates the real output.  A call with new metadata runs it
once, on meta tensors.  The arithmetic is in ``program``; the gradients are operators too, in ``backward``.
"""

from __future__ import annotations

import torch

from forge_core import checks
from forge_core.dims import Dims, normalize_dim, normalize_dims, result_shape
from forge_core.dtypes import FLOATS, INTEGERS, name_of
from forge_core.errors import DTypeError
from forge_core.rows.operator import row_operator
from forge_week2_softmax import backward, ref
from forge_week2_softmax.config import LADDER
from forge_week2_softmax.program import Softmax

__all__ = ["DTYPES", "log_softmax", "logsumexp", "softmax", "softmax_online"]

#: What the operators take.  Integers are converted as they are loaded, by softmax only where ``dtype`` says to what.
DTYPES: tuple[torch.dtype, ...] = (*INTEGERS, *FLOATS)


_NAMES = ", ".join(map(name_of, FLOATS))


def _output(op: str, x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    checks.operand(op, "x", x, DTYPES)
    normalize_dim(op, dim, x.ndim)
    if dtype is not None and dtype not in FLOATS:
        raise DTypeError(op, "dtype", f"None or one of {_NAMES}", name_of(dtype))
    if dtype is None and x.dtype in INTEGERS:
        expected = f"one of the dtypes {_NAMES}, or a dtype= to convert to"
        raise DTypeError(op, "x", expected, name_of(x.dtype), "Pass dtype=torch.float32.")
    return torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)


@row_operator(
    "forge_week2::softmax(Tensor x, int dim=-1, ScalarType? dtype=None, *, str variant='auto') -> Tensor",
    program=Softmax(),
    reference=ref.softmax,
    converts=True,
    ladder=LADDER,
    setup_context=backward.keep_output,
    backward=backward.of_softmax,
    cpu_autograd=True,
    jvp=backward.softmax_tangent,
    autocast={"cuda": torch.float32},
)
def softmax(x: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None, *, variant: str = "auto") -> torch.Tensor:
    """``exp(x) / sum(exp(x))`` along one dimension, without overflow; ``torch.softmax``.

    Args:
        x: any rank, strides and storage offset; fp16, bf16, fp32 or fp64; with ``dtype`` an integer or bool too.
        dim: the dimension whose elements add up to 1; the last one unless another is named.  As in PyTorch, the int may
            be one of NumPy's or a tensor.
        dtype: the dtype of the result, which each element is converted to as it is loaded; None for that of ``x``.
            As in PyTorch, it may be Python's ``float``.
        variant: ``"auto"``, or one of ``softmax.variants()``; the gradient is then asked of the same variant, where it
            has that one.

    Returns:
        A contiguous tensor of the shape of ``x``; differentiable.  A row that holds NaN or +inf, or nothing but -inf,
        is NaN.  fp16, bf16 and fp32 are computed in fp32, fp64 in fp64; the same input on the same device gives the
        same bits every time.  Under CUDA's autocast 16-bit inputs have ``dtype=torch.float32``,
        where none is given.

    Raises:
        DimError: a dimension out of range; an IndexError too.
        DTypeError: integers without ``dtype``, complex numbers, or a ``dtype`` that is not floating point; a
            RuntimeError too.
        LayoutError: sparse, quantised or nested.
        ArgumentTypeError: an argument of another type; a TypeError too.
        ArgumentError: an unknown variant, or one named for CPU tensors.
        UnsupportedError: a variant that cannot do this layout.
    """
    return _output("softmax", x, dim, dtype)


#: The course's name of the same operator.
softmax_online = softmax


@row_operator(
    "forge_week2::log_softmax(Tensor x, int dim=-1, ScalarType? dtype=None, *, str variant='auto') -> Tensor",
    program=Softmax("log_softmax"),
    reference=ref.log_softmax,
    converts=True,
    setup_context=backward.keep_output,
    backward=backward.of_log_softmax,
    cpu_autograd=True,
    autocast={"cuda": torch.float32},
)
def log_softmax(
    x: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None, *, variant: str = "auto"
) -> torch.Tensor:
    """``x - log(sum(exp(x)))`` along one dimension, without overflow; ``torch.log_softmax``.

    Takes and raises what :func:`softmax` does.  NaN in the same rows, -inf where ``x`` is -inf in others.
    """
    return _output("log_softmax", x, dim, dtype)


@row_operator(
    "forge_week2::logsumexp(Tensor x, int[1]? dim, bool keepdim=False, *, str variant='auto') -> Tensor",
    program=Softmax("logsumexp"),
    reference=ref.logsumexp,
    converts=True,
    setup_context=backward.keep_input_and_output,
    backward=backward.of_logsumexp,
    cpu_autograd=True,
    autocast={"cuda": torch.float32},
    ambient=torch.get_default_dtype,
)
def logsumexp(x: torch.Tensor, dim: Dims, keepdim: bool = False, *, variant: str = "auto") -> torch.Tensor:
    """``log(sum(exp(x)))`` over some dimensions, without overflow; ``torch.logsumexp``.

    Args:
        x: any rank, strides and storage offset; bool, integers, fp16, bf16, fp32 or fp64.
        dim: the dimensions to reduce: an int, a tuple of ints, or None (or an empty tuple) for all.  As in PyTorch, an
            int may be one of NumPy's or a tensor.
        keepdim: whether they stay, with size 1.
        variant: ``"auto"``, or one of ``logsumexp.variants()``.

    Returns:
        A contiguous tensor of the dtype of ``x``, of PyTorch's default dtype for integers and bool; differentiable.
        It is +inf where a row holds +inf, -inf where it holds nothing but -inf (or nothing), NaN where it holds NaN.

    Raises:
        DimError: a dimension out of range; an IndexError too.
        RepeatedDimError: a dimension given twice; a RuntimeError too.
        DTypeError: complex numbers; a RuntimeError too.
        LayoutError, ArgumentError, UnsupportedError: as :func:`softmax`.
    """
    checks.operand("logsumexp", "x", x, DTYPES)
    shape = result_shape(x.shape, normalize_dims("logsumexp", dim, x.ndim), keepdim)
    return x.new_empty(shape, dtype=x.dtype if x.dtype.is_floating_point else torch.get_default_dtype())
