"""The pages of the learning path on the site: one for each step, and a list of all."""

from __future__ import annotations

import pytest

from harness.studies.learn.steps import find_lessons
from scripts.path_pages import CONTENTS, OVERVIEW, SITE, overview, site_page

pytestmark = pytest.mark.compiles(False)

LESSONS = find_lessons()


def test_the_site_shows_every_step_and_no_other() -> None:
    shown = {path.stem: path.read_text() for path in SITE.iterdir() if path.stem != "writing-a-step"}
    assert shown == {lesson.folder.name: site_page(lesson) for lesson in LESSONS.values()}


def test_the_overview_lists_every_step_in_order() -> None:
    text = OVERVIEW.read_text()
    assert text == overview(text, LESSONS), "run scripts/path_pages.py"
    (contents,) = CONTENTS.findall(text)
    assert contents.split() == [*(f"path/{lesson.folder.name}" for lesson in LESSONS.values()), "path/writing-a-step"]
