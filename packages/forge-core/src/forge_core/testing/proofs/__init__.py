"""Proofs: what was shown of each kernel on a GPU, bound to the sources that it was shown for.

    declare   what there is to prove: kernels, their sources, their tests          (read without a GPU)
    execute   one chunk of a proof in a process of its own, with `observe` and `measure` inside it
    journal   what each test of a chunk showed, as it ends
    runner    which chunks are needed, the state after each, the record at the end
    record    docs/records/<gpu>/proof.json.gz
    check     whether the sources here have a proof; needs neither a GPU nor the CuTe DSL
    table     the state as a table for README

A package takes part by a module ``proofs`` beside the benchmark that it declares; ``docs/proofs.md`` tells how.
"""

from __future__ import annotations

from forge_core.testing.proofs.check import assert_proven
from forge_core.testing.proofs.declare import Kernel, Subject, Week, week_of

__all__ = ["Kernel", "Subject", "Week", "assert_proven", "week_of"]
