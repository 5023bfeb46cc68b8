from __future__ import annotations

import math

import numpy as np
import pytest

from harness.execution.judging.accuracy import measure_accuracy
from harness.execution.judging.error_map import MOST_CELLS, MOST_PANELS, ErrorMap
from harness.model.operation import Tolerance
from harness.model.problem import OUTPUT, Tensor

AXES = ("batch", "head", "row", "column")


def map_of(got: np.ndarray, allowed: float = 2.0) -> ErrorMap:
    """Of an answer of zeros."""
    answer = np.zeros(got.shape)
    tolerance = Tolerance(np.full(got.shape, allowed), np.full(got.shape, allowed / 10))
    axes = AXES[-got.ndim :]
    tensor = Tensor("O", got.shape, "float32", OUTPUT, axes)
    accuracy = measure_accuracy((tensor,), {"O": got.astype(np.float32)}, {"O": answer}, {"O": tolerance})
    return ErrorMap.of("O", axes, accuracy.main)


def test_a_cell_is_the_largest_ratio_of_its_elements():
    got = np.zeros((1, 2, 100, 4))
    got[0, 1, 99, 3] = 1.0
    got[0, 1, 3, 0] = -0.5
    found = map_of(got)
    assert found.cell == (2, 1) and found.extents == (100, 4) and found.axes == ("row", "column")
    assert [panel.place for panel in found.panels] == ["batch 0, head 0", "batch 0, head 1"]
    cells = np.array(found.panels[1].cells)
    assert cells.shape == (50, 4)
    assert cells[49, 3] == 0.5 and cells[1, 0] == 0.25 and cells.sum() == 0.75
    assert not np.any(found.panels[0].cells)
    assert found.largest == 0.5 and found.median == 0.0 and found.worst.index == (0, 1, 99, 3)


def test_nan_is_worse_than_anything_and_no_part_of_the_median():
    got = np.full((4, 4), 1.0)
    got[2, 2] = math.nan
    found = map_of(got)
    (panel,) = found.panels
    assert math.isnan(panel.cells[2][2]) and panel.cells[0][0] == 0.5
    assert math.isnan(found.largest) and found.median == 0.5
    assert panel.place == ""


def test_an_odd_end_is_in_a_cell_of_its_own():
    got = np.zeros((129, 1))
    got[128, 0] = 2.0
    (panel,) = map_of(got).panels
    assert map_of(got).cell == (3, 1) and len(panel.cells) == 43 and panel.cells[42][0] == 1.0


def test_of_many_heads_those_with_the_largest_errors_are_shown():
    got = np.zeros((1, MOST_PANELS + 5, 8, 8))
    got[0, -1] = 1.0
    found = map_of(got)
    assert len(found.panels) == MOST_PANELS and found.left_out == 5
    assert found.panels[-1].place == f"batch 0, head {MOST_PANELS + 4}"


@pytest.mark.parametrize("shape", [(2, 16, 512, 128), (1, 1, 1, 4096), (3, 5), (7,)])
def test_no_map_has_more_cells_than_a_page_has_room_for(shape):
    found = map_of(np.ones(shape))
    assert sum(len(row) for panel in found.panels for row in panel.cells) <= MOST_CELLS
    assert all(value == 0.5 for panel in found.panels for row in panel.cells for value in row)
