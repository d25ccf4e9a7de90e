"""Messages about processes that failed."""

from __future__ import annotations


def how_it_ended(status: int, printed: str) -> str:
    """A process's exit status, or minus its signal, and the last line that it printed."""
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return f"{how}: {lines[-1]}" if lines else how
