"""GPU validation records: which kernels passed on a GPU, bound to the launches and the PTX that passed.

    declare      the kernels of each package, its operators and its tests
    definitions  digests of test functions and declarations, independent of names
    calls        a call as text, and the launch that is planned for it
    evidence     all that a record binds to, recomputed from the checkout without a GPU
    record       docs/records/<gpu>/proof.json.xz
    check        whether the checkout still gives what was validated
    chunks       one process of a validation: its command and its result; `observe` and `measure` run inside it
    merge        from the results of a package's processes to its entries in the record
    runner       which processes are needed, running them, resuming after an interruption
    results      docs/records/<gpu>/kernels.json: the kernels that benchmarks were measured on

A package takes part by a module ``proofs`` beside its benchmark: see ``docs/proofs.md``.
"""

from __future__ import annotations

# Defined elsewhere: the digests of tests follow what a module named `proofs` defines, as a package's declarations.
from forge_core.proofs.declare import Kernel, Week, week_of
from forge_core.testing.subject import Subject

__all__ = ["Kernel", "Subject", "Week", "week_of"]
