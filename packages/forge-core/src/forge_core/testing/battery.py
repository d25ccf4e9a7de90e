"""The conformance battery: the tests that every operator has to pass, from one declaration.

    @pytest.mark.parametrize("check", battery(SUBJECT))
    def test_conformance(check):
        check()

``SUBJECT`` is a declaration (``forge_core.testing.subject``).  Each property is a test, whose id has the operator,
check, dtype and device, for example ``reduce_sum-graph_replay-cuda``; those on a GPU have the mark ``gpu``.  A check
that does not apply is skipped with its reason.  Wrong operators are planted in each subject, and the check that has to
find one fails unless it does.  ``docs/testing.md`` is the guide for authors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from forge_core.op import Operator
from forge_core.testing import battery_checks as checks
from forge_core.testing import conformance, conformance_calls
from forge_core.testing.conformance import same_bits
from forge_core.testing.conformance_drawn import check_drawn
from forge_core.testing.planted import GENERAL, Planted
from forge_core.testing.subject import Subject

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

BOTH, CPU, GPU = ("cpu", "cuda"), ("cpu",), ("cuda",)


#: What a check may need of a subject, by name, and the reason for the skip of one that lacks it.
NEEDS: dict[str, tuple[Callable[[Subject], bool], str]] = {
    "operator": (lambda subject: isinstance(subject.operator, Operator), "it is no forge_core.op.Operator"),
    "overload": (lambda subject: subject.registered() is not None, "no registered overload is declared"),
    "out": (lambda subject: checks.out_form(subject) is not None, "the operator has no out form"),
    "inexact": (lambda subject: bool(checks.dtypes_of(subject, "nan_and_inf")), "no floating-point dtype is declared"),
    "explains": (lambda subject: hasattr(subject.operator, "explain"), "it does not explain its calls"),
    "floats": (lambda subject: bool(checks.dtypes_of(subject, "float64_error")), "no floating-point dtype is declared"),
    "gradient": (lambda subject: subject.differentiable, "no gradient is registered"),
}


@dataclass(frozen=True)
class Check:
    """One property of an operator.

    Attributes:
        run: takes a subject and a device; raises AssertionError when the operator lacks the property.
        devices: kinds of device to test on.
        each_dtype: whether each of the subject's dtypes is a separate test.
        gpus: GPUs needed.
        needs: what a subject needs for the check to apply, of ``NEEDS``.
    """

    run: Callable[[Subject, torch.device], None]
    devices: tuple[str, ...] = BOTH
    each_dtype: bool = False
    gpus: int = 1
    needs: tuple[str, ...] = ()

    def lacks(self, subject: Subject) -> str:
        """Why the check does not apply to a subject; "" where it does."""
        return next((reason for has, reason in map(NEEDS.__getitem__, self.needs) if not has(subject)), "")


#: All checks, by name.
CHECKS: dict[str, Check] = {
    "values": Check(checks.values, each_dtype=True),
    "float64_error": Check(checks.float64_error, each_dtype=True, needs=("floats",)),
    "misaligned_offset": Check(checks.misaligned_offset, each_dtype=True),
    "strides": Check(checks.strides, each_dtype=True),
    "empties": Check(checks.empties, each_dtype=True),
    "nan_and_inf": Check(checks.nan_and_inf, each_dtype=True, needs=("inexact",)),
    "fake_strides": Check(checks.fake_strides),
    "inputs_untouched": Check(checks.inputs_untouched),
    "out_form": Check(checks.out, each_dtype=True, needs=("out",)),
    "out_compiles": Check(checks.out_compiles, needs=("out",)),
    "opcheck": Check(checks.opcheck, needs=("overload",)),
    "fullgraph": Check(checks.fullgraph),
    "dynamic_shapes": Check(checks.dynamic_shapes),
    "export": Check(checks.export, needs=("overload",)),
    "value": Check(checks.value, CPU, needs=("operator",)),
    "traced": Check(checks.traced, needs=("operator",)),
    "gradients": Check(checks.gradients, needs=("floats", "gradient")),
    "second_derivatives": Check(checks.second_derivatives, needs=("floats", "gradient")),
    "forward_mode": Check(checks.forward_mode, needs=("operator", "floats", "gradient")),
    "vmap": Check(checks.vmap, needs=("operator",)),
    "refusals": Check(checks.of_operator(conformance_calls.check_refusals), needs=("operator",)),
    "bad_out": Check(checks.of_operator(conformance_calls.check_bad_out), needs=("operator", "out")),
    "backends": Check(checks.of_operator(conformance_calls.check_backends), needs=("operator",)),
    "explain": Check(checks.of_operator(conformance_calls.check_explain), needs=("operator",)),
    "threads": Check(checks.threads),
    "determinism": Check(checks.determinism),
    "drawn": Check(check_drawn, GPU, each_dtype=True, needs=("explains",)),
    "graph_replay": Check(checks.of_calls(conformance.check_graph_replay), GPU),
    "side_stream": Check(checks.of_calls(conformance.check_side_stream), GPU),
    "current_device": Check(checks.of_calls(conformance.check_current_device_unchanged), GPU),
    "second_device": Check(checks.of_calls(conformance.check_second_device), GPU, gpus=2),
}


@dataclass(frozen=True)
class Trial:
    """One check of one subject on one kind of device, ``"cpu"`` or ``"cuda"``; calling it makes the check.

    With a planted ``fault``, the check has to find it.
    """

    subject: Subject
    check: str
    device: str
    fault: Planted | None = None

    def __call__(self) -> None:
        """Raises AssertionError if the operator lacks the property, or the check does not find the fault."""
        run, device = CHECKS[self.check].run, torch.device(self.device)
        if self.fault is None:
            run(self.subject, device)
            return
        each = CHECKS[self.check].each_dtype
        dtypes = checks.dtypes_of(self.subject, self.check) if each else self.subject.dtypes[:1]
        refused = [self._refused(dtype, device) for dtype in dtypes]
        if not any(refused):
            raise AssertionError(f"{self.subject.name}: the planted {self.fault.name} changes nothing in any case")

    def _refused(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether the check finds the fault in a dtype; False if the fault changes no result in it."""
        fault, one = self.fault, replace(self.subject, dtypes=(dtype,), laid_out_dtypes=(dtype,))
        if fault is None:
            raise ValueError("no fault is planted")
        try:
            CHECKS[self.check].run(_with_fault(one, fault), device)
        except AssertionError:
            return True
        if _fault_shows(one, fault, device):
            raise AssertionError(f"{one.name}: {self.check} does not refuse the planted {fault.name}, {dtype}")
        return False


def battery(*subjects: Subject) -> list[ParameterSet]:
    """The tests of operators for ``pytest.mark.parametrize``: a :class:`Trial` for each subject, check, dtype, device.

    Raises:
        ValueError: a declaration without cases or a reference, with an unknown check or without a reason; or two
            declarations of one name.
    """
    names = [subject.name for subject in subjects]
    if len(set(names)) < len(names):
        raise ValueError(f"battery: expected subjects of different names, got {names}; `title` tells them apart")
    return [param for subject in subjects for param in _tests(_valid(subject))]


def _valid(subject: Subject) -> Subject:
    if not subject.cases:
        raise ValueError(f"battery: {subject.name}: expected at least one case")
    if subject.reference is None and not hasattr(subject.operator, "reference"):
        raise ValueError(f"battery: {subject.name}: expected a reference, for the operator brings none")
    faults = {fault.name for fault in (*GENERAL, *subject.planted)}
    unknown = sorted(set(subject.inapplicable) - set(CHECKS) - faults)
    if unknown:
        raise ValueError(f"battery: {subject.name}: {unknown} are no checks; there are {[*CHECKS, *sorted(faults)]}")
    if not all(reason.strip() for reason in subject.inapplicable.values()):
        raise ValueError(f"battery: {subject.name}: expected a reason for each check that does not apply")
    unknown = sorted({fault.found_by for fault in subject.planted} - set(CHECKS))
    if unknown:
        raise ValueError(f"battery: {subject.name}: faults are to be found by {unknown}; there are {list(CHECKS)}")
    return subject


def _tests(subject: Subject) -> Iterator[ParameterSet]:
    for name, check in CHECKS.items():
        reason = subject.inapplicable.get(name) or check.lacks(subject)
        for device in check.devices:
            for dtype in checks.dtypes_of(subject, name) if check.each_dtype and not reason else (None,):
                one = subject if dtype is None else replace(subject, dtypes=(dtype,), laid_out_dtypes=(dtype,))
                words = [subject.name, name, *([_name(dtype)] if dtype else []), device]
                yield _param(Trial(one, name, device), words, reason)
    for fault in (*GENERAL, *subject.planted):
        check = CHECKS[fault.found_by]
        given = subject.inapplicable
        reason = given.get(fault.name) or given.get(fault.found_by) or check.lacks(subject)
        # A fault of the error has to be refused in each dtype, for each has another allowance; others in any.
        each = fault.found_by == "float64_error" and not reason
        for device in GPU if fault.gpu else check.devices:
            for dtype in checks.dtypes_of(subject, fault.found_by) if each else (None,):
                one = subject if dtype is None else replace(subject, dtypes=(dtype,), laid_out_dtypes=(dtype,))
                words = [subject.name, "planted", fault.name, *([_name(dtype)] if dtype else []), device]
                yield _param(Trial(one, fault.found_by, device, fault), words, reason)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _param(trial: Trial, words: list[str], reason: str) -> ParameterSet:
    import pytest

    marks: list[Any] = []
    if trial.device == "cuda":
        gpus = CHECKS[trial.check].gpus
        marks.append(pytest.mark.gpu if gpus == 1 else pytest.mark.gpu(count=gpus))
    if reason:
        marks.append(pytest.mark.skip(reason=f"does not apply: {reason}"))
    return pytest.param(trial, id="-".join(words), marks=marks)


def _with_fault(subject: Subject, fault: Planted) -> Subject:
    """The subject with a fault planted in its operator."""
    wrong = fault.plant(subject.operator)
    reference = subject.reference or subject.expected
    return replace(subject, operator=wrong, reference=reference, overload=subject.registered(), title=subject.name)


def _fault_shows(subject: Subject, fault: Planted, device: torch.device) -> bool:
    """Whether the fault changes the result of any declared case."""
    wrong = _with_fault(subject, fault)
    for dtype, case in itertools.product(subject.dtypes, subject.cases):
        for seed in (0, 1):
            tensors = subject.make(case, dtype, device, seed)
            got, good = wrong.call(case)(*tensors), subject.call(case)(*tensors)
            if got.shape != good.shape or not bool(same_bits(got, good)):
                return True
    return False
