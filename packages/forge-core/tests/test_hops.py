"""Host overhead of a call in Python function calls: first calls, repeated calls, plans, keys."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest
import torch

from forge_core.cache import Compiled, compile_cached
from forge_core.device import SPECS, Device
from forge_core.op.eager import EagerPath
from forge_core.op.repeat import REFRESH_EVERY
from forge_core.rows import Binding, configurations

week2 = pytest.importorskip("forge_week2_softmax")

H200 = SPECS["H200"]


def entered(call: Callable[[], Any], *, skip: tuple[CodeType, ...] = ()) -> list[str]:
    """Python functions entered during a call, in order, without the callees of those in ``skip``."""
    found: list[str] = []
    inside: list[CodeType] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            if not inside:
                found.append(f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}")
            if inside or frame.f_code in skip:
                inside.append(frame.f_code)
        elif event == "return" and inside:
            inside.pop()

    # A garbage collection would run finalizers of earlier tests.
    gc.collect()
    gc.disable()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


def hops(names: list[str]) -> list[str]:
    """The distinct functions of this repository, without comprehensions and generated dataclass methods."""
    own = dict.fromkeys(name for name in names if name.startswith("forge_"))
    return [name for name in own if not name.endswith("comp>") and "__create_fn__" not in name]


class Planted:
    """A fake compiler, whose kernels do nothing; ``keys`` are those it was given."""

    def __init__(self) -> None:
        self.keys: list[Any] = []

    def compile(self, build: Any, config: Any, key: Any, *, keep: bool = False) -> Compiled:
        self.keys.append(key)
        return Compiled(lambda *arguments: None, key, 0.0)


@pytest.fixture
def planted(pretend_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Planted]:
    """Softmax with its real fast path, table, plan and lookup, and a fake compiler and device."""
    compiler = Planted()

    def local(config: Any) -> Any:
        """Not called by the fake compiler; kernels of a nested builder are not stored on disk."""

    pretend_gpu(compile_cached(local, compiler=compiler))
    path = EagerPath(week2.softmax._rules, week2.softmax.table.anew())
    monkeypatch.setattr(week2.softmax, "_fast_call", path.call)
    return week2.softmax, compiler


def test_a_first_call_takes_16_hops_and_a_repeated_one_3(planted: tuple[Any, Planted]) -> None:
    """The fake implementation and the plan are a hop each, since their callees are another test's."""
    softmax, compiler = planted
    softmax(torch.zeros(64, 8200))
    x = torch.zeros(64, 8208)
    rules = softmax._rules
    first = entered(lambda: softmax(x), skip=(rules.fake.__code__, rules.plan.__code__))
    ours = hops(first)
    assert len(ours) + 2 <= 16, "\n".join(ours)  # `plain_cuda` and `builder_at` are fakes here
    key = [name for name in first if "KernelKey" in name or name.endswith("CompileCached._key")]
    assert not key, "the configuration is the same, so no key is built"
    for _ in range(REFRESH_EVERY):  # until the cached guard matches
        softmax(x)
    again = hops(entered(lambda: softmax(x)))
    assert again == [
        "forge_core.op.declaration.Operator.__call__",
        "forge_core.op.eager._of_one_tensor.<locals>.call",
        "forge_core.settings.untouched",
    ]
    assert len(compiler.keys) == 1


def test_a_repeated_call_of_several_tensors_takes_at_most_8_hops(planted: tuple[Any, Planted]) -> None:
    path = EagerPath(week2.softmax_backward._rules, week2.softmax_backward.table.anew())
    for _ in range(3):  # planned; found, from when on calls are compared with it; served, though shapes alternate
        for rows in (64, 128):
            dy, y = torch.zeros(rows, 8192), torch.zeros(rows, 8192)
            again = hops(entered(lambda dy=dy, y=y: path.call((dy, y, -1), {})))
    assert len(again) <= 8, "\n".join(again)
    assert not any("normalize" in name or "find" in name or "_key" in name for name in again)


def named(rows: int, length: int) -> dict[str, Any]:
    x = torch.empty(rows, length, dtype=torch.bfloat16, device="meta")
    return {"x": x, "dim": -1, "dtype": None, "variant": "auto"}


def test_a_call_is_checked_and_planned_with_at_most_81_calls() -> None:
    """Planning a new shape is on the critical path, so results that depend on dtypes only are cached."""
    for rows in (2048, 1024):
        week2.softmax.table.planned(H200, None, named(rows, 8192))
    calls = [named(rows, 8192) for rows in (4096, 4224, 8192)]
    found = [entered(lambda call=call: week2.softmax.table.planned(H200, None, call)) for call in calls]
    # A cache that an equal program of another test has entered first compares the two.
    taken = [[name for name in names if not name.endswith("__eq__")] for names in found]
    # The least of three: finalizers of other objects may run in between.
    assert min(map(len, taken)) <= 81, "\n".join(min(taken, key=len))


def test_equal_configurations_are_the_same_object() -> None:
    plans = [week2.softmax.table.planned(H200, None, named(4096, 8192 + 64 * i)) for i in range(8)]
    assert len({id(plan.config) for plan in plans}) == len({plan.config for plan in plans})
    program, dtypes = plans[0].config.binding.program, plans[0].config.binding.dtypes
    # Another GPU of the architecture, and an equal binding that is another object.
    other = Device("NVIDIA H200 NVL", *[getattr(H200, f) for f in list(Device.__dataclass_fields__)[1:]])
    bindings = [Binding(program, dtypes, torch.float32) for _ in range(2)]
    for a, b in zip(configurations(bindings[0], H200), configurations(bindings[1], other), strict=True):
        assert a is b
