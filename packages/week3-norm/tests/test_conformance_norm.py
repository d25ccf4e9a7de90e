"""The battery on the operators of week 3, as proofs.py declares them, and the public functions as operators."""

from __future__ import annotations

import itertools

import pytest
import torch

import forge_week3_norm as week3
from forge_core.testing import battery, conformance
from forge_week3_norm.proofs import PROOFS


@pytest.mark.parametrize("check", battery(*PROOFS.subjects))
def test_conformance(check):
    check()


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_a_public_function_is_a_value_is_traced_and_has_derivatives(name):
    public, overload = getattr(week3, name), getattr(torch.ops.forge_week3, name).default
    generator = torch.Generator().manual_seed(0)
    tensors, directions = (
        tuple(torch.randn(shape, dtype=torch.float64, generator=generator) for shape in ((4, 5), (5,), (5,)))
        for _ in range(2)
    )

    def call(x, weight, bias):
        return public(x, (5,), weight, bias=bias, eps=1e-3)

    def by_torch(x, weight, bias):
        return overload(x, weight, bias, -1, 1e-3)

    def written_out(x, weight, bias):
        d = x - x.mean(-1, keepdim=True) if name == "layer_norm" else x
        return d * torch.rsqrt(d.square().mean(-1, keepdim=True) + 1e-3) * weight + bias

    def right(got, given):
        torch.testing.assert_close(got, written_out(*given))

    conformance.check_value(public)
    conformance.check_traced(public, overload, call, tensors, right)
    conformance.check_forward_mode(call, by_torch, written_out, tensors, directions)
    for derivative, i in itertools.product((torch.func.jacfwd, torch.func.jacrev, torch.func.hessian), range(3)):
        torch.testing.assert_close(derivative(call, i)(*tensors), derivative(written_out, i)(*tensors))


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_a_public_function_explains_the_operator_that_it_calls(name):
    public, x, w = getattr(week3, name), torch.empty(64, 4096, device="meta"), torch.empty(4096, device="meta")
    alone, total = (f"forge_week3::{name}{end}" for end in ("", "_total"))
    for given, operator in (
        ({}, alone),
        ({"weight": w, "variant": "stream"}, alone),
        ({"residual": x}, total),
        ({"weight": w.clone().requires_grad_()}, total),
    ):
        told = public.explain(x, (4096,), arch="sm_90a", **given)
        assert (told.operator, told.backend) == (operator, "kernel")
        assert told.variant == given.get("variant", "held")
    assert list(public.variants()) == ["stream", "column", "split", "grid", "held"]
