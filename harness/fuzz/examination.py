"""One case, start to end: inputs drawn, kernels run, outputs held against the oracle and, if so asked, one property."""

from __future__ import annotations

import numpy as np

from harness.case import Case
from harness.errors import CompileError, KernelFault, PlanError, SandboxError, UnsupportedProblem, UsageError
from harness.exception_place import where_and_what
from harness.executors import Executor
from harness.fuzz.finding import (
    ERROR,
    NO_COMPILATION,
    NO_PLAN,
    WRONG_ANSWER,
    WRONG_LSE,
    Answer,
    Finding,
    WrongElement,
)
from harness.fuzz.pattern import describe_pattern
from harness.measure.accuracy import measure_accuracy, untouched, wrong_elements
from harness.measure.error_budget import Budget, error_budget
from harness.measure.properties import PROPERTIES, Arrays, Trial
from harness.oracle import Reference, attention
from harness.planning import make_plan
from harness.problem import Problem
from harness.variant import Variant


def examine(case: Case, variant: Variant, executor: Executor) -> Answer:
    """Run `variant` on `case`. Whatever goes wrong in the variant is the answer's finding.

    Raises `UsageError` for a regime or a property that does not exist.
    """
    inputs = case.inputs()
    if case.check is not None and case.check not in PROPERTIES:
        raise UsageError(f"no property {case.check!r}; there are {', '.join(PROPERTIES)}")

    def run(problem: Problem, inputs: Arrays) -> Arrays:
        return executor.run(problem, make_plan(variant, problem), inputs).outputs

    try:
        outputs = run(case.problem, inputs)
        answer = _hold(case.problem, inputs, outputs)
        if answer.finding is None and case.check is not None:
            reason = PROPERTIES[case.check].violation(Trial(case.problem, inputs, outputs, run))
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


def _hold(problem: Problem, inputs: Arrays, outputs: Arrays) -> Answer:
    """Against the oracle."""
    reference = attention(problem, inputs)
    budget = error_budget(problem, inputs, reference)
    accuracy = measure_accuracy(outputs, reference, budget)
    worst = max(
        (x for x in (accuracy.error_over_budget, accuracy.lse_error_over_budget) if x is not None),
        key=lambda ratio: np.inf if np.isnan(ratio) else ratio,
    )
    if accuracy.passed:
        return Answer(error_over_budget=worst)
    for output, kind in (("O", WRONG_ANSWER), ("lse", WRONG_LSE)):
        if output in outputs:
            finding = _describe(kind, accuracy.reason or "", problem, output, outputs[output], reference, budget)
            if finding is not None:
                return Answer(finding, error_over_budget=worst)
    # Not even the shape is right.
    return Answer(Finding(WRONG_ANSWER, accuracy.reason or ""), error_over_budget=worst)


def _describe(
    kind: str, reason: str, problem: Problem, name: str, output: np.ndarray, reference: Reference, budget: Budget
) -> Finding | None:
    """The first wrong element of one output and how all wrong ones lie; None where none is wrong."""
    expected, allowed = getattr(reference, name), getattr(budget, name)
    if output.shape != expected.shape:
        return None
    wrong = wrong_elements(output, expected, allowed)
    if not wrong.any():
        return None
    got = output.astype(np.float64)
    where = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    batch, head, row, *column = map(int, where)
    return Finding(
        kind=kind,
        reason=reason,
        first=WrongElement(
            output=name,
            batch=batch,
            head=head,
            row=row,
            column=column[0] if column else None,
            got=float(got[where]),
            expected=float(expected[where]),
            budget=float(allowed[where]),
        ),
        wrong=int(wrong.sum()),
        elements=wrong.size,
        pattern=describe_pattern(problem, name, got, expected, wrong, untouched(output)),
    )
