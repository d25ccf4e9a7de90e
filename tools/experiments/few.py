"""The kernel under the experiment's names: see kernels/lines.py."""
from __future__ import annotations
from dataclasses import dataclass
from typing import Any
from forge_week0_transpose.configs import LinesConfig as FewConfig
from forge_week0_transpose.kernels.lines import build
