"""A problem with its inputs, the answer to it, and how far off an answer may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness.measure.error_budget import Budget, error_budget
from harness.oracle import Reference, attention
from harness.problem import Problem


@dataclass(frozen=True)
class Question:
    """Worked out once for all variants."""

    problem: Problem
    """What is to be computed."""
    inputs: Mapping[str, np.ndarray]
    """Q, K and V."""
    reference: Reference
    """The oracle's answer."""
    budget: Budget
    """The error that each element may have."""

    @classmethod
    def pose(cls, problem: Problem, inputs: Mapping[str, np.ndarray]) -> Question:
        """Ask the oracle. Takes time with the square of the length."""
        reference = attention(problem, inputs)
        return cls(problem, inputs, reference, error_budget(problem, inputs, reference))
