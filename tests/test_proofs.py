"""The records of proofs, as far as they are true whatever lies here; what has changed since, `nox -s proofs` tells."""

from __future__ import annotations

import pytest
import torch

from forge_core.testing.proofs.check import incomplete, incredible, records_in
from forge_core.testing.proofs.declare import discover
from forge_core.testing.subject import bounds_of

#: How many times the largest error that a GPU showed a derived bound may be: bounds add up roundings as if all had one
#: sign, and errors add up like random signs.  The largest error of few samples differs by a factor of 3 from one order
#: of additions to another.
MULTIPLE = 128


@pytest.fixture(scope="module")
def records(root):
    return records_in(root / "docs" / "records")


def test_the_records_are_whole_and_sealed(records):
    assert records
    for gpu, record in records.items():
        assert [str(finding) for finding in incredible(gpu, record)] == []
        assert {proof.name: incomplete(proof) for proof in record.proofs if incomplete(proof)} == {}


SUBJECTS = [subject for week in discover() for subject in week.subjects if subject.floor is not None]


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.operator.schema.qualified)
def test_no_derived_bound_is_far_above_the_errors_that_a_gpu_showed(records, subject):
    """Where it could be, the policy would see nothing: a bound 1000 times as large fails.

    In the dtypes that are computed in; what is rounded to 16 bits has an error of half an ulp, however small its bound.
    """
    bounds = bounds_of(subject, torch.device("cpu"))
    proofs = [
        p for record in records.values() for p in record.proofs if p.operator == subject.operator.schema.qualified
    ]
    for dtype in ("float32", "float64"):
        shown = max((proof.errors[dtype].absolute for proof in proofs if dtype in proof.errors), default=0.0)
        # Half an ulp of a result is what rounding it costs; a kernel that was never further off has a bound to match.
        least = max(shown, torch.finfo(getattr(torch, dtype)).eps / 2)
        assert bounds[dtype] <= MULTIPLE * least, f"{dtype}: bound {bounds[dtype]:.3g}, largest error {shown:.3g}"
