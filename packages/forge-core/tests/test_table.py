"""The launch table without a GPU: plan, compiler and device are replaced by fakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forge_core.errors import ArgumentTypeError, LayoutError, UnsupportedError
from forge_core.op import Plan, table
from forge_core.op.rules import Rules
from forge_core.op.schema import Schema


class Planted:
    """A table whose kernels record their arguments; ``options`` are fields of its launches."""

    def __init__(self, pretend_gpu: Any, text: str, **options: Any) -> None:
        self.planned: list[tuple[Any, ...]] = []
        self.launched: list[tuple[Any, ...]] = []
        self.options = options
        pretend_gpu(lambda config, arch: self.kernel)
        self.table = table.LaunchTable(Rules(Schema(text), self.like, torch.neg, self.plan, {"slow": None}))

    def kernel(self, *arguments: Any) -> None:
        self.launched.append(arguments)

    def like(self, x: torch.Tensor, **others: Any) -> torch.Tensor:
        return torch.empty(x.shape, device="meta", dtype=x.dtype)

    def plan(self, device: Any, out: torch.Tensor, *values: Any) -> Plan:
        self.planned.append(values[1:])
        return Plan("simple", "nowhere:build", None, (5, (6, 7)), "why", 0, 0, **self.options)


@pytest.fixture
def one(pretend_gpu: Any) -> Planted:
    return Planted(pretend_gpu, "ns::f(Tensor x, int[] dim=[0], *, str variant='auto') -> Tensor")


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
    monkeypatch.setattr(table, "MAX_ENTRIES", 4)
    for n in range(1, 12):
        one.table.launch(None, (torch.zeros(n),), {})
        assert len(one.table) <= 4


def test_what_is_no_key_or_equal_to_one_is_refused_by_the_checks(one: Planted) -> None:
    one.table.launch(None, (torch.zeros(3, 4), 1), {})
    for value in ({1}, True, 1.0):
        with pytest.raises(ArgumentTypeError, match="an int or a tuple of ints"):
            one.table.launch(None, (torch.zeros(3, 4), value), {})


def test_a_workspace_is_allocated_for_each_call_and_follows_the_output(pretend_gpu: Any) -> None:
    planted, x = Planted(pretend_gpu, "ns::f(Tensor x) -> Tensor", workspace=64), torch.zeros(3)
    out = planted.table.launch(None, (x,), {})
    first, second, scratch, *rest = planted.launched[-1]
    assert (first, second, rest) == (x.data_ptr(), out.data_ptr(), [5, (6, 7), 77])
    assert scratch not in (0, first, second)


def test_a_numbered_launch_has_a_number_of_its_own_negative_where_it_comes_again(
    pretend_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted(pretend_gpu, "ns::f(Tensor x) -> Tensor", workspace=64, numbered=True)
    made: list[torch.Tensor] = []

    def new(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        made.append(torch.ones(shape, dtype=dtype))
        return made[-1]

    monkeypatch.setattr(table, "_new", new)
    numbers = []
    for capturing, never_written in ((False, False), (False, False), (True, False), (False, True)):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda now=capturing: now)
        monkeypatch.setattr(table, "_NEVER_WRITTEN", never_written)
        planted.table.launch(None, (torch.zeros(3),), {})
        *_, workspace, five, _, number, _ = planted.launched[-1]
        assert (workspace, five) == (made[-1].data_ptr(), 5)
        assert made[-1].any() == (not never_written), "a workspace is zeroed only without the caching allocator"
        assert 0 < (-number if capturing else number) < 2**63
        numbers.append(abs(number))
    assert len(set(numbers)) == 4


@pytest.mark.parametrize(
    "kind, said",
    [
        (RuntimeError, "CUDA Error Code: 720"),
        # Type and message differ in a process that has compiled a kernel.
        (type("Other", (Exception,), {}), "error cudaErrorCooperativeLaunchTooLarge"),
    ],
)
def test_blocks_without_room_are_a_refusal_and_no_other_failure_is(pretend_gpu: Any, kind: Any, said: str) -> None:
    planted = Planted(pretend_gpu, "ns::f(Tensor x) -> Tensor", workspace=64, numbered=True)

    def fail(*arguments: int) -> None:
        raise failure

    planted.kernel = fail
    failure = kind(said)
    with pytest.raises(UnsupportedError, match=r"'simple' needs all of its blocks .* no room for them") as caught:
        planted.table.launch(None, (torch.zeros(3),), {})
    assert caught.value.requirement == "multiprocessors for all blocks at once"
    failure = kind("CUDA Error Code: 700")
    with pytest.raises(kind, match=r"^CUDA Error Code: 700$"):
        planted.table.launch(None, (torch.zeros(3),), {})
