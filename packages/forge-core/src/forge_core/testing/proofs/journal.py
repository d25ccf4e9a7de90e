"""What each test showed: a file that gets a line as each test ends, so that an interrupted run leaves what it had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forge_core.files import write_atomically

__all__ = ["append", "keep_passed", "outcomes"]


def append(path: Path, test: str, told: dict[str, Any]) -> None:
    """Adds what a test showed: outcome, reason, launched (kernel -> calls), seconds."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"test": test, **told}) + "\n")


def outcomes(path: Path) -> dict[str, dict[str, Any]] | None:
    """What was shown by each test; None where there is no file.

    Of several lines on a test the last one counts.  A last line that was cut off is none.
    """
    if not path.is_file():
        return None
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    told = [json.loads(line) for line in whole.splitlines()]
    return {one.pop("test"): one for one in told}


def keep_passed(path: Path) -> list[str]:
    """Leaves in the file, which is made where there is none, only the tests that passed; returns these."""
    passed = {test: told for test, told in (outcomes(path) or {}).items() if told["outcome"] == "passed"}
    write_atomically(path, "".join(json.dumps({"test": test, **told}) + "\n" for test, told in passed.items()))
    return sorted(passed)
