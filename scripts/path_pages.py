#!/usr/bin/env python3
"""Write the tables and the pictures of the learning path's pages anew, and the list of steps in docs/path.md.

    .venv/bin/python scripts/path_pages.py        # all steps
    .venv/bin/python scripts/path_pages.py 3 4    # some

Counted tables and predicted times come from the emulator, measured ones from the record that scripts/record_path.py
makes on a GPU; without the record, nothing is shown as measured. Tests hold the pages against both.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.model.lesson import Lesson  # noqa: E402
from harness.studies.calls import why  # noqa: E402
from harness.studies.learn.pictures import draw  # noqa: E402
from harness.studies.learn.report import counted_table  # noqa: E402
from harness.studies.learn.step_run import StepRun, run_step  # noqa: E402
from harness.studies.learn.steps import cuda_variant, find_lessons  # noqa: E402
from scripts.recording.path_record import PathRecord, path_record  # noqa: E402
from scripts.recording.path_tables import (  # noqa: E402
    PREDICTED,
    measured_section,
    published_table,
    shown_us,
    times_rows,
)

SITE, OVERVIEW = ROOT / "docs" / "path", ROOT / "docs" / "path.md"
LIST = re.compile(r"(?<=<!-- steps -->\n).*?(?=<!-- end of steps -->)", re.DOTALL)
CONTENTS = re.compile(r"(?<=```{toctree}\n:hidden:\n\n)[\w/-]+(?:\n[\w/-]+)*")
TIMES = re.compile(r"(?<=<!-- times -->\n).*?(?=<!-- end of times -->)", re.DOTALL)
RUN_TIMES = re.compile(r"(?<=<!-- run times -->\n).*?(?=<!-- end of run times -->)", re.DOTALL)
MEASURED = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- end of measured -->)", re.DOTALL)
COUNTED = re.compile(r"(?<=<!-- counted -->\n).*?(?=<!-- end of counted -->)", re.DOTALL)


def shown_table(page: str) -> str:
    """The table that stands in a page."""
    (table,) = COUNTED.findall(page)
    return str(table).strip("\n")


def predicted_us(lesson: Lesson) -> float:
    """The time that `why` predicts for a step's CUDA kernels, in microseconds."""
    return 1e6 * float(why(cuda_variant(lesson), problem=lesson.problem, device="emulator").result.slow_time.seconds)


def times_table(times: Mapping[str, float], record: PathRecord | None = None) -> str:
    """The times of the main path in microseconds by step: a row of predicted ones, and the record's rows."""
    measured = times_rows(find_lessons(), record)
    predicted = ["us predicted, 256 keys" if measured else "us", *map(shown_us, times.values())]
    lines = [" | ".join(row) for row in (["step", *times], ["---", *("---:" for _ in times)], predicted, *measured)]
    table = "\n".join(f"| {line} |" for line in lines)
    note = f"\n\nMeasured on an {record.where_and_when}, with empty caches." if record is not None and measured else ""
    return table + note


def predicted_cells(run: StepRun) -> list[str]:
    """Predicted times of the step before, if there is one, and of the step, as cells of a table."""
    lesson, before = run.lesson, run.before
    if before is None or run.why is None:
        return [*([] if before is None else [shown_us(None)]), shown_us(predicted_us(lesson))]
    found = run.why.result
    seconds = dict(zip(found.names, (found.slow_time.seconds, found.fast_time.seconds), strict=True))
    return [shown_us(1e6 * seconds[f"step-{each.number}"]) for each in (before, lesson)]


def shown_predictions(page: str) -> list[str]:
    """The cells of predicted times that stand in a page's section of measured ones."""
    row = re.search(rf"^\| *{PREDICTED}[^|]*\|(.*)\|[^|]*\|[^|]*\|$", page, re.MULTILINE)
    return [] if row is None else [cell.strip() for cell in row[1].split("|")]


def pages_with_times(lessons: Mapping[str, Lesson]) -> list[Path]:
    """The pages that show the predicted times."""
    pages = [OVERVIEW, *(lesson.folder / "README.md" for lesson in lessons.values())]
    return [page for page in pages if TIMES.search(page.read_text())]


def site_page(lesson: Lesson) -> str:
    """The page of the site that shows a step's README.md."""
    return f"```{{include}} ../../{lesson.folder.relative_to(ROOT)}/README.md\n```\n"


def overview(text: str, lessons: Mapping[str, Lesson]) -> str:
    """docs/path.md with the list of steps and of their pages."""
    rows = [
        f"| {number} | [{lesson.title}](../{lesson.folder.relative_to(ROOT)}/README.md) | {lesson.idea} |"
        for number, lesson in lessons.items()
    ]
    table = "\n".join(["", "| step | page | what changes |", "|---|---|---|", *rows, "", ""])
    contents = "\n".join([*(f"path/{lesson.folder.name}" for lesson in lessons.values()), "path/writing-a-step"])
    return CONTENTS.sub(contents, LIST.sub(lambda _: table, text))


def write_site(lessons: Mapping[str, Lesson]) -> None:
    """Write the list of steps, and a page of the site for each."""
    OVERVIEW.write_text(overview(OVERVIEW.read_text(), lessons))
    for lesson in lessons.values():
        (SITE / f"{lesson.folder.name}.md").write_text(site_page(lesson))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the tables and the pictures of the path anew.")
    parser.add_argument("steps", nargs="*", help="only these steps")
    lessons, record = find_lessons(), path_record()
    write_site(lessons)
    OVERVIEW.write_text(RUN_TIMES.sub(lambda _: f"\n{published_table(record)}\n\n", OVERVIEW.read_text()))
    predicted = {number: predicted_us(lesson) for number, lesson in lessons.items() if number.isdigit()}
    times = times_table(predicted, record)
    for page in pages_with_times(lessons):
        page.write_text(TIMES.sub(lambda _: f"\n{times}\n\n", page.read_text()))
    for number in parser.parse_args().steps or lessons:
        lesson = lessons[number]
        run = run_step(lesson, lessons, explain=record is not None)
        page = lesson.folder / "README.md"
        table = f"\n{counted_table(run)}\n\n"
        measured = "" if record is None else measured_section(lesson, lessons, record, predicted_cells(run))
        text = COUNTED.sub(lambda _, table=table: table, page.read_text())
        page.write_text(MEASURED.sub(lambda _, measured=measured: measured, text))
        (lesson.folder / "picture.svg").write_text(draw(lesson, run.runs["CUDA"].counted))
        print(f"step {number}: {(lesson.folder / 'picture.svg').stat().st_size:,} bytes of picture")
