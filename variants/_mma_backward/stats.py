"""Where L and D of rows lie in memory. The CUDA types are in stats.cuh."""

from __future__ import annotations

import numpy as np

from harness import Problem
from variants._features import Feature
from variants._tiles import blocks
from variants._tiles.schedule import FLOAT32_BYTES
from variants._tiles.sectors import run_bytes

STATS_ROWS = 128
"""Rows of a tile."""


def stats(of_tiles: bool) -> Feature:
    """Return whether each head has whole tiles of `STATS_ROWS`, or its rows alone."""
    return Feature("Stats", "StatsOfTiles" if of_tiles else "StatsOfRows", (), (("_mma_backward", "stats.cuh"),))


def tiled_stats_shape(problem: Problem) -> tuple[int, int, int]:
    """Shape of L, or D, in whole tiles."""
    return problem.batch, problem.heads, STATS_ROWS * blocks(problem.q_len, STATS_ROWS)


def tiled_stats_bytes(problem: Problem, rows_at_once: int) -> int:
    """Bytes of writing L, or D, of all heads in whole tiles: rows, so many in a block, and what fills the last tile."""
    p = problem
    first_rows = np.arange(0, p.q_len, rows_at_once)
    rows = run_bytes(first_rows, np.minimum(rows_at_once, p.q_len - first_rows), FLOAT32_BYTES).sum()
    filled = run_bytes(p.q_len, STATS_ROWS * blocks(p.q_len, STATS_ROWS) - p.q_len, FLOAT32_BYTES)
    return int(p.batch * p.heads * (rows + filled))
