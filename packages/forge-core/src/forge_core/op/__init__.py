"""The operator helper: one declaration gives everything PyTorch knows of an operator (see ``operator``)."""

from __future__ import annotations

from forge_core.op.composite import Call, composite
from forge_core.op.declaration import Operator, operator
from forge_core.op.plan import Explanation, Plan, Variant
from forge_core.op.table import backend

__all__ = ["Call", "Explanation", "Operator", "Plan", "Variant", "backend", "composite", "operator"]
