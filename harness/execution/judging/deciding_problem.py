"""Searches for a problem on which a comparison is decisive, if a right answer to the given one proves nothing.

Candidates are tried on a few rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.execution.judging.power import SAMPLE_FLOPS
from harness.execution.judging.question import Question
from harness.execution.planning.variant_calls import refusal_of
from harness.model.operation import draw_inputs, operation_of
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.support.errors import SandboxError


def deciding_problem(variant: Variant, problem: BaseProblem, regime: str, seed: int) -> str:
    """Describe options that make the comparison decisive for this variant, or that none were found.

    Tries the other regimes, float32, and then shorter lengths, as far as the variant supports them.
    """
    for option, other, its_regime in _candidates(problem, regime):
        try:
            if refusal_of(variant, other) is None and _decides(variant, other, its_regime, seed):
                return f"{option} would be conclusive"
        except SandboxError:
            continue  # not a valid problem, such as a mask that does not fit a shorter length
    return "no other regime, dtype or shorter length that was tried would be conclusive"


def _candidates(problem: BaseProblem, regime: str) -> Iterator[tuple[str, BaseProblem, str]]:
    operation = operation_of(problem)
    plainest, *others = operation.regimes
    if regime != plainest:
        yield f"--regime {plainest}", problem, plainest
    fields = problem.to_fields()
    shorter = [] if regime != plainest else list(operation.shorter(problem))
    for option, other in shorter:
        yield option, other, regime
    if fields.get("dtype", "float32") != "float32":
        yield "--dtype float32", type(problem).from_fields({**fields, "dtype": "float32"}), regime
    for name in others:
        if name != regime:
            yield f"--regime {name}", problem, name
    if not shorter:
        for option, other in operation.shorter(problem):
            yield f"--regime {plainest} {option}", other, plainest


def _decides(variant: Variant, problem: BaseProblem, regime: str, seed: int) -> bool:
    inputs = draw_inputs(problem, regime, seed)
    part = operation_of(problem).parts(problem, SAMPLE_FLOPS)[-1]
    return Question.pose(problem, inputs, part).power(variant.numerics).decides
