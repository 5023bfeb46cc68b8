"""Checks a solution of a task: the first case that fails is the answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from harness.execution.attempt import Attempt, attempt
from harness.execution.judging.question import Question
from harness.execution.protocol import Executor, Sanitizer
from harness.execution.run_settings import DEFAULT_SETTINGS, RunSettings
from harness.model.lesson import Lesson, TaskCase
from harness.model.operation import draw_inputs
from harness.model.variant import Variant
from harness.studies.learn.figures import CountedRun, count, shown
from harness.studies.learn.steps import variant_of
from harness.support.errors import CompileError, UsageError

STEP_LIMIT = 2_000_000
"""Instructions per warp after which a solution counts as endless."""
GLOSSES = {
    "RAW": "a read after a write, with no wait between them",
    "WAR": "a write after a read, with no wait between them",
    "WAW": "a write after a write, with no wait between them",
}
"""Kinds of races in words."""
BUDGET, ITS_GLOSS = "off by more than their budget", " (the rounding error allowed)"


@dataclass(frozen=True)
class CheckResult:
    """The answer to a solution."""

    lesson: Lesson
    solved: bool
    text: str
    """What holds, or the case that fails, with a hint where the step has one."""


def check(
    lesson: Lesson, text: str, file: str, settings: RunSettings = DEFAULT_SETTINGS, step: Callable[[str], None] = print
) -> CheckResult:
    """Try the solution on every case of the task, then count its bounded figures.

    `file` is the name that messages give the text; `step` is called with each case in words.
    """
    settings = replace(settings, arch=lesson.arch, device="emulator", step_limit=settings.step_limit or STEP_LIMIT)
    try:
        kernels = lesson.cuda(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: {error}") from error
    solution = variant_of(lesson, "cupy", kernels, claimed=False)
    executors = _Executors(settings)
    for case in lesson.task.cases:
        step(case.about)
        question = Question.draw(case.problem, case.regime, case.seed)
        sanitizer = executors.sanitizer if case.sanitize else None
        done = attempt(
            solution, case.problem, executors.of(case), question=question, sanitizer=sanitizer, power_in_full=False,
            holds_bytes=False,
        )  # fmt: skip
        if (failure := _failure(done)) is not None:
            return CheckResult(lesson, False, _answer(lesson, case, done, _renamed(failure, file)))
    if lesson.task.limits:
        return _within_limits(lesson, solution, executors)
    return CheckResult(lesson, True, f"Your kernel is correct in all {len(lesson.task.cases)} cases.")


def check_file(
    lesson: Lesson, path: Path, settings: RunSettings = DEFAULT_SETTINGS, step: Callable[[str], None] = print
) -> CheckResult:
    """Check the solution in a file. Raises `UsageError` if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    return check(lesson, text, path.name, settings, step)


class _Executors:
    """Executors that are made on first use."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._made: dict[int, Executor] = {}
        self._sanitizer: Sanitizer | None = None

    def of(self, case: TaskCase) -> Executor:
        """The executor for a case."""
        from harness.emulator.executor import EmulatorExecutor

        if case.seed not in self._made:
            self._made[case.seed] = EmulatorExecutor(replace(self._settings, seed=case.seed))
        return self._made[case.seed]

    @property
    def sanitizer(self) -> Sanitizer:
        """The sanitizer."""
        from harness.emulator.plan_sanitizer import EmulatorSanitizer

        if self._sanitizer is None:
            self._sanitizer = EmulatorSanitizer(self._settings)
        return self._sanitizer

    @property
    def counter(self) -> Executor:
        """The executor that counts everything."""
        return counting_executor(self._settings)


def counting_executor(settings: RunSettings) -> Executor:
    """Return an emulator that also counts bank conflicts and instructions."""
    from harness.emulator.executor import EmulatorExecutor
    from harness.emulator.instruments import Instruments

    return EmulatorExecutor(settings, instruments=Instruments(bank_conflicts=True, instructions=True))


def _failure(done: Attempt) -> str | None:
    """What is wrong with a solution: races and unwritten memory come first, because wrong values follow from them."""
    if done.findings:
        kind = done.findings[0].kind
        gloss = next((f" ({text})" for name, text in GLOSSES.items() if kind.startswith(name)), "")
        return f"{kind}{gloss}: {done.findings[0].message}"
    return None if done.failure is None else done.failure.replace(BUDGET, BUDGET + ITS_GLOSS)


def _answer(lesson: Lesson, case: TaskCase, done: Attempt, failure: str) -> str:
    if isinstance(done.error, CompileError):
        return f"The file does not compile.\n{_without_warnings(failure)}"
    is_wrong_answer = done.error is None and not done.findings
    described = f"{case.about}: {failure}" if is_wrong_answer else failure
    hint = next((text for words, text in lesson.task.hints if words in described), None)
    inputs = "" if case.regime == "normal" else f", inputs `{case.regime}`"
    problem = f"{case.problem.headline}{inputs}"
    parts = [f"Fails with {case.about} ({problem}).", failure]
    return "\n".join([*parts, f"Hint: {hint}"] if hint else parts)


def _without_warnings(message: str) -> str:
    """What a compiler says without its warnings, which a hole in a task causes, too, and without its summary."""
    blocks = re.split(r"\n\s*\n", message)
    kept = [block for block in blocks if not re.match(r"\S+: warning |Remark: |\d+ (catastrophic )?errors? ", block)]
    return "\n\n".join(kept)


def _renamed(failure: str, file: str) -> str:
    """The failure with the learner's file in place of the name under which the step compiles it."""
    return re.sub(r"[^\s,]*\bkernel\.cu\b", lambda found: file, failure)


def _within_limits(lesson: Lesson, solution: Variant, executors: _Executors) -> CheckResult:
    plan = solution.plan(lesson.problem)
    inputs = draw_inputs(lesson.problem, lesson.regime, 0)
    run = CountedRun(lesson.problem, plan, executors.counter.run(lesson.problem, plan, inputs))
    for limit in lesson.task.limits:
        counted = count(limit.figure, run)
        if counted > limit.at_most:
            unit = f" {limit.figure.unit}" if limit.figure.unit else ""
            return CheckResult(
                lesson,
                False,
                f"Your kernel is correct in all {len(lesson.task.cases)} cases, but exceeds a bound.\n"
                f"{limit.figure.name}: {shown(counted)}{unit}; at most "
                f"{shown(limit.at_most)} on {lesson.problem.headline}.\nHint: {limit.advice}",
            )
    text = f"Your kernel is correct in all {len(lesson.task.cases)} cases and keeps within all bounds."
    return CheckResult(lesson, True, text)
