"""What `learn check` answers to files that do something else than compute a wrong value."""

from __future__ import annotations

import pytest

from harness.studies.learn.checking import check
from harness.studies.learn.steps import find_lessons

LESSON = find_lessons()["5"]


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("void attention", "void attend", "the source defines attend, not attention"),
        ("++j", "j += 0", "mine.cu:13"),
        (", float tau)", ", float tau, int more)", "kernel attention takes 7 arguments"),
    ],
)
def test_it_names_what_is_wrong_and_gives_no_hint_for_wrong_values(old: str, new: str, answer: str) -> None:
    text = LESSON.solution
    result = check(LESSON, text.replace(old, new), "mine.cu", step=lambda _: None)
    assert not result.solved
    assert answer in result.text
    assert "Hint" not in result.text
