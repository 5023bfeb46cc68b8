"""The gallery: every picture is written by a command or script, and every kernel gives NumPy's answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import gallery_pages, shown_outputs
from scripts.draw_gallery import ROOT, commands
from scripts.gallery_pages import COUNTED, GALLERY, counted_table, kernels_svg, pages, programs, results_of

textual = pytest.mark.compiles(False)
PAGES = pages()
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
FAST = ("matmul_naive", "softmax_warp", "scan_padded")
"""A program of each page that compiles fast. The thorough lane runs all, when it compares tables and pictures."""
MATRIX, N = 128 * 128 * 4, 1024
SIZES = {2 * MATRIX, 3 * MATRIX, 4 * MATRIX, N, 128, 2**16, 10 * N - (N - 1), N - 1, 2 * (N - 1)}
"""Numbers of the text that follow from the sizes: bytes of matrices and of X, additions of scans."""


@textual
def test_every_picture_has_its_command() -> None:
    shown = re.findall(r"\(gallery/(\w+\.svg)\)", (ROOT / "docs" / "gallery.md").read_text())
    written = [
        words[words.index(option) + 1] for words in commands() for option in ("--plot", "--roofline") if option in words
    ]
    pictures = {path.name for path in GALLERY.glob("*.svg")}
    assert shown == written and pictures == {*shown, *(page.with_suffix(".svg").name for page in PAGES)}


@textual
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_listed_and_shows_picture_table_and_programs(page: Path) -> None:
    text = page.read_text()
    assert (ROOT / "docs" / "gallery.md").read_text().count(f"gallery/{page.stem}") == 2
    assert f"]({page.stem}.svg)" in text and COUNTED.search(text) and len(programs(page)) >= 3
    assert set(programs(page)) <= {name.removesuffix(".py") for name in shown_outputs.shown_files()}


@textual
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_figures_of_a_text_are_in_what_is_counted(page: Path) -> None:
    text = page.read_text()
    counted = {*re.findall(r"[\d,]+", " ".join([*FENCED.findall(text), *COUNTED.findall(text)]))}
    prose = COUNTED.sub("", FENCED.sub("", text))
    figures = {figure for figure in re.findall(r"\d{1,3}(?:,\d{3})+", prose) if figure not in counted}
    sums = {int(figure.replace(",", "")) for figure in figures}
    assert sums <= SIZES | _sums_of_two(page), "neither counted, nor a size, nor a sum of two lines"


def _sums_of_two(page: Path) -> set[int]:
    """Sums of the passes of two lines that one output shows."""
    found = set()
    for block in shown_outputs.blocks("console"):
        if block.page == page:
            rows = re.findall(r"^(?:load|store) +\S+ +[\d,]+ +([\d,]+)", block.text, re.MULTILINE)
            numbers = [int(row.replace(",", "")) for row in rows]
            found |= {one + other for one in numbers for other in numbers}
    return found


@pytest.mark.parametrize("name", FAST)
def test_a_program_gives_the_answer_of_numpy_and_counts(name: str) -> None:
    (result,) = results_of([name]).values()
    assert gallery_pages.global_bytes(result) > 0 and result.shared is not None


@pytest.mark.parametrize(("name", "right", "wrong"), [("softmax_warp", "step = 16;", "step = 8;")])
def test_a_wrong_kernel_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, right: str, wrong: str) -> None:
    files = shown_outputs.shown_files()
    assert right in files[f"{name}.py"]
    files[f"{name}.py"] = files[f"{name}.py"].replace(right, wrong)
    monkeypatch.setattr(shown_outputs, "shown_files", lambda: files)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        results_of([name])


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_table_and_picture_are_what_is_counted(page: Path) -> None:
    results = results_of(programs(page))
    assert COUNTED.findall(page.read_text()) == [f"\n{counted_table(results)}\n\n"], "run scripts/gallery_pages.py"
    assert page.with_suffix(".svg").read_text() == kernels_svg(results), "run scripts/gallery_pages.py"
