"""One case, start to end: inputs drawn, kernels run, outputs held against the oracle and, if so asked, one property."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from harness.execution.accuracy import Accuracy, measure_accuracy, untouched
from harness.execution.planning import make_plan
from harness.execution.protocol import Executor
from harness.execution.tiles import parse_tile, tile_of, with_tile
from harness.model.case import Case
from harness.model.variant import Variant
from harness.operations.attention.error_budget import error_budget
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from harness.operations.attention.properties import PROPERTIES, Arrays, Trial
from harness.studies.fuzz.builds import ROWS
from harness.studies.fuzz.finding import (
    ERROR,
    NO_COMPILATION,
    NO_PLAN,
    SUSPICIOUS,
    WRONG_ANSWER,
    WRONG_LSE,
    Answer,
    Finding,
)
from harness.studies.fuzz.pattern import describe_pattern
from harness.support.errors import CompileError, KernelFault, PlanError, SandboxError, UnsupportedProblem, UsageError
from harness.support.exception_place import where_and_what

if TYPE_CHECKING:
    from harness.emulator.plan_sanitizer import EmulatorSanitizer


def examine(case: Case, variant: Variant, executor: Executor, sanitizer: EmulatorSanitizer | None = None) -> Answer:
    """Run `variant` on `case`, under the sanitizer too where there is one. What goes wrong is the answer's finding.

    Raises `UsageError` for a regime or a property that does not exist.
    """
    inputs = case.inputs()
    if case.check is not None and case.check not in PROPERTIES:
        raise UsageError(f"no property {case.check!r}; there are {', '.join(PROPERTIES)}")
    if case.tile is not None:
        variant = with_tile(variant, parse_tile(case.tile))

    def run(problem: Problem, inputs: Arrays) -> Arrays:
        return executor.run(problem, make_plan(variant, problem), inputs).outputs

    try:
        if sanitizer is not None:
            found = sanitizer.check(variant, case.problem, make_plan(variant, case.problem), inputs)
            if found:
                return Answer(Finding(found[0].kind, found[0].message))
        outputs = run(case.problem, inputs)
        answer = _hold(case.problem, inputs, outputs, variant)
        if answer.finding is None and case.check is not None and _applies(case.check, variant):
            trial = Trial(case.problem, inputs, outputs, run, variant.numerics)
            reason = PROPERTIES[case.check].violation(trial)
            if reason is not None:
                return Answer(Finding(case.check, reason), error_over_budget=answer.error_over_budget)
        return answer
    except UnsupportedProblem as refusal:
        return Answer(refusal=refusal.reason)
    except KernelFault as fault:
        if fault.kind == "interrupted":
            raise KeyboardInterrupt from fault
        return Answer(Finding(fault.kind, str(fault)), broken=executor.device.kind == "gpu")
    except PlanError as error:
        return Answer(Finding(NO_PLAN, str(error)))
    except CompileError as error:
        return Answer(Finding(NO_COMPILATION, str(error)))
    except SandboxError as error:
        return Answer(Finding(ERROR, str(error)))
    except Exception as error:
        return Answer(Finding(ERROR, where_and_what(error)))


def _applies(check: str, variant: Variant) -> bool:
    """Who does not claim the same bits every time is not held to it."""
    return variant.deterministic or not PROPERTIES[check].same_bits


def _hold(problem: Problem, inputs: Arrays, outputs: Arrays, variant: Variant) -> Answer:
    """Against the oracle."""
    reference = attention(problem, inputs)
    budget = error_budget(problem, inputs, reference, variant.numerics)
    accuracy = measure_accuracy(outputs, reference, budget)
    ratio = _worse(accuracy.error_over_budget, accuracy.lse_error_over_budget)
    if accuracy.suspicious:
        return Answer(_suspicion(accuracy), error_over_budget=ratio)
    if accuracy.passed:
        return Answer(error_over_budget=ratio)
    reason, first = accuracy.reason or "", accuracy.first_wrong
    if first is None:  # not even the shape is right
        return Answer(Finding(WRONG_ANSWER, reason), error_over_budget=ratio)
    output = outputs[first.output]
    wrong = accuracy.wrong[first.output]
    answer = reference.O if first.output == "O" else reference.lse
    tile = tile_of(variant, problem) or {}
    pattern = describe_pattern(
        problem, first.output, output.astype(np.float64), answer, wrong, untouched(output), tile.get(ROWS)
    )
    kind = WRONG_ANSWER if first.output == "O" else WRONG_LSE
    return Answer(Finding(kind, reason, first, int(wrong.sum()), wrong.size, pattern), error_over_budget=ratio)


def _suspicion(accuracy: Accuracy) -> Finding:
    ratio = _worse(accuracy.error_over_expected, accuracy.lse_error_over_expected)
    return Finding(SUSPICIOUS, f"within its budget, but {ratio:.3g} x the error that is expected", accuracy.worst)


def _worse(of_O: float, of_lse: float | None) -> float:
    """The larger one; NaN is worse than anything."""
    ratios = [of_O] if of_lse is None else [of_O, of_lse]
    return math.nan if any(math.isnan(ratio) for ratio in ratios) else max(ratios)
