"""What the pages of algorithms say of bytes, costs and schedules is what the variants do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.algorithm_pages import (
    ROOT,
    Algorithm,
    algorithm_pages,
    algorithms,
    costs,
    drawn,
    formula_traffic,
    problem_of,
    shown_costs,
)

EACH_PAGE = pytest.mark.parametrize("page", algorithm_pages(), ids=lambda page: page.parent.name)
EACH_ALGORITHM = pytest.mark.parametrize("algorithm", algorithms(), ids=lambda each: "-".join(each.folder.parts[-2:]))
SITE = ROOT / "docs" / "algorithms"
OTHER_SIZES = {
    "attention": {"batch": 2, "heads": 3, "q_len": 200, "kv_len": 640},
    "attention-backward": {"batch": 2, "heads": 3, "q_len": 200, "kv_len": 640},
    "kv-append": {"lengths": (40, 700, 0, 17, 9), "new_lengths": (3, 650, 0, 17, 0), "kv_heads": 3},
    "mla-decode": {"lengths": (40, 700, 0), "heads": 24},
    "paged-attention": {"lengths": (1300, 40, 0, 1200, 700), "heads": 16, "prefix": 600},
    "ring-attention": {"batch": 2, "heads": 3, "q_len": 600, "kv_len": 600, "devices": 3},
    "ring-attention-backward": {"batch": 2, "heads": 3, "q_len": 600, "kv_len": 600, "devices": 3},
    "tree-attention": {"batch": 2, "heads": 3, "q_len": 24, "kv_len": 1200, "devices": 6},
    "softmax": {"rows": 24, "columns": 1000},
}
"""Lengths that tiles do not divide, and more than one split."""
MOST_LINES = 110


@EACH_ALGORITHM
def test_the_formula_of_the_page_is_the_claim(algorithm: Algorithm) -> None:
    variant = algorithm.variant
    assert variant.claim is not None
    for sizes in ({}, OTHER_SIZES[variant.operation]):
        problem = problem_of(variant, **sizes)
        assert formula_traffic(algorithm, problem) == variant.claim(problem)


@EACH_ALGORITHM
def test_the_page_names_the_bytes_of_the_default_problem(algorithm: Algorithm) -> None:
    moved = formula_traffic(algorithm, problem_of(algorithm.variant))
    text = " ".join(algorithm.page.read_text().split())
    assert f"{moved.read_bytes:,} bytes read" in text and f"{moved.write_bytes:,} written" in text


@EACH_PAGE
def test_the_table_of_costs_is_that_of_the_variants(page: Path) -> None:
    # scripts/algorithm_pages.py writes it anew.
    assert shown_costs(page) == costs(page)


@EACH_PAGE
def test_the_page_is_short(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= MOST_LINES


@EACH_ALGORITHM
def test_the_page_shows_the_schedule_in_a_small_picture(algorithm: Algorithm) -> None:
    assert f"]({algorithm.picture.relative_to(algorithm.page.parent)})" in algorithm.page.read_text()
    assert len(algorithm.picture.read_bytes()) <= 64 * 1024


def test_the_site_shows_every_page_and_no_other() -> None:
    shown = {path.stem: path.read_text() for path in SITE.iterdir()}
    names = [page.parent.name for page in algorithm_pages()]
    assert shown == {
        page.parent.name: f"```{{include}} ../../{page.relative_to(ROOT)}\n```\n" for page in algorithm_pages()
    }
    overview = (ROOT / "docs" / "algorithms.md").read_text()
    assert sorted(re.findall(r"^algorithms/(\w+)$", overview, re.MULTILINE)) == sorted(names)


@pytest.mark.thorough
@EACH_ALGORITHM
def test_the_picture_is_the_schedule_of_the_variant(algorithm: Algorithm) -> None:
    # scripts/algorithm_pages.py draws it anew.
    assert algorithm.picture.read_text() == drawn(algorithm)
