"""The notebooks run from top to bottom without a GPU, and show what they were kept with, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from processor_time import seconds_of_ended_children

from scripts.run_notebooks import NOTEBOOKS, executed, shown
from scripts.shown_outputs import comparable

nbformat = pytest.importorskip("nbformat")

MOST_SECONDS = 60
"""Of the processor, with all that is compiled: seconds by the clock depend on what else the machine does."""
MOST_BYTES = 500_000


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_it_shows_what_was_kept(path: Path) -> None:
    kept = nbformat.read(path, as_version=4)
    began = seconds_of_ended_children()
    found = executed(path)
    assert seconds_of_ended_children() - began < MOST_SECONDS
    now, then = ([comparable(text) for text in shown(notebook)] for notebook in (found, kept))
    assert now == then, "scripts/run_notebooks.py keeps what they show now"
    assert path.stat().st_size < MOST_BYTES
    text = path.read_text()
    assert "/root" not in text and "/tmp/" not in text and "/home/" not in text
    assert all(output.output_type != "error" for cell in found.cells for output in cell.get("outputs", ()))


def test_there_are_pictures_and_tables() -> None:
    kept = nbformat.read(NOTEBOOKS / "from_naive_to_flashattention.ipynb", as_version=4)
    kinds = [kind for cell in kept.cells for output in cell.get("outputs", ()) for kind in output.get("data", {})]
    assert kinds.count("image/svg+xml") == 2 and kinds.count("text/html") == 2


def test_all_are_in_the_page() -> None:
    page = (NOTEBOOKS.parent / "notebooks.md").read_text()
    assert all(f"(notebooks/{path.name})" in page for path in NOTEBOOKS.glob("*.ipynb"))
