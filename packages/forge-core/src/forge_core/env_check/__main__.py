"""`python -m forge_core.env_check`."""

from __future__ import annotations

from forge_core.env_check.doctor import doctor

doctor()
