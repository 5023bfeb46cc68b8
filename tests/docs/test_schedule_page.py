"""What docs/schedule.md shows of a replay is what its script prints."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "schedule.md"


def test_the_steps_that_the_page_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, shown = re.findall(r"```(?:python|text)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    file = tmp_path / "steps.py"
    file.write_text(script)
    runpy.run_path(str(file))
    assert capsys.readouterr().out == shown
