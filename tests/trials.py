"""Trials of properties with a function of NumPy in place of a kernel."""

from __future__ import annotations

from collections.abc import Callable

from harness.execution.judging.question import Question
from harness.model.array_types import Arrays
from harness.model.cases.property import Trial
from harness.model.numerics import Numerics
from harness.model.problem import BaseProblem


def trial_of(
    problem: BaseProblem,
    inputs: Arrays,
    kernel: Callable[..., Arrays],
    numerics: Numerics = Numerics(),  # noqa: B008
) -> Trial:
    """The trial of a kernel that declares `numerics`."""
    return Trial(
        problem,
        inputs,
        kernel(problem, inputs),
        kernel,
        lambda values: Question.pose(problem, values).tolerance(numerics),
    )
