"""Runs a step: its kernels and those of the step before, with all counters, and the comparison of their times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.run_settings import DEFAULT_SETTINGS, RunSettings
from harness.model.lesson import Figure, Lesson
from harness.model.problem import BaseProblem
from harness.model.variant import Variant
from harness.studies.learn.checking import counting_executor
from harness.studies.learn.figures import CountedRun, count
from harness.studies.learn.predictions import JudgedPrediction
from harness.studies.learn.steps import cuda_variant, numba_variant
from harness.support.errors import SandboxError

if TYPE_CHECKING:
    from harness.execution.protocol import Executor
    from harness.text.study_result import StudyResult


@dataclass(frozen=True)
class KernelRun:
    """A run of one language's kernels of a step."""

    variant: Variant
    counted: CountedRun
    verdict: str
    reason: str | None
    """Why the verdict is not `pass`."""


@dataclass(frozen=True)
class StepRun:
    """What a step shows."""

    lesson: Lesson
    before: Lesson | None
    """The step that it is compared with; None for the first, or if that step supports neither the problem nor the
    same with another dtype."""
    runs: Mapping[str, KernelRun]
    """By column of the table: `before`, `CUDA` and `Numba`."""
    prediction: JudgedPrediction
    why: StudyResult[Any] | None
    """The predicted difference in time between the two steps; None if there is no step before."""

    @property
    def before_dtype(self) -> str | None:
        """The dtype with which the step before ran, if it does not support that of this step; else None."""
        if "before" not in self.runs:
            return None
        ran_with = self.runs["before"].counted.problem.to_fields().get("dtype")
        return None if ran_with == self.lesson.problem.to_fields().get("dtype") else ran_with

    @property
    def figures(self) -> tuple[Figure, ...]:
        """The rows of the table."""
        return (self.lesson.prediction.figure, *self.lesson.figures)

    def value(self, column: str, figure: Figure) -> float | None:
        """A figure of one column; None if that did not run."""
        run = self.runs.get(column)
        return None if run is None else count(figure, run.counted)

    @property
    def passed(self) -> bool:
        """Whether both kernels of the step are right."""
        return all(run.verdict == "pass" for column, run in self.runs.items() if column != "before")


def run_step(
    lesson: Lesson,
    lessons: Mapping[str, Lesson],
    predicted: float | None = None,
    settings: RunSettings = DEFAULT_SETTINGS,
    explain: bool = True,
    step: Callable[[str], None] = lambda name: None,
) -> StepRun:
    """Run the step's kernels in both languages, and the CUDA kernels of the step before.

    `explain`: whether to predict the difference in time, as `why` does. `step` is called with what runs. Raises
    whatever planning, compiling and running raise.
    """
    problem = lesson.problem
    executor = counting_executor(replace(settings, arch=lesson.arch))
    before = None if lesson.follows is None else lessons.get(lesson.follows)
    earlier_problem = None if before is None else problem_before(before, problem)
    variants = {"CUDA": cuda_variant(lesson), "Numba": numba_variant(lesson)}
    questions = dict.fromkeys(variants, Question.draw(problem, lesson.regime, settings.seed))
    if before is None or earlier_problem is None:
        before = None
    else:
        variants = {"before": cuda_variant(before), **variants}
        questions["before"] = (
            questions["CUDA"]
            if earlier_problem == problem
            else Question.draw(earlier_problem, lesson.regime, settings.seed)
        )
    runs = {}
    for column, variant in variants.items():
        step(variant.name)
        runs[column] = _run(variant, questions[column], executor)
    counted = count(lesson.prediction.figure, runs["CUDA"].counted)
    judged = JudgedPrediction(lesson.prediction, predicted, counted)
    why = None
    if explain and before is not None:
        step("predicted times")
        why = _why(before, questions["before"].problem, lesson)
    return StepRun(lesson, before, runs, judged, why)


def _run(variant: Variant, question: Question, executor: Executor) -> KernelRun:
    done = attempt(variant, question.problem, executor, question=question, power_in_full=False)
    done.raise_error()
    assert done.plan is not None and done.execution is not None
    return KernelRun(variant, CountedRun(question.problem, done.plan, done.execution), done.verdict, done.reason)


def problem_before(before: Lesson, problem: BaseProblem) -> BaseProblem | None:
    """The problem on which the step before runs: this one or, if it supports only another dtype, the same with that."""
    fields = {"dtype": before.problem.to_fields().get("dtype")}
    if before.supports(problem) is None:
        return problem
    if before.operation != problem.operation or fields["dtype"] is None:
        return None
    other = type(problem).from_fields(problem.to_fields() | fields)
    return other if before.supports(other) is None else None


def _why(before: Lesson, earlier_problem: BaseProblem, now: Lesson) -> StudyResult[Any] | None:
    """`why` of the slower against the faster; None if one of them does not run on the modelled GPU."""
    from harness.studies.calls import why

    first, second = (replace(cuda_variant(lesson), name=f"step-{lesson.number}") for lesson in (now, before))
    dtype = None if earlier_problem == now.problem else earlier_problem.to_fields()["dtype"]
    try:
        return why(first, second, now.problem, other_dtype=dtype, device="emulator", slower_first=True)
    except SandboxError:
        return None
