"""A mask as libraries take it: how far a row sees before and behind its place."""

from __future__ import annotations

from harness.operations.attention.masks.mask import Band
from harness.operations.attention.problem import Problem
from harness.support.errors import UnsupportedProblem


def band_limits(problem: Problem, library: str) -> tuple[int | None, int | None]:
    """(before, after): keys ahead of row i's place, i + kv_len - q_len, and behind it; None: no limit.

    Raises `UnsupportedProblem` where the mask is none of bands.
    """
    parts = [part for part in problem.mask.parts if isinstance(part, Band)]
    if len(parts) < len(problem.mask.parts):
        raise UnsupportedProblem(library, f"mask {problem.mask} is not handed on to it; causal and window are")
    limits = [part.limits for part in parts]
    before = min((left for left, _ in limits if left is not None), default=None)
    after = min((right for _, right in limits if right is not None), default=None)
    return before, after
