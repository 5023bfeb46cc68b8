"""The file in which a learner's progress is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.studies.learn.progress_file import load_progress
from harness.support.errors import UsageError

pytestmark = pytest.mark.compiles(False)


def test_progress_survives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "new" / "path.json"
    progress = load_progress(path).after_run("2", 5.0, False).after_run("2", 6.0, True)
    progress.after_check("2", True).after_check("2", False).save()
    step = load_progress(path).of("2")
    assert (step.ran, step.predicted, step.prediction_right) == (True, 5.0, False), "the first prediction counts"
    assert (step.checks, step.solved) == (2, True), "a solved task stays solved"
    assert load_progress(path).of("3").checks == 0


def test_a_file_from_before_nearly_right_predictions_is_read(tmp_path: Path) -> None:
    path = tmp_path / "path.json"
    path.write_text('{"steps": {"3": {"ran": true, "predicted": 6144, "prediction_right": false}}}')
    assert not load_progress(path).of("3").prediction_near


@pytest.mark.parametrize("content", ["{", "[]", '{"steps": 5}', '{"steps": {"1": {"unknown": 2}}}'])
def test_a_damaged_file_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "path.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"path\.json is no file of progress .* remove it"):
        load_progress(path)
