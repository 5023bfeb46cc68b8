"""The table of docs/io-bound.md follows from the data sheets of GPUs."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from harness.support.gpu_data_sheets import GPUS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "io-bound.md"
LARGEST_RATIO = (1 + math.sqrt(2)) / 2
"""d / sqrt(M) at which 4 x^2 = 4 x + 1."""


def table() -> dict[str, list[int]]:
    """Figures by the name of a GPU."""
    rows = re.findall(r"^\| ([A-Z][^|]*) \|((?: \d+ \|){5})$", PAGE.read_text(), re.MULTILINE)
    figures = {names: [int(cell) for cell in re.findall(r"\d+", cells)] for names, cells in rows}
    return {name: row for names, row in figures.items() for name in names.split(", ")}


def test_every_gpu_is_in_the_table():
    assert {name.replace(" ", "").lower() for name in table()} == set(GPUS)


@pytest.mark.parametrize("name", table())
def test_the_figures_are_those_of_the_data_sheet(name: str):
    on_chip = GPUS[name.replace(" ", "").lower()].multiprocessor.on_chip_bytes
    expected = [on_chip // 1024]
    for element_bytes in (2, 4):
        root = math.sqrt(on_chip // element_bytes)
        expected += [math.floor(root), math.floor(LARGEST_RATIO * root)]
    assert table()[name] == expected
