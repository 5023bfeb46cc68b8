"""Score features of kernels: compile-time options, arguments and bytes.

These are the cap, C tanh(s / C); ALiBi, s - slope |distance|; and a sink per query head, an additional logit in the
denominator of its rows. Each is compiled in only if a problem has it, and is then a kernel parameter, after all others
and in this order. scores.cuh and numba_scores.py implement them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Problem
from variants._tiles.sectors import SECTOR_BYTES

FEATURES = ("softcap", "alibi", "sinks")
"""Features in `takes` of a variant whose kernels support all of them, in addition to masks."""
SOURCE = ("_scores", "scores.cuh")


def score_options(problem: Problem) -> tuple[str, ...]:
    """Return the compile-time parameters of scores.cuh."""
    return tuple(f"-D{name.upper()}" for name in problem.score_features)


def score_arguments(problem: Problem, *names: str, always: bool, unit: float = 1.0) -> tuple[Any, ...]:
    """Return the kernel arguments of the features `names`. The cap is multiplied by `unit`.

    With `always`, as in Numba, the kernel has a parameter for each feature, and features that are off are empty tuples.
    Otherwise features that are off have no argument.
    """
    cap = np.float32((problem.softcap or 0.0) * unit)
    values: dict[str, Any] = {"softcap": cap, "alibi": "slopes", "sinks": "sinks"}
    on = problem.score_features
    return tuple(values[name] if name in on else () for name in names if always or name in on)


def factor(problem: Problem) -> float:
    """Return the factor on products q.k: tau, or tau / C if tanh follows."""
    return problem.tau if problem.softcap is None else problem.tau / problem.softcap


def changes_scores(problem: Problem) -> bool:
    """Whether scores change before the mask; sinks do not change them."""
    return problem.softcap is not None or problem.alibi


def slope_bytes(problem: Problem, readers: int) -> int:
    """Return bytes of the slopes if `readers` warps read one each, at the `sectors` level; 0 without ALiBi."""
    return readers * SECTOR_BYTES if problem.alibi else 0


def sink_bytes(problem: Problem, readers: int) -> int:
    """Return bytes of the sinks if `readers` warps read one each, at the `sectors` level; 0 without sinks."""
    return readers * SECTOR_BYTES if problem.sinks else 0
