"""Checks answers at a few sample places of a problem for which the oracle would take minutes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.execution.judging.accuracy import worst_ratio
from harness.execution.judging.question import ANY_KERNEL, Question
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, operation_of
from harness.model.problem import BaseProblem

WHOLE_FLOPS = 4e9
"""Up to this many FLOP the oracle computes the whole answer, in about a second."""


def choose_spots(
    problem: BaseProblem, inputs: Mapping[str, Any], whole_flops: float | None = None
) -> tuple[Question, ...]:
    """One question for the whole of a small problem, or one for each sample part that the operation chooses.

    `inputs` are arrays, or objects that can be sliced like arrays: `DrawnTensor`. The oracle computes about
    `whole_flops`, with a few parts as the minimum; None for `WHOLE_FLOPS`.
    """
    parts = operation_of(problem).parts(problem, WHOLE_FLOPS if whole_flops is None else whole_flops)
    return tuple(Question.pose(problem, inputs, part) for part in parts)


@dataclass(frozen=True)
class SpotCheck:
    """The combined result of all sample places."""

    reason: str | None
    """The first thing that is wrong, with its place; None if nothing is."""
    error_over_budget: float
    """Largest ratio of error to budget of the main output over all places."""
    error_over_expected: float = 0.0
    """Largest ratio of error to expected error over all places and outputs."""


def check_spots(
    spots: Sequence[Question], outputs: Mapping[str, np.ndarray], numerics: Numerics = ANY_KERNEL
) -> SpotCheck:
    """Compare outputs with the oracle at every sample place, with the tolerance of `numerics`."""
    worst, reason, over_expected = 0.0, None, 0.0
    for spot in spots:
        accuracy = spot.check(outputs, numerics)
        ratio = accuracy.main.error_over_budget
        worst = ratio if math.isnan(ratio) or not worst > ratio else worst
        over_expected = worst_ratio((over_expected, accuracy.error_over_expected))
        if accuracy.reason is not None and reason is None:
            reason = accuracy.reason if spot.part is WHOLE else f"{spot.part.name}: {accuracy.reason}"
    return SpotCheck(reason, worst, over_expected)
