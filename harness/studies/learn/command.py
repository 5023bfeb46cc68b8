"""`learn`: the path from the softmax of the definition to FlashAttention-3, one idea a step."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.model.operation import Operation
from harness.options.command import Command, add_fields_of, argument, option, program_name
from harness.options.exit_status import PASSED
from harness.options.output import add_report, check_output, conclude
from harness.options.request import Request
from harness.options.standard_streams import print_result
from harness.support.errors import UsageError

if TYPE_CHECKING:
    from harness.model.lesson import Lesson
    from harness.text.study_result import StudyResult

CALLS = "learn, learn STEP, learn task STEP, learn check STEP FILE or learn new-step NAME"


@dataclass(frozen=True, kw_only=True)
class LearnRequest(Request):
    """What the learner wants to see."""

    words: Sequence[str] = argument(
        "WORDS",
        "nothing: list the steps and your progress; STEP: read and run a step; task STEP: write its task into the "
        "current folder; check STEP FILE: check a solution; new-step NAME: write a step to start from",
        nargs="*",
    )
    predict: str | None = option(
        "NUMBER",
        "your prediction of the figure that the step asks for, such as 33MB or 1310720. Without this option, the "
        "command asks for the prediction if it runs in a terminal",
    )
    progress: Path | None = option(
        "FILE.json", "where your progress is kept (default: path.json in the folder of kept results)", type=Path
    )
    picture: Path | None = option(
        "FILE.svg", "where the step's picture is written (default: beside the file of progress)", type=Path
    )
    steps: Path | None = option("DIR", "a folder with steps of your own, named step_* or side_*", type=Path)


def run_learn(request: LearnRequest) -> int:
    """Run `learn`; the exit status."""
    words = [*request.words]
    if words and words[0] == "task":
        return _write_task(request, _after(words, 1)[0])
    if words and words[0] == "new-step":
        from harness.studies.learn.new_step import write_new_step

        print_result(write_new_step(_after(words, 1)[0], request.steps))
        return PASSED
    check_output(request.report.output, request.picture)
    if len(words) == 1:
        return _show_step(request, words[0])
    return conclude(request.report, learned(request))


def learned(request: LearnRequest) -> StudyResult[Any]:
    """The list of steps, what a step shows, or the answer to a solution."""
    from harness.studies.learn.progress_file import load_progress
    from harness.studies.learn.report import list_report
    from harness.studies.learn.steps import find_lessons, lesson_numbered
    from harness.text.study_result import StudyResult

    lessons = find_lessons(request.steps)
    if not lessons:
        raise UsageError("there are no steps here; add a folder of steps with --steps DIR")
    words = [*request.words]
    if not words:
        progress = load_progress(request.progress)
        return StudyResult(tuple(lessons.values()), list_report(lessons, progress, program_name()), passed=True)
    if words[0] == "check":
        number, file = _after(words, 2)
        return _check(request, lessons, lesson_numbered(number, lessons), file)
    if len(words) > 1:
        raise UsageError(f"learn {' '.join(words)}: write {CALLS}")
    return _run(request, lessons, lesson_numbered(words[0], lessons), request.predict)


def _run(
    request: LearnRequest, lessons: dict[str, Lesson], lesson: Lesson, predicted_text: str | None
) -> StudyResult[Any]:
    """Run a step, write its picture, and keep the progress."""
    from harness.studies.learn.pictures import draw
    from harness.studies.learn.predictions import read_prediction
    from harness.studies.learn.progress_file import load_progress
    from harness.studies.learn.report import step_report
    from harness.studies.learn.step_run import run_step
    from harness.support.file_replacement import replace_files
    from harness.support.progress import progress_bar
    from harness.text.study_result import StudyResult

    predicted = None if predicted_text is None else read_prediction(predicted_text)
    progress = load_progress(request.progress)
    with progress_bar(5) as bar:
        run = run_step(lesson, lessons, predicted, step=bar.step)
        bar.step("picture")
        svg = draw(lesson, run.runs["CUDA"].counted)
    judged = run.prediction
    is_right = None if predicted is None else judged.is_right
    progress = progress.after_run(lesson.number, predicted, is_right, judged.is_near)
    progress.save()
    picture = request.picture or progress.path.parent / f"path_{lesson.number}.svg"
    replace_files({picture: svg.encode()})
    return StudyResult(
        run,
        step_report(run, picture, program_name()),
        run.passed,
        pictures={lesson.picture: lambda suffix: _as_svg(svg, suffix)},
    )


def _as_svg(svg: str, suffix: str) -> bytes:
    if suffix != ".svg":
        raise UsageError(f"the picture of a step exists only as .svg, not as {suffix!r}")
    return svg.encode()


def _show_step(request: LearnRequest, number: str) -> int:
    from harness.studies.learn.predictions import read_prediction
    from harness.studies.learn.report import heading, page_after, page_before
    from harness.studies.learn.steps import find_lessons, lesson_numbered

    lessons = find_lessons(request.steps)
    lesson = lesson_numbered(number, lessons)
    predicted = request.predict
    if predicted is not None:
        read_prediction(predicted)  # before the page, so that a mistake is the only line
    is_read = request.report.format == "table" and request.report.output is None
    if is_read:
        print_result(f"{heading(lesson)}\n\n{page_before(lesson)}\n\n")
    if predicted is None and is_read and sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        predicted = _ask(lesson)
    status = conclude(request.report, _run(request, lessons, lesson, predicted))
    if is_read:
        print_result(f"\n{page_after(lesson)}\n")
    return status


def _ask(lesson: Lesson) -> str | None:
    """The learner's prediction; None for an empty line."""
    from harness.studies.learn.predictions import read_prediction

    print_result(f"Prediction. {lesson.prediction.question}\n")
    while True:
        try:
            text = input("Your prediction (Enter to skip): ").strip()
        except EOFError:
            return None
        if not text:
            return None
        try:
            read_prediction(text)
        except UsageError as error:
            print_result(f"{error}\n")
            continue
        return text


def _write_task(request: LearnRequest, number: str) -> int:
    from harness.studies.learn.steps import find_lessons, lesson_numbered
    from harness.support.file_replacement import replace_files

    lesson = lesson_numbered(number, find_lessons(request.steps))
    path = request.report.output or Path(f"path_{lesson.number}_{lesson.name.replace('-', '_')}.cu")
    if path.exists():
        raise UsageError(f"{path} is there already; remove it, or name another file with --output")
    check_output(path)
    replace_files({path: lesson.task_file.encode()})
    print_result(
        f"Wrote {path}. Its first lines say what to do. Check it with:\n"
        f"  {program_name()} learn check {lesson.number} {path}\n"
    )
    return PASSED


def _check(request: LearnRequest, lessons: dict[str, Lesson], lesson: Lesson, file: str) -> StudyResult[Any]:
    """Check a solution, and keep the progress."""
    from harness.studies.learn.checking import check_file
    from harness.studies.learn.progress_file import load_progress
    from harness.studies.learn.report import check_report
    from harness.support.progress import progress_bar
    from harness.text.study_result import StudyResult

    progress = load_progress(request.progress)
    with progress_bar(len(lesson.task.cases) + 1) as bar:
        result = check_file(lesson, Path(file), step=bar.step)
    progress.after_check(lesson.number, result.solved).save()
    following = next((each for each in lessons.values() if each.follows == lesson.number), None)
    report = check_report(result, following, program_name())
    return StudyResult(result, report, passed=result.solved)


def _after(words: list[str], count: int) -> list[str]:
    """The words after the first. Raises `UsageError` unless there are that many."""
    if len(words) != 1 + count:
        raise UsageError(f"learn {' '.join(words)}: write {CALLS}")
    return words[1:]


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `learn`."""
    add_fields_of(LearnRequest, parser, "words", "predict", "progress", "picture", "steps")
    add_report(parser)


COMMAND = Command(
    "learn",
    "learn how attention kernels work, step by step, from three-pass softmax to FlashAttention-3",
    add_options,
    LearnRequest,
    run_learn,
    learned,
    examples=(
        ("3 --predict 6400", "Read and run step 3, with your prediction."),
        ("task 3", "Write the task of step 3 into the current folder."),
        ("check 3 path_3_online.cu", "Check your solution."),
    ),
)
