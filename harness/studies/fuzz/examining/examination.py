"""Examines one case: draws inputs, runs kernels, checks outputs against the oracle and, if requested, one property."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from harness.execution.attempt import Attempt, attempt
from harness.execution.isolation.variants import prefetch_replies
from harness.execution.judging.accuracy import Accuracy, Element, OutputAccuracy
from harness.execution.judging.kept_inputs import INPUT_WRITTEN
from harness.execution.judging.question import Question
from harness.execution.planning.tiles import parse_tile, with_tile
from harness.execution.planning.variant_calls import make_plan
from harness.execution.protocol import Executor
from harness.model.array_types import Arrays
from harness.model.cases.case import Case
from harness.model.cases.property import SANITIZER, Trial
from harness.model.operation import Tolerance, operation_of
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.studies.fuzz.finding import (
    CRASH,
    ERROR,
    NO_COMPILATION,
    NO_PLAN,
    NUMERICS,
    SECOND_RUN,
    SUSPICIOUS,
    TIMEOUT,
    WRONG_ANSWER,
    Answer,
    Finding,
)
from harness.studies.fuzz.shrinking.pattern import MOST_FLOPS, describe_pattern, recognised
from harness.support.errors import (
    CompileError,
    KernelFault,
    PlanError,
    PlannerDied,
    PlannerHung,
    SandboxError,
    UnsupportedProblem,
    UsageError,
)
from harness.support.exception_place import place_in_harness

if TYPE_CHECKING:
    from harness.emulator.plan_sanitizer import EmulatorSanitizer


def examine(case: Case, variant: Variant, executor: Executor, sanitizer: EmulatorSanitizer | None = None) -> Answer:
    """Run `variant` on `case`, under the sanitizer too if given. Failures become the answer's finding.

    All errors of a variant are raised as `SandboxError`, since its code runs in another process and its kernels on an
    executor. Any other exception is an error of the harness and becomes the answer's fault.

    Raises `UsageError` for an unknown regime or property.
    """
    try:
        return _examine(case, variant, executor, sanitizer)
    except SandboxError:
        raise
    except Exception as error:
        return Answer(fault=place_in_harness(error))


def _examine(case: Case, variant: Variant, executor: Executor, sanitizer: EmulatorSanitizer | None) -> Answer:
    problem, inputs = case.problem, case.inputs()
    properties = operation_of(problem).properties
    if case.check not in (None, SANITIZER, *properties):
        raise UsageError(f"no property {case.check!r}; there are {', '.join(properties)}")
    isolated, wanted = variant, None if case.tile is None else parse_tile(case.tile)
    prefetch_replies(isolated, problem, wanted)
    if wanted is not None:
        variant = with_tile(variant, wanted)
    if sanitizer is not None:
        finding = _sanitizer_finding(sanitizer, variant, problem, inputs)
        if finding is not None:
            return Answer(finding)
    question = Question.pose(problem, inputs)
    question.begin_tolerance(variant.numerics)
    done = attempt(variant, problem, executor, question=question, holds_bytes=False, power_in_full=False)
    answer = _answer_of(done, question, on_gpu=executor.device.is_gpu)
    ends_here = answer.finding is not None or answer.refusal is not None or answer.fault is not None
    if ends_here or case.check in (None, SANITIZER):
        return answer
    assert case.check is not None
    held = properties[case.check]
    if held.same_bits and not variant.deterministic:
        return answer  # a variant that does not declare determinism need not repeat its bits
    if held.invariance is not None and held.invariance not in variant.invariant_to:
        return answer
    assert done.execution is not None

    def run(other: BaseProblem, values: Arrays) -> Arrays:
        prefetch_replies(isolated, other, wanted)
        return executor.run(other, make_plan(variant, other, executor.device.arch), values).outputs

    def tolerance(values: Arrays) -> Mapping[str, Tolerance]:
        posed = question if values is inputs else Question.pose(problem, values)
        return posed.tolerance(variant.numerics)

    try:
        reason = held.violation(Trial(problem, inputs, done.execution.outputs, run, tolerance))
    except UnsupportedProblem as refusal:
        return Answer(refusal=refusal.reason)
    except SandboxError as error:
        return _answer_to_error(error, on_gpu=executor.device.is_gpu)
    return answer if reason is None else Answer(Finding(case.check, reason), error_over_budget=answer.error_over_budget)


def _sanitizer_finding(
    sanitizer: EmulatorSanitizer, variant: Variant, problem: BaseProblem, inputs: Arrays
) -> Finding | None:
    """The sanitizer's first finding. Errors that prevent it from running are reported by the run itself."""
    try:
        plan = make_plan(variant, problem, sanitizer.executor.device.arch)
        found = sanitizer.check(variant, problem, plan, inputs)
    except (SandboxError, UnsupportedProblem):
        return None
    return Finding(found[0].kind, found[0].message) if found else None


def _answer_of(done: Attempt, question: Question, on_gpu: bool) -> Answer:
    if done.refusal is not None:
        return Answer(refusal=done.refusal)
    if done.error is not None:
        return _answer_to_error(done.error, on_gpu)
    assert done.accuracy is not None
    if done.numerics_failure is not None and done.accuracy.passed:
        return Answer(Finding(NUMERICS, done.numerics_failure), error_over_budget=done.accuracy.error_over_budget)
    if done.second_run_failure is not None:
        ratio = done.accuracy.error_over_budget
        return Answer(Finding(SECOND_RUN, done.second_run_failure), error_over_budget=ratio)
    return _answer_of_accuracy(done, question, done.accuracy)


def _answer_to_error(error: Exception, on_gpu: bool) -> Answer:
    if not isinstance(error, SandboxError):
        return Answer(fault=place_in_harness(error))
    if isinstance(error, KernelFault):
        return Answer(Finding(error.kind, str(error)), broken=on_gpu and error.kind != INPUT_WRITTEN)
    kinds = ((PlannerDied, CRASH), (PlannerHung, TIMEOUT), (PlanError, NO_PLAN), (CompileError, NO_COMPILATION))
    kind = next((kind for of, kind in kinds if isinstance(error, of)), ERROR)
    return Answer(Finding(kind, str(error)))


def _answer_of_accuracy(done: Attempt, question: Question, accuracy: Accuracy) -> Answer:
    ratio = accuracy.error_over_budget
    if accuracy.suspicious:
        over = accuracy.error_over_expected
        reason = f"within its budget, but {over:.3g} times the expected error"
        return Answer(Finding(SUSPICIOUS, reason, accuracy.worst_output.worst), error_over_budget=ratio)
    if accuracy.passed:
        weak = done.power is not None and not done.power.decides
        nearest = done.power.nearest if done.power is not None and weak else None
        return Answer(error_over_budget=ratio, undecided=nearest)
    worst_output = accuracy.worst_output
    reason, first = worst_output.reason or "", worst_output.first_wrong
    if first is None:  # the shape is wrong
        return Answer(Finding(WRONG_ANSWER, reason), error_over_budget=ratio)
    kind = WRONG_ANSWER if worst_output is accuracy.main else f"wrong {first.output}"
    finding = Finding(kind, reason, first, int(worst_output.wrong.sum()), worst_output.wrong.size)
    try:
        pattern, equals = _pattern_of(done, question, worst_output, first)
        finding = dataclasses.replace(finding, pattern=pattern, equals=equals)
    except Exception as error:  # the answer is wrong, even if its description fails
        return Answer(finding, error_over_budget=ratio, fault=f"describing what is wrong: {place_in_harness(error)}")
    return Answer(finding, error_over_budget=ratio)


def _pattern_of(
    done: Attempt, question: Question, worst_output: OutputAccuracy, first: Element
) -> tuple[str, str | None]:
    """Describe the pattern of the wrong elements, and the known error that they match, which is part of it."""
    assert done.execution is not None and done.accuracy is not None
    operation, problem, tile = operation_of(done.problem), done.problem, done.tile or {}
    got, answer = done.execution.outputs[first.output].astype(np.float64), question.answer[first.output]
    exact = first.output in question.exact_outputs  # which says what each element is
    pattern = (exact and worst_output.reason) or describe_pattern(
        operation.hints(problem, first.output),
        first.axes,
        got,
        answer,
        worst_output.wrong,
        worst_output.unwritten,
        tile.get(operation.tile_names.get("row", "")),
        is_main=worst_output is done.accuracy.main,
        has_features=bool(problem.features),
    )
    if problem.flops > MOST_FLOPS or worst_output.unwritten.any():
        return pattern, None
    mistakes = operation.known_mistakes(problem, question.inputs, tile.get(operation.tile_names.get("key", "")))
    allowed = question.tolerance(done.variant.numerics)[first.output].allowed
    equals = recognised(first.output, first.axes, got, answer, allowed, worst_output.wrong, mistakes)
    return (pattern if equals is None else f"{pattern}; {equals}"), equals
