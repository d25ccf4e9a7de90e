"""Benchmarks as declarations: cases, peers, traffic, and a reference that every contender has to match.

A week declares a :class:`Bench` and names it in the entry-point group ``forge.bench``; its suites stand in a
``suites.yaml`` beside it.  Declaring touches no GPU.  ``forge-cute bench`` runs, shows and reports.
"""

from __future__ import annotations

from forge_core.bench.declare import (
    CUDA_GPU,
    CUPY,
    LIGER,
    QUACK,
    TRITON,
    Bench,
    Case,
    OperatorBench,
    Package,
    Peer,
    Requirement,
    Traffic,
    compiled,
)

__all__ = [
    "CUDA_GPU",
    "CUPY",
    "LIGER",
    "QUACK",
    "TRITON",
    "Bench",
    "Case",
    "OperatorBench",
    "Package",
    "Peer",
    "Requirement",
    "Traffic",
    "compiled",
]
