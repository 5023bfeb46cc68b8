"""Sectors as rectangles of a matrix, and inputs found in shared memory by their words."""

from __future__ import annotations

import numpy as np
import pytest

from harness.execution.schedule.replay import INPUT, OUTPUT, SCRATCH, Matrix, Tile
from harness.execution.schedule.replay_tiles import SharedContents, matrices_of, stacked, tiles_of_sectors
from harness.model.plan import Buffer, Launch, Plan
from harness.operations.attention.problem import Problem

MATRIX = Matrix("K", INPUT, rows=8, columns=64, element_bytes=4, slices=2)
"""A row has 8 sectors."""


def tiles(*sectors: int, matrix: Matrix = MATRIX) -> list[tuple[int, int, int, int]]:
    found = tiles_of_sectors(np.array(sectors), matrix)
    return [(t.first_row, t.end_row, t.first_column, t.end_column) for t in found]


def test_whole_rows_are_one_tile() -> None:
    assert tiles(*range(8, 32)) == [(1, 4, 0, 64)]


def test_columns_of_rows_below_each_other_are_one_tile() -> None:
    assert tiles(1, 2, 9, 10, 17, 18) == [(0, 3, 8, 24)]


def test_a_run_that_begins_and_ends_within_rows() -> None:
    assert tiles(*range(6, 19)) == [(0, 1, 48, 64), (1, 2, 0, 64), (2, 3, 0, 24)]


def test_other_heads_are_left_out() -> None:
    assert tiles(63, 64, 65) == [(7, 8, 56, 64)]
    assert tiles(64, 100) == []


def test_a_column_of_its_own_has_eight_rows_in_a_sector() -> None:
    assert tiles(0, 1, matrix=Matrix("l", SCRATCH, 12, 1, 4, 1)) == [(0, 12, 0, 1)]


def test_no_sector_is_lost_or_added() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        sectors = np.unique(random.integers(0, 64, random.integers(1, 40)))
        covered = np.zeros((8, 64), dtype=int)
        for top, bottom, left, right in tiles(*sectors.tolist()):
            covered[top:bottom, left:right] += 1
        expected = np.zeros(64, dtype=int)
        expected[sectors] = 1
        assert np.array_equal(covered.reshape(64, 8), np.repeat(expected[:, None], 8, axis=1))


def test_what_is_not_next_to_each_other_is_not_stacked() -> None:
    assert stacked([(0, 1, 0, 8), (2, 3, 0, 8)]) == (Tile(0, 1, 0, 8), Tile(2, 3, 0, 8))


def test_how_buffers_are_drawn() -> None:
    problem = Problem(heads=4, kv_heads=2, q_len=16, kv_len=32, head_dim=8)
    scratch = (Buffer("S", (1, 4, 16, 32), "float32"), Buffer("m", (1, 4, 16), "float32"), Buffer("n", (3,), "int32"))
    plan = Plan((Launch("kernel", (1,), (32,), ()),), scratch)
    drawn = {name: (m.role, m.rows, m.columns, m.slices) for name, m in matrices_of(problem, plan).items()}
    assert drawn == {
        "Q": (INPUT, 16, 8, 4), "K": (INPUT, 32, 8, 2), "V": (INPUT, 32, 8, 2), "O": (OUTPUT, 16, 8, 4),
        "S": (SCRATCH, 16, 32, 4), "m": (SCRATCH, 16, 1, 4), "n": (SCRATCH, 3, 1, 1),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_inputs_are_found_wherever_they_lie_in_shared_memory(dtype: type) -> None:
    random = np.random.default_rng(1)
    k = random.standard_normal((2, 8, 64)).astype(dtype)
    matrix = Matrix("K", INPUT, 8, 64, k.itemsize, 2)
    contents = SharedContents({"K": matrix}, {"K": k})
    padded = np.full((4, 66), np.nan, dtype)
    padded[:3, :64] = k[0, 2:5]
    assert contents.tiles_in(padded.view(np.uint8).reshape(-1)) == {"K": (Tile(2, 5, 0, 64),)}
    assert contents.tiles_in(k[0, 1:3, 16:48].copy().view(np.uint8).reshape(-1)) == {"K": (Tile(1, 3, 16, 48),)}
    assert contents.tiles_in(k[1].view(np.uint8).reshape(-1)) == {}  # another head
    assert contents.tiles_in((2 * k[0]).view(np.uint8).reshape(-1)) == {}  # no longer what is in memory
    assert contents.tiles_in(random.standard_normal(20000).astype(dtype).view(np.uint8)) == {}


def test_words_that_occur_twice_are_where_their_neighbours_are() -> None:
    k = np.arange(512, dtype=np.float32).reshape(1, 8, 64)
    k[0, 3, 0] = k[0, 5, 63] = 7777
    contents = SharedContents({"K": Matrix("K", INPUT, 8, 64, 4, 1)}, {"K": k})
    assert contents.tiles_in(k[0, 2:6].copy().view(np.uint8).reshape(-1)) == {"K": (Tile(2, 6, 0, 64),)}


def test_without_inputs_nothing_is_found() -> None:
    assert SharedContents({}, {}).tiles_in(np.zeros(64, np.uint8)) == {}
