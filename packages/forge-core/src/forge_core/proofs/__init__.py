"""Proofs: GPU validation records of kernels, bound to the launches and the PTX that were validated.

    declare      what there is to prove: kernels, their operators, their tests
    definitions  digests of tests, samples, bounds and the policy, independent of names
    calls        a call as text, and the plan that is made for it
    evidence     all that a proof binds to, recomputed from the checkout without a GPU
    execute      one chunk of a proof in a process of its own, with `observe` and `measure` inside it
    runner       which chunks are needed, their results, the record at the end (`merge`)
    record       docs/records/<gpu>/proof.json.gz
    check        whether the checkout is what was proven; needs no GPU
    results      docs/records/<gpu>/kernels.json: the kernels that benchmarks were measured on

A package takes part by a module ``proofs`` beside its benchmark: see ``docs/proofs.md``.
"""

from __future__ import annotations

from forge_core.proofs.declare import Kernel, Subject, Week, week_of

__all__ = ["Kernel", "Subject", "Week", "week_of"]
