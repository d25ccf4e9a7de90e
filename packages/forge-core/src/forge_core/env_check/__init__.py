"""What this machine has, what is wrong with it, and the command that repairs each fault.

    python -m forge_core.env_check [--json]        also: forge-cute doctor, nox -s doctor

Three steps, each with one job: ``collect`` reads the machine and judges nothing, ``findings`` turns those facts into
findings and reads nothing, ``report`` prints them.  So every fault can be tested on a machine that does not have it.
Nothing here needs torch or the CuTe DSL to be imported: their absence is one of the things to find.
"""

from __future__ import annotations

from forge_core.env_check.facts import Distribution, Driver, Dsl, Facts, Gpu, KernelRun, Torch
from forge_core.env_check.findings import Finding, Level, diagnose

__all__ = [
    "Distribution",
    "Driver",
    "Dsl",
    "Facts",
    "Finding",
    "Gpu",
    "KernelRun",
    "Level",
    "Torch",
    "diagnose",
]
