"""The problems of records, as their fields: of attention where they do not say of which operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.model.operation import DEFAULT_OPERATION, operation_named
from harness.model.problem import BaseProblem

OPERATION = "operation"
"""What names the operation among a problem's fields."""


def recorded_problem(fields: Mapping[str, Any]) -> BaseProblem:
    """The problem with these fields. Raises `ProblemError`, and `UsageError` where there is no such operation."""
    own = {name: value for name, value in fields.items() if name != OPERATION}
    return operation_named(fields.get(OPERATION, DEFAULT_OPERATION)).problem.from_fields(own)
