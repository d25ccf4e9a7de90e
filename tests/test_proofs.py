"""The records of proofs, as far as they are true whatever lies here; what has changed since, `nox -s proofs` tells."""

from __future__ import annotations

import pytest
import torch

from forge_core.proofs.check import incomplete, inconsistencies, records_in
from forge_core.proofs.declare import discover
from forge_core.testing.tolerances import half_ulp

#: How many times the largest error that a GPU showed a derived bound may be: bounds add up roundings as if all had one
#: sign, and errors add up like random signs.
MULTIPLE = 64


@pytest.fixture(scope="module")
def records(root):
    return records_in(root / "docs" / "records")


def test_the_records_are_whole_and_sealed(records):
    assert records
    for gpu, record in records.items():
        assert [str(finding) for finding in inconsistencies(gpu, record)] == []
        assert {proof.name: incomplete(proof) for proof in record.proofs if incomplete(proof)} == {}


SUBJECTS = [subject for week in discover() for subject in week.subjects if subject.floor is not None]


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.operator.schema.qualified)
def test_no_derived_bound_is_far_above_the_errors_that_a_gpu_showed(records, subject):
    """Where it could be, the policy would see nothing: a bound 1000 times as large fails.

    In the dtypes that are computed in; what is rounded to 16 bits has an error of half an ulp, however small its bound.
    The largest bound and the largest error are of different elements, so one dtype has to show that the formula, which
    is the same for both, is tight; and in each dtype some element has to come near to what the policy allows it.
    """
    bounds, above, shares = {}, {}, {}
    for args in subject.measured(torch.device("cpu")):
        dtype = str(args[0].dtype).removeprefix("torch.")
        floor = torch.as_tensor(subject.floor(*args))
        bounds[dtype] = max(bounds.get(dtype, 0.0), float(floor.max()))
        wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
        above[dtype] = above.get(dtype, True) and bool((floor > half_ulp(subject.expected(*wide), args[0].dtype)).all())
    proofs = [
        p for record in records.values() for p in record.proofs if p.operator == subject.operator.schema.qualified
    ]
    ratios = {}
    for dtype in ("float32", "float64"):
        errors = [proof.errors[dtype] for proof in proofs if dtype in proof.errors]
        # Half an ulp of a result is what rounding it costs; a kernel that was never further off has a bound to match.
        rounding = torch.finfo(getattr(torch, dtype)).eps / 2
        shown = max((error.absolute for error in errors), default=0.0)
        ratios[dtype] = bounds[dtype] / max(shown, rounding)
        share = max((error.share for error in errors), default=0.0)
        if above.get(dtype):  # what is allowed is the bound then, not the rounding of the result
            shares[dtype] = share
        assert shown <= rounding or MULTIPLE * share >= 1, f"{dtype}: no error above {share:.3g} of what is allowed"
    # Where terms cancel, the largest error is far below the largest bound; an element that came near its own shows it.
    ratios |= {f"{dtype} by element": 1 / share for dtype, share in shares.items() if share > 0}
    assert min(ratios.values()) <= MULTIPLE, f"bounds are {ratios} times the largest errors"
