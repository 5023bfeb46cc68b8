"""What copies.cuh and numba_copies.py move at once."""

from __future__ import annotations

from harness import Problem
from variants._tiles.space import step_over


def elements_per_copy(problem: Problem) -> int:
    """What a lane brings on chip at once: as many floats as rows keep aligned; what is widened, one by one."""
    return step_over(problem.head_dim) if problem.dtype == "float32" else 1
