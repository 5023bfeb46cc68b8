"""Attention's own answer and budget, held against outputs as every operation's are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.execution.accuracy import Accuracy, measure_accuracy
from harness.model.operation import Tolerance
from harness.operations.attention.error_budget import Budget
from harness.operations.attention.oracle import Reference
from harness.operations.attention.problem import Problem


def hold(outputs: Mapping[str, np.ndarray], reference: Reference, budget: Budget) -> Accuracy:
    """O and, where it is there, lse."""
    tolerance = {"O": Tolerance(budget.O, budget.expected_O), "lse": Tolerance(budget.lse, budget.expected_lse)}
    return measure_accuracy(Problem().tensors, outputs, {"O": reference.O, "lse": reference.lse}, tolerance)
