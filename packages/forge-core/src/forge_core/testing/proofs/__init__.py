"""Proofs: what was shown of each kernel on a GPU, bound to what ran there.

    declare      what there is to prove: kernels, their operators, their tests
    definitions  digests of tests, samples, bounds and the policy, whatever they are called
    calls        a call as text, and the plan that is made for it
    code         PTX and launch geometry, compiled without a GPU
    evidence     all of that as it lies here
    execute      one chunk of a proof in a process of its own, with `observe` and `measure` inside it
    journal      what each test of a chunk showed, as it ends
    runner       which chunks are needed, the state after each, the record at the end (`merge`)
    record       docs/records/<gpu>/proof.json.gz
    check        whether what lies here is what was proven; needs no GPU
    table        the state as a table

A package takes part by a module ``proofs`` beside the benchmark that it declares; ``docs/proofs.md`` tells how.
"""

from __future__ import annotations

from forge_core.testing.proofs.declare import Kernel, Subject, Week, week_of

__all__ = ["Kernel", "Subject", "Week", "week_of"]
