"""One battery for all steps of the learning path: what each claims about itself, and about its task."""

from __future__ import annotations

import difflib
import re
import time

import pytest
from lanes import exhaustive, exhaustive_unless, thorough_unless
from path_steps import LESSONS, run_of

from harness.model.discovery import discover
from harness.model.lesson import Lesson, Mistake, edited
from harness.studies.learn.checking import check
from harness.studies.learn.figures import FIGURES
from harness.studies.learn.pictures import PICTURES, draw
from harness.studies.learn.predictions import JudgedPrediction
from harness.studies.learn.report import counted_table
from harness.studies.learn.step_run import run_step
from scripts.path_pages import TIMES, pages_with_times, predicted_us, shown_table, times_table
from scripts.recording.path_record import path_record

MOST_CHANGED, MOST_CODE, FEWEST_MISTAKES = 59, 110, 5
MOST_SECONDS = 5.0
MISTAKES = [
    pytest.param(number, mistake, id=f"{number}-{mistake.name}")
    for number, lesson in LESSONS.items()
    for mistake in lesson.task.mistakes
]
textual = pytest.mark.compiles(False)
each_step = pytest.mark.parametrize("number", LESSONS)
each_step_that_runs = pytest.mark.parametrize("number", thorough_unless(lambda number: number in "56", LESSONS))
"""Of those that compile, the default lane runs the two that compile fastest."""


def code(lesson: Lesson, file: str = "kernel.cu") -> list[str]:
    """Lines of code of a step's file, without comments and what indents them."""
    text = (lesson.folder / file).read_text()
    comment = "#" if file.endswith(".py") else "//"
    bare = text if comment == "#" else re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    lines = (line.partition(comment)[0].strip() for line in bare.splitlines())
    return [line for line in lines if line]


def changed(lesson: Lesson, before: Lesson, file: str) -> int:
    """Lines of code that the step adds or alters."""
    return sum(line.startswith("+ ") for line in difflib.ndiff(code(before, file), code(lesson, file)))


@textual
@each_step
@pytest.mark.parametrize("file", ["kernel.cu", "kernel_numba.py"])
def test_it_is_small_and_differs_in_few_lines_from_the_one_before(number: str, file: str) -> None:
    lesson = LESSONS[number]
    assert len(code(lesson, file)) <= MOST_CODE
    if lesson.follows is not None:
        assert 0 < changed(lesson, LESSONS[lesson.follows], file) <= MOST_CHANGED


@textual
@each_step
def test_its_page_has_all_parts(number: str) -> None:
    lesson = LESSONS[number]
    title = lesson.page.splitlines()[0]
    assert title == f"# {lesson.number}. {lesson.title}"
    for part in ("## What changes", "## Predict", "## Your task", "<!-- counted -->", "(picture.svg)"):
        assert part in lesson.page or (part == "## What changes" and lesson.follows is None), part
    assert (lesson.folder / "picture.svg").read_text().startswith("<svg")
    assert lesson.picture in PICTURES


@textual
@each_step
def test_its_task_stands_before_what_need_not_be_read(number: str) -> None:
    headings = re.findall(r"^## (.*)", LESSONS[number].page, re.MULTILINE)
    task = headings.index("Your task")
    assert not {"Published figures", "Read on", "A worked row", "Worked rows", "A worked example"} & {*headings[:task]}


@textual
def test_causes_of_time_are_shown_from_the_step_on_that_teaches_their_terms() -> None:
    explained = [number for number, lesson in LESSONS.items() if number.isdigit() and lesson.explains_time]
    assert all(term in LESSONS[explained[1]].page for term in ("**SMs**", "*wavefronts*", "**request**"))
    assert explained == ["1", *(number for number in LESSONS if number.isdigit() and int(number) >= 6)]


@textual
@each_step
def test_its_task_differs_from_the_solution_and_has_enough_wrong_ones(number: str) -> None:
    task = LESSONS[number].task
    assert len({mistake.name for mistake in task.mistakes}) == len(task.mistakes) >= FEWEST_MISTAKES
    texts = {edited(LESSONS[number].solution, mistake.edits) for mistake in task.mistakes}
    assert len(texts) == len(task.mistakes)
    assert LESSONS[number].solution not in texts | {LESSONS[number].task_file}
    assert all(line.startswith("//") for line in LESSONS[number].task_file.split("\n\n")[0].splitlines())


@textual
@each_step
def test_its_figures_can_be_counted(number: str) -> None:
    lesson = LESSONS[number]
    limits = (limit.figure for limit in lesson.task.limits)
    for figure in (lesson.prediction.figure, *lesson.figures, *limits):
        assert figure.kind in FIGURES


@textual
def test_steps_are_numbered_without_gaps_and_follow_each_other() -> None:
    main = [number for number in LESSONS if number.isdigit()]
    assert main == [str(number + 1) for number in range(len(main))]
    assert [LESSONS[number].follows for number in main] == [None, *main[:-1]]
    assert {lesson.follows for lesson in LESSONS.values()} - {None} <= set(LESSONS)


def test_its_variants_are_not_registered() -> None:
    assert not [variant.name for variant in discover().registry if variant.name.startswith("path-")]


@each_step_that_runs
def test_both_languages_are_right_and_move_the_bytes_that_are_claimed(number: str) -> None:
    lesson, run = LESSONS[number], run_of(number)
    claim = lesson.claim(lesson.problem)
    for language in ("CUDA", "Numba"):
        counted = run.runs[language]
        assert counted.verdict in ("pass", "undecided"), counted.reason
        execution = counted.counted.execution
        assert (execution.read_bytes, execution.write_bytes) == (claim.read_bytes, claim.write_bytes), language


@each_step_that_runs
def test_the_answer_to_its_prediction_is_the_counted_figure_and_no_slip_is(number: str) -> None:
    lesson, counted = LESSONS[number], run_of(number).prediction.counted
    assert counted > 0
    assert JudgedPrediction(lesson.prediction, counted, counted).is_right
    for slip, _ in lesson.prediction.slips:
        judged = JudgedPrediction(lesson.prediction, slip, counted)
        assert not judged.is_right
        assert f"{round(counted):,}" not in str(slip)


@each_step_that_runs
def test_the_table_of_its_page_is_what_is_counted(number: str) -> None:
    assert shown_table(LESSONS[number].page) == counted_table(run_of(number)), "run scripts/path_pages.py"


@pytest.mark.thorough
def test_the_predicted_times_of_the_pages_are_those_of_today() -> None:
    times = {number: predicted_us(lesson) for number, lesson in LESSONS.items() if number.isdigit()}
    pages = pages_with_times(LESSONS)
    assert len(pages) == 2
    for page in pages:
        assert TIMES.findall(page.read_text()) == [f"\n{times_table(times, path_record())}\n\n"], (
            "run scripts/path_pages.py"
        )
    assert times["9"] < times["5"] < min(times[number] for number in "678"), "step 9 overtakes step 5"


@pytest.mark.thorough
def test_a_step_of_another_dtype_is_compared_on_the_sizes_of_the_step_before() -> None:
    run = run_step(LESSONS["10"], LESSONS)
    assert run.before is LESSONS["9"] and run.before_dtype == "float32" and run.why is not None
    assert run.why.result.fast.problem == LESSONS["10"].problem
    assert run.why.result.slow.problem == LESSONS["9"].problem
    assert run.value("before", run.lesson.prediction.figure) == 0
    headline = run.why.report.paragraphs()[0]
    assert isinstance(headline, str)
    for words in ("step-9: batch 1, ", "32, float32", "; step-10: batch 1, "):
        assert words in " ".join(headline.split())


@each_step_that_runs
def test_its_solution_is_accepted_and_its_task_is_not(number: str) -> None:
    lesson = LESSONS[number]
    accepted = check(lesson, lesson.solution, "solution.cu", step=lambda _: None)
    assert accepted.solved, accepted.text


@pytest.mark.parametrize(("number", "mistake"), MISTAKES[:1])
def test_a_wrong_solution_is_answered(number: str, mistake: Mistake) -> None:
    answered(number, mistake)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("number", "mistake"), MISTAKES[1:])
def test_every_wrong_solution_is_answered(number: str, mistake: Mistake) -> None:
    answered(number, mistake)


def answered(number: str, mistake: Mistake) -> None:
    """Hold the answer to a wrong solution against the words that it needs."""
    lesson = LESSONS[number]
    result = check(lesson, edited(lesson.solution, mistake.edits), "wrong.cu", step=lambda _: None)
    assert not result.solved
    assert mistake.answer in result.text, result.text
    assert "Hint: " in result.text, result.text
    assert "kernel.cu" not in result.text


@pytest.mark.parametrize("number", exhaustive(LESSONS))
def test_the_file_of_its_task_is_rejected(number: str) -> None:
    lesson = LESSONS[number]
    assert not check(lesson, lesson.task_file, "task.cu", step=lambda _: None).solved


@pytest.mark.parametrize("number", exhaustive_unless(lambda number: number == "1", LESSONS))
def test_it_runs_and_draws_its_picture_in_time(number: str) -> None:
    lesson = LESSONS[number]
    drawn = draw(lesson, run_of(number).runs["CUDA"].counted)  # compiles what the next run needs
    began = time.process_time()
    run = run_step(lesson, LESSONS, explain=False)
    assert draw(lesson, run.runs["CUDA"].counted) == drawn == (lesson.folder / "picture.svg").read_text()
    assert time.process_time() - began < 2 * MOST_SECONDS  # of two cores
