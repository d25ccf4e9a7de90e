"""The table of launches, driven without a GPU: a planted plan, compiler and device stand in for the real ones."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from forge_core.device import SPECS
from forge_core.errors import ArgumentTypeError, LayoutError
from forge_core.op import Launch, table
from forge_core.op.rules import Rules
from forge_core.op.schema import Schema


class Planted:
    """A table whose kernels record how they are called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        self.planned: list[tuple[Any, ...]] = []
        self.launched: list[tuple[Any, ...]] = []
        monkeypatch.setattr(table.devices, "query", lambda device: SPECS["H200"])
        monkeypatch.setattr(table, "builder_at", lambda path: lambda config, arch: self.kernel)
        monkeypatch.setattr(table, "_current_device", lambda: -1)
        monkeypatch.setattr(table, "_raw_stream", lambda index: 77)
        monkeypatch.setattr(
            table, "_new", lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype)
        )
        rules = Rules(Schema.parse(text), self.like, torch.neg, self.plan, {"slow": None})
        self.table = table.LaunchTable(rules)

    def kernel(self, *arguments: Any) -> None:
        self.launched.append(arguments)

    def like(self, x: torch.Tensor, **others: Any) -> torch.Tensor:
        return torch.empty(x.shape, device="meta", dtype=x.dtype)

    def plan(self, device: Any, out: torch.Tensor, *values: Any) -> Launch:
        self.planned.append(values[1:])
        return Launch("simple", "nowhere:build", None, (5, (6, 7)), "why", 0, 0)


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Planted:
    return Planted(monkeypatch, "ns::f(Tensor x, int[] dim=[0], *, str variant='auto') -> Tensor")


def test_a_call_seen_before_is_not_planned_again(one: Planted) -> None:
    x = torch.zeros(3, 4)
    first, second = one.table.launch(None, (x,), {}), one.table.launch(None, (x,), {})
    assert one.planned == [([0], "auto")]
    assert len(one.table) == 1
    assert one.launched == [(x.data_ptr(), y.data_ptr(), 5, (6, 7), 77) for y in (first, second)]


def test_whatever_a_launch_depends_on_is_planned_apart(one: Planted) -> None:
    storage = torch.zeros(64)
    x = storage[:12].view(3, 4)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x,), {}),
        ((x.view(4, 3),), {}),
        ((x.t(),), {}),
        ((x.to(torch.int32),), {}),
        ((storage[1:13].view(3, 4),), {}),
        ((x, [1]), {}),
        ((x, [0, 1]), {}),
        ((x, 1), {}),
        ((x,), {"dim": 1}),
        ((x,), {"variant": "slow"}),
    ]
    for args, kwargs in calls * 2:
        one.table.launch(None, args, kwargs)
    assert len(one.planned) == len(one.table) == len(calls)
    assert len(one.launched) == 2 * len(calls)


def test_an_out_is_checked_and_counted_at_every_call(one: Planted) -> None:
    x, out = torch.zeros(3, 4), torch.zeros(3, 4)
    for turn in range(3):
        assert one.table.launch(out, (x,), {}) is out
        assert out._version == turn + 1
    storage = torch.zeros(24)
    one.table.launch(storage[12:].view(3, 4), (storage[:12].view(3, 4),), {})
    with pytest.raises(LayoutError, match="f_out: argument 'out'"):
        one.table.launch(storage[4:16].view(3, 4), (storage[:12].view(3, 4),), {})


def test_nothing_is_launched_for_an_empty_output(one: Planted) -> None:
    assert one.table.launch(None, (torch.zeros(0, 4),), {}).shape == (0, 4)
    assert one.launched == []
    assert one.planned == []


def test_the_table_does_not_grow_for_ever(one: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_BOUND", 4)
    for n in range(1, 12):
        one.table.launch(None, (torch.zeros(n),), {})
        assert len(one.table) <= 4


def test_launches_and_hits_are_logged(one: Planted, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.zeros(3, 4)
    with caplog.at_level(logging.DEBUG, "forge_core"):
        one.table.launch(None, (x,), {})
        one.table.launch(None, (x,), {})
    assert [record.getMessage() for record in caplog.records] == ["ns::f: simple None: why", "cache hit: ns::f simple"]


def test_what_is_no_key_or_equal_to_one_is_refused_by_the_checks(one: Planted) -> None:
    one.table.launch(None, (torch.zeros(3, 4), 1), {})
    for value in ({1}, True, 1.0):
        with pytest.raises(ArgumentTypeError, match="an int or a tuple of ints"):
            one.table.launch(None, (torch.zeros(3, 4), value), {})
