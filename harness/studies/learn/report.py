"""Renders the path as text: the list of steps, and what a step shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any

from harness.model.discovery import REPOSITORY_ROOT
from harness.model.lesson import Lesson
from harness.studies.learn.checking import CheckResult
from harness.studies.learn.figures import shown
from harness.studies.learn.progress_file import Progress
from harness.studies.learn.step_run import StepRun
from harness.text.report import NOTE_WIDTH, Paragraph, Report, Table, Title

COLUMNS = ("before", "CUDA", "Numba")
FIGURE_KEYS = ("step", "figure", "unit", *COLUMNS)
LIST_KEYS = (
    "step", "name", "title", "idea", "ran", "predicted", "prediction_right", "prediction_near", "checks", "solved"
)  # fmt: skip
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
COUNTED, END_OF_COUNTED = "<!-- counted -->", "<!-- end of counted -->"
"""Comments around the table of a page."""
TASK = "## Your task"
"""Heading of the section that ends what a terminal shows."""
_SECTION = re.compile(r"^(?=## )", re.MULTILINE)
_PLACE = re.compile(r"[^\s(]*/(?=kernel\.cu)")
_COMMENT = re.compile(r"^<!--.*-->\n\n?", re.MULTILINE)
_LARGER = re.compile(r"\s+Add\s+--heads\s+\d+\.$")
_PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]*\)\n?", re.MULTILINE)


def page_before(lesson: Lesson) -> str:
    """The step's page up to what was counted, for a terminal: without its title, links and pictures."""
    text = _plain(lesson.page.partition(COUNTED)[0])
    return text.split("\n", 1)[1].strip() if text.startswith("# ") else text.strip()


def page_after(lesson: Lesson) -> str:
    """The page from what was counted to the task, which comes last on a terminal, and the names of further sections."""
    first, *sections = _SECTION.split(_plain(lesson.page.partition(END_OF_COUNTED)[2]))
    shown = [first]
    while sections and not shown[-1].startswith(TASK):
        shown.append(sections.pop(0))
    names = ", ".join(text.partition("\n")[0].removeprefix("## ") for text in sections)
    parts = [text.strip() for text in shown]
    if names:
        parts.append(f"Further on the page, {_place(lesson.folder / 'README.md')}: {names}.")
    return "\n\n".join(part for part in parts if part)


def _plain(text: str) -> str:
    return _LINK.sub(r"\1", _PICTURE.sub("", _COMMENT.sub("", text)))


def heading(lesson: Lesson) -> str:
    """Number and title."""
    return f"{'Step' if lesson.number.isdigit() else 'Side path'} {lesson.number}: {lesson.title}"


def list_report(lessons: Mapping[str, Lesson], progress: Progress, program: str) -> Report:
    """The steps with the learner's progress."""

    def paragraphs() -> list[Paragraph]:
        cells = []
        for number, lesson in lessons.items():
            step = progress.of(number)
            wrong = "nearly" if step.prediction_near else "wrong"
            prediction = {None: "", True: "right", False: wrong}[step.prediction_right]
            task = "solved" if step.solved else f"{step.checks} tried" if step.checks else ""
            cells.append([number, lesson.name, lesson.idea, "yes" if step.ran else "", prediction, task])
        solved = sum(progress.of(number).solved for number in lessons)
        table = Table(
            ("step", "name", "idea", "ran", "prediction", "task"), cells, (True, False, False, False, False, False)
        )
        return [
            "From the softmax of the definition to FlashAttention-3, one idea a step. No GPU is needed.",
            table,
            f"{solved} of {len(lessons)} tasks solved; progress is kept in {progress.path}.",
        ]

    def notes() -> list[str]:
        following = next((number for number in lessons if not progress.of(number).solved), next(iter(lessons)))
        return [
            f"{program} learn {following}: read and run step {following}. {program} learn task {following}: write its "
            f"task into the current folder. {program} learn check {following} FILE: check your solution."
        ]

    def record(number: str) -> dict[str, Any]:
        lesson, step = lessons[number], progress.of(number)
        own = {"step": number, "name": lesson.name, "title": lesson.title, "idea": lesson.idea}
        return {**own, **{key: getattr(step, key) for key in LIST_KEYS[4:]}}

    return Report(
        paragraphs=paragraphs,
        notes=notes,
        records=lambda: ([record(number) for number in lessons], LIST_KEYS),
        document=lambda: {"progress": str(progress.path), "steps": [record(number) for number in lessons]},
    )


def step_report(run: StepRun, picture: Path | None, program: str) -> Report:
    """What a step shows after its page."""
    lesson = run.lesson

    def paragraphs() -> list[Paragraph]:
        parts: list[Paragraph] = [
            Title(heading(lesson)),
            _filled(f"Prediction. {lesson.prediction.question}"),
            _filled(run.prediction.answer),
            _table(run),
            *_wrong(run),
        ]
        if run.why is not None:
            parts += _times(run)
        return parts

    def notes() -> list[str]:
        found = [f"Counted on the emulator: {lesson.problem.headline}. Bytes are 32-byte sectors, before any cache."]
        if run.why is not None:
            found.append("Times are predicted for an H200 from the counted work, not measured: see docs/why.md.")
            if lesson.explains_time:
                slower, faster = (name.replace("-", " ") for name in run.why.result.names)
                found.append(
                    f"`where` is a line of kernel.cu of {slower} if the cost is positive, and of {faster} if negative."
                )
        if run.before is not None and run.before_dtype is not None:
            found.append(f"Step {run.before.number} supports {run.before_dtype} only, and ran with that.")
        if picture is not None:
            found.append(f"Picture of this run: {picture}")
        found.append(f"Kernel: {_place(lesson.folder / 'kernel.cu')}; task: {program} learn task {lesson.number}")
        return found

    def record(index: int) -> dict[str, Any]:
        figure = run.figures[index]
        values = {column: run.value(column, figure) for column in COLUMNS}
        return {"step": lesson.number, "figure": figure.name, "unit": figure.unit, **values}

    def document() -> dict[str, Any]:
        return {
            "step": lesson.number,
            "name": lesson.name,
            "title": lesson.title,
            "question": lesson.prediction.question,
            "predicted": run.prediction.predicted,
            "counted": run.prediction.counted,
            "prediction_right": None if run.prediction.predicted is None else run.prediction.is_right,
            "answer": run.prediction.answer,
            "figures": [record(index) for index in range(len(run.figures))],
            "verdicts": {each.variant.name: each.verdict for each in run.runs.values()},
            "picture": None if picture is None else str(picture),
            "why": None if run.why is None else run.why.to_dict(),
        }

    return Report(
        paragraphs=paragraphs,
        notes=notes,
        records=lambda: ([record(index) for index in range(len(run.figures))], FIGURE_KEYS),
        document=document,
    )


def check_report(result: CheckResult, following: Lesson | None, program: str) -> Report:
    """The answer to a solution."""
    record = {"step": result.lesson.number, "solved": result.solved, "text": result.text}
    further = f"Next: {program} learn {following.number}" if following is not None and result.solved else ""
    text = f"{'Solved' if result.solved else 'Not yet'}. {result.text}"
    return Report(
        paragraphs=lambda: [text if "\n" in text else _filled(text)],
        notes=lambda: [further],
        records=lambda: ([record], tuple(record)),
        document=lambda: record,
    )


def _place(path: Path) -> Path:
    """A file of a step: in a checkout relative to its root, in an installed package in full."""
    is_checkout = (REPOSITORY_ROOT / "pyproject.toml").is_file()
    return path.relative_to(REPOSITORY_ROOT) if is_checkout and path.is_relative_to(REPOSITORY_ROOT) else path


def _times(run: StepRun) -> list[Paragraph]:
    """The predicted times of the step and of the one before, with the causes of the difference if the step has them.

    What `why` advises for the slower of the two is left out: the other step is the advice.
    """
    assert run.why is not None and run.before is not None
    if run.lesson.explains_time:
        return [_of_the_step(part) for part in run.why.report.paragraphs() if part][1:-1]
    found = run.why.result
    times = dict(zip(found.names, (found.slow_time.seconds, found.fast_time.seconds), strict=True))
    now, before = (f"{1e6 * times[f'step-{each.number}']:,.1f} us" for each in (run.lesson, run.before))
    return [f"Predicted time: {now}; step {run.before.number}: {before}."]


def _of_the_step(part: Paragraph) -> Paragraph:
    """A paragraph of `why` for a step, whose problem is given.

    kernel.cu stands without a folder, since the notes name it, and no larger problem is suggested.
    """
    if isinstance(part, str):
        return _LARGER.sub("", _PLACE.sub("", part))
    if isinstance(part, Table):
        return replace(part, cells=[[_PLACE.sub("", cell) for cell in line] for line in part.cells])
    return part


def _filled(text: str) -> str:
    return fill(text, NOTE_WIDTH, break_on_hyphens=False)


def counted_table(run: StepRun) -> str:
    """The table of figures as Markdown, for the step's page."""
    return _table(run).text(markdown=True)


def _table(run: StepRun) -> Table:
    dtype = f", {run.before_dtype}" if run.before_dtype else ""
    before = [] if run.before is None else [f"step {run.before.number}{dtype}"]
    headers = ["counted", *before, f"step {run.lesson.number}", "Numba twin", "unit"]
    columns = [column for column in COLUMNS if column in run.runs]
    cells = [
        [figure.name, *(shown(run.value(column, figure)) for column in columns), figure.unit] for figure in run.figures
    ]
    return Table(headers, cells, (False, *(True for _ in columns), False))


def _wrong(run: StepRun) -> list[str]:
    return [
        f"{each.variant.name}: {each.verdict}: {each.reason}"
        for each in run.runs.values()
        if each.verdict not in ("pass", "undecided")
    ]
