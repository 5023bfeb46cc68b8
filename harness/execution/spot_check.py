"""Answers checked at a few places, where the whole of them would keep the oracle busy for minutes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.execution.accuracy import worst_ratio
from harness.execution.question import ANY_KERNEL, Question
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, operation_of
from harness.model.problem import BaseProblem

WHOLE_FLOPS = 4e9
"""Up to here the oracle answers everything: about a second."""


def choose_spots(problem: BaseProblem, inputs: Mapping[str, Any]) -> tuple[Question, ...]:
    """The whole of a small problem; of a large one the parts that its operation chooses.

    `inputs` are arrays, or what gives a part of itself as an array does: `DrawnTensor`.
    """
    parts = operation_of(problem).parts(problem, WHOLE_FLOPS)
    return tuple(Question.pose(problem, inputs, part) for part in parts)


@dataclass(frozen=True)
class SpotCheck:
    """What all spots together came to."""

    reason: str | None
    """What is wrong first, and where; None where nothing is."""
    error_over_budget: float
    """The largest over the spots, of the main output."""
    error_over_expected: float = 0.0
    """Largest ratio of error to what is expected of a correct kernel, over the spots and all outputs."""


def check_spots(
    spots: Sequence[Question], outputs: Mapping[str, np.ndarray], numerics: Numerics = ANY_KERNEL
) -> SpotCheck:
    """Hold outputs against the oracle at every spot, rounded where `numerics` says."""
    worst, reason, over_expected = 0.0, None, 0.0
    for spot in spots:
        accuracy = spot.hold(outputs, numerics)
        ratio = accuracy.main.error_over_budget
        worst = ratio if math.isnan(ratio) or not worst > ratio else worst
        over_expected = worst_ratio((over_expected, accuracy.error_over_expected))
        if accuracy.reason is not None and reason is None:
            reason = accuracy.reason if spot.part is WHOLE else f"{spot.part.name}: {accuracy.reason}"
    return SpotCheck(reason, worst, over_expected)
