"""What copies.cuh and numba_copies.py move at once, and where to."""

from __future__ import annotations

from harness import Problem
from variants._tiles.space import rows_floats, step_over
from variants._tiles.tile_copies import TileCopy

FLOAT32_BYTES = 4


def tile_copy(problem: Problem, width: int | None = None) -> TileCopy | None:
    """How tiles of rows of `width` elements are brought on chip: as many floats per lane as rows are aligned to.

    Those of Q and K, unless `width` is given.

    None where elements are widened, which passes through registers one element per lane.
    """
    if problem.dtype != "float32":
        return None
    d = width or problem.head_dim
    at_once = step_over(d)
    if not problem.layout.is_dense:
        at_once = min(at_once, problem.row_alignment_bytes // FLOAT32_BYTES)
    return TileCopy(d, FLOAT32_BYTES, at_once, pitch_bytes=rows_floats(1, d) * FLOAT32_BYTES)
