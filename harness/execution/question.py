"""A problem with its inputs, the answer to it, and how far off an answer may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from harness.model.numerics import Numerics
from harness.operations.attention.error_budget import Budget, error_budget
from harness.operations.attention.oracle import Reference, attention
from harness.operations.attention.problem import Problem


@dataclass(frozen=True)
class Question:
    """A problem with its inputs and the answer, worked out once for all variants."""

    problem: Problem
    """What is to be computed."""
    inputs: Mapping[str, np.ndarray]
    """Q, K and V."""
    reference: Reference
    """The oracle's answer."""
    _budgets: dict[Numerics, Budget] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def pose(cls, problem: Problem, inputs: Mapping[str, np.ndarray]) -> Question:
        """Ask the oracle. Takes time with the square of the length."""
        return cls(problem, inputs, attention(problem, inputs))

    def budget(self, numerics: Numerics) -> Budget:
        """How far off an answer may be that rounds where `numerics` says. Worked out once for all that agree on it."""
        if numerics not in self._budgets:
            self._budgets[numerics] = error_budget(self.problem, self.inputs, self.reference, numerics)
        return self._budgets[numerics]
