#!/usr/bin/env python3
"""Write the counted tables and the pictures of the learning path's pages anew, and the list of steps in docs/path.md.

    .venv/bin/python scripts/path_pages.py        # all steps
    .venv/bin/python scripts/path_pages.py 3 4    # some

A test holds the tables against what is counted.
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
from harness.studies.learn.step_run import run_step  # noqa: E402
from harness.studies.learn.steps import cuda_variant, find_lessons  # noqa: E402

SITE, OVERVIEW = ROOT / "docs" / "path", ROOT / "docs" / "path.md"
LIST = re.compile(r"(?<=<!-- steps -->\n).*?(?=<!-- end of steps -->)", re.DOTALL)
CONTENTS = re.compile(r"(?<=```{toctree}\n:hidden:\n\n)[\w/-]+(?:\n[\w/-]+)*")
TIMES = re.compile(r"(?<=<!-- times -->\n).*?(?=<!-- end of times -->)", re.DOTALL)
COUNTED = re.compile(r"(?<=<!-- counted -->\n).*?(?=<!-- end of counted -->)", re.DOTALL)


def shown_table(page: str) -> str:
    """The table that stands in a page."""
    (table,) = COUNTED.findall(page)
    return str(table).strip("\n")


def predicted_us(lesson: Lesson) -> float:
    """The time that `why` predicts for a step's CUDA kernels, in microseconds."""
    return 1e6 * float(why(cuda_variant(lesson), problem=lesson.problem, device="emulator").result.slow_time.seconds)


def times_table(times: Mapping[str, float]) -> str:
    """The predicted times of the main path, in microseconds by step, as a table of two rows."""
    shown = (f"{time:,.0f}" if time >= 100 else f"{time:.1f}" for time in times.values())
    rows = ["step", *times], ["---", *("---:" for _ in times)], ["us", *shown]
    lines = [" | ".join(row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


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
    parser = argparse.ArgumentParser(description="Write the counted tables and the pictures of the path anew.")
    parser.add_argument("steps", nargs="*", help="only these steps")
    lessons = find_lessons()
    write_site(lessons)
    times = times_table({number: predicted_us(lesson) for number, lesson in lessons.items() if number.isdigit()})
    for page in pages_with_times(lessons):
        page.write_text(TIMES.sub(lambda _: f"\n{times}\n\n", page.read_text()))
    for number in parser.parse_args().steps or lessons:
        lesson = lessons[number]
        run = run_step(lesson, lessons, explain=False)
        page = lesson.folder / "README.md"
        table = f"\n{counted_table(run)}\n\n"
        page.write_text(COUNTED.sub(lambda _, table=table: table, page.read_text()))
        (lesson.folder / "picture.svg").write_text(draw(lesson, run.runs["CUDA"].counted))
        print(f"step {number}: {(lesson.folder / 'picture.svg').stat().st_size:,} bytes of picture")
