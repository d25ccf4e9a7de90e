"""The command ``forge-cute doctor``."""

from __future__ import annotations

from forge_core.env_check.__main__ import doctor

__all__ = ["doctor"]
