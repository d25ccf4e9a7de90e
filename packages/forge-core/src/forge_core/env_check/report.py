"""The findings as text for people and as JSON for programs, and the program that prints them."""

from __future__ import annotations

import argparse
import dataclasses
import json

from forge_core.env_check.facts import Facts
from forge_core.env_check.findings import Finding, Level, diagnose

__all__ = ["as_json", "as_text", "healthy", "main"]


def healthy(findings: list[Finding]) -> bool:
    """Whether nothing that should work is broken."""
    return all(finding.level != Level.FAULT for finding in findings)


def as_text(findings: list[Finding]) -> str:
    """One line for each finding, its repair below it, and a verdict at the end."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:<8} {finding.topic:<9} {finding.message}")
        if finding.repair:
            lines.append(f"{'':<18} repair: {finding.repair}")
    faults = sum(finding.level == Level.FAULT for finding in findings)
    lines.append(
        "healthy" if not faults else f"broken: {faults} fault(s); each is followed by the command that repairs it"
    )
    return "\n".join(lines)


def as_json(facts: Facts, findings: list[Finding]) -> str:
    """Facts, findings and the verdict."""
    return json.dumps(
        {
            "healthy": healthy(findings),
            "findings": [dataclasses.asdict(finding) for finding in findings],
            "facts": dataclasses.asdict(facts),
        },
        indent=2,
    )


def main(argv: list[str] | None = None) -> int:
    """The program; 0 where all is well, with or without a GPU, and 1 where something is broken."""
    from forge_core.env_check.collect import collect

    parser = argparse.ArgumentParser(
        prog="python -m forge_core.env_check",
        description="Checks Python, torch, driver, GPUs, the CuTe DSL and the tools; compiles and runs one kernel.",
    )
    parser.add_argument("--json", action="store_true", help="print facts and findings as JSON")
    arguments = parser.parse_args(argv)
    facts = collect()
    findings = diagnose(facts)
    print(as_json(facts, findings) if arguments.json else as_text(findings))
    return 0 if healthy(findings) else 1
