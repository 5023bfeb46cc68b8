"""What the pages of steps 11 and 12 quote is what the check of the wrong kernel says."""

from __future__ import annotations

import re

import pytest
from path_steps import LESSONS

from harness.model.lesson import edited
from harness.studies.learn.checking import check

QUOTED = [
    ("11", "no_wait", ("RAW race", "at line 52", "at line 18", "that is still in flight: its thread has to wait")),
    (
        "11",
        "no_barrier_at_the_end",
        ("WAR race", "line 18 may overwrite", "barrier is missing between line 55 and line 18 of"),
    ),
    ("12", "consumers_do_not_wait", ("RAW race", "at line 46", "at line 31", "wait first at its mbarrier")),
    (
        "12",
        "waits_exchanged",
        ("barrier deadlock: warps 0-3 wait", "kernel.cu:44", "128 arrivals and 0 bytes are missing"),
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "name", "words"), QUOTED, ids=[f"{number}-{name}" for number, name, _ in QUOTED])
def test_a_page_quotes_what_the_check_says(number: str, name: str, words: tuple[str, ...]) -> None:
    lesson = LESSONS[number]
    (mistake,) = (mistake for mistake in lesson.task.mistakes if mistake.name == name)
    answer = check(lesson, edited(lesson.solution, mistake.edits), "wrong.cu", step=lambda _: None).text
    said = re.sub(r"\S*wrong\.cu", "kernel.cu", answer)
    page = " ".join(lesson.page.split())
    for part in words:
        assert part in page
        assert part in said
