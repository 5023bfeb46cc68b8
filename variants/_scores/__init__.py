"""What becomes of scores between scale and mask, and sinks: what is compiled into kernels, and their arguments.

A cap, s = C tanh(s / C); ALiBi, s - slope |distance|; a sink per query head, one more logit in the denominator of its
rows. Each is compiled in where a problem has it and costs nothing where it has not: kernels take them as their last
parameters, in this order, which are there with their feature alone. scores.cuh and numba_scores.py have the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Problem
from variants._tiles.sectors import SECTOR_BYTES

FEATURES = ("softcap", "alibi", "sinks")
"""What a variant whose kernels have all of them says that it `takes`, besides masks."""
SOURCE = ("_scores", "scores.cuh")


def score_options(problem: Problem) -> tuple[str, ...]:
    """The compile-time parameters of scores.cuh."""
    return tuple(f"-D{name.upper()}" for name in problem.score_features)


def score_arguments(problem: Problem, *names: str, always: bool, unit: float = 1.0) -> tuple[Any, ...]:
    """The arguments of these features, the cap in units of `unit` of a score.

    `always`: the kernel has a parameter for each, as Numba's have, and an empty tuple says that there is none; else
    those of features that are off are left out.
    """
    cap = np.float32((problem.softcap or 0.0) * unit)
    values: dict[str, Any] = {"softcap": cap, "alibi": "slopes", "sinks": "sinks"}
    on = problem.score_features
    return tuple(values[name] if name in on else () for name in names if always or name in on)


def factor(problem: Problem) -> float:
    """What products q.k are multiplied by first: tau, or tau / C where tanh comes next."""
    return problem.tau if problem.softcap is None else problem.tau / problem.softcap


def changes_scores(problem: Problem) -> bool:
    """Whether scores become something before the mask; sinks come in later."""
    return problem.softcap is not None or problem.alibi


def slope_bytes(problem: Problem, readers: int) -> int:
    """Bytes of the slopes, of which so many warps read one each, at the `sectors` level; 0 where there are none."""
    return readers * SECTOR_BYTES if problem.alibi else 0


def sink_bytes(problem: Problem, readers: int) -> int:
    """Bytes of the sinks if so many warps read one each, at the `sectors` level; 0 where there are none."""
    return readers * SECTOR_BYTES if problem.sinks else 0
