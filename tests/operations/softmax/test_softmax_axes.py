"""What campaigns of softmax choose on purpose: rows and columns that few problems have together."""

from __future__ import annotations

import random

import pytest

from harness.model.cases.axes import CHECK, NO_CHECK, REGIME
from harness.operations.softmax.cases import (
    COLUMNS,
    EDITS,
    LONG,
    MANY_ROWS,
    MOST_ELEMENTS,
    MOST_ROWS,
    NONE,
    ROWS,
    SoftmaxAxes,
    SoftmaxBuild,
)

PLAIN = {EDITS: NONE, REGIME: "normal", CHECK: NO_CHECK}


def drawn(rows: str, columns: str, most_tiles: int | None = None) -> list[tuple[int, int]]:
    axes, rng = SoftmaxAxes(most_tiles, ()), random.Random(1)
    assert axes.meet((ROWS, rows), (COLUMNS, columns))
    cases = [axes.case(SoftmaxBuild("float32"), {ROWS: rows, COLUMNS: columns, **PLAIN}, rng) for _ in range(200)]
    return [(case.problem.rows, case.problem.columns) for case in cases]


def test_many_rows_meet_long_ones():
    met = drawn(MANY_ROWS, LONG)
    assert any(rows > 2048 and columns > 1024 for rows, columns in met)
    assert all(rows > 1024 and columns > 384 for rows, columns in met)


@pytest.mark.parametrize("columns", ["1", "2 to 32"])
def test_rows_are_more_than_16_bits_count(columns: str):
    met = drawn(MOST_ROWS, columns)
    assert {rows for rows, _ in met} == {65_600}
    assert all(rows * n <= MOST_ELEMENTS for rows, n in met)


def test_few_tiles_are_few_also_there():
    assert all(rows * -(-columns // 128) <= 4 for rows, columns in drawn("2 to 5", "33 to 384", most_tiles=4))
