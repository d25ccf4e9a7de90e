"""The command ``forge-cute doctor``: prints the findings as text or JSON."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from forge_core.cli import answers
from forge_core.env_check import facts as machine
from forge_core.env_check.findings import Finding, Level, diagnose


def healthy(findings: list[Finding]) -> bool:
    """Whether there is no fault."""
    return all(finding.level != Level.FAULT for finding in findings)


def as_text(findings: list[Finding]) -> str:
    """One line for each finding, its repair below it, and a verdict at the end."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:<8} {finding.topic:<9} {finding.message}")
        if finding.repair:
            lines.append(f"{'':<18} repair: {finding.repair}")
    faults = sum(finding.level == Level.FAULT for finding in findings)
    broken = f"broken: {faults} fault(s); each is followed by the command that repairs it"
    return "\n".join([*lines, broken if faults else "healthy"])


@click.command()
@answers
def doctor() -> tuple[dict[str, Any], list[str], int]:
    """Check this machine, and give the command that repairs each fault."""
    facts = machine.collect()
    findings = diagnose(facts)
    told = {"healthy": healthy(findings), "findings": findings, "facts": facts}
    return msgspec.to_builtins(told), [as_text(findings)], 0 if healthy(findings) else 1
