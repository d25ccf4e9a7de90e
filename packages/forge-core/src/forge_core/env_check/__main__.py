"""`python -m forge_core.env_check`."""

from __future__ import annotations

import sys

from forge_core.env_check.report import main

sys.exit(main())
