"""Dropout: what is compiled into kernels that take it, and their arguments.

After the softmax a weight becomes 0 where its number of 8 bits is below a threshold, and is multiplied by 1 / (1 - P)
otherwise (Dao 2023, arXiv 2307.08691, section 3.1; Dao et al. 2022, arXiv 2205.14135, algorithm 2, line 14). Numbers
come from counters, so the backward pass has them again and nothing is stored. The factor is that of all weights that
are left: kernels multiply by it once, behind the sum over keys.

It is compiled in where a problem has it and costs nothing where it has not. dropout.cuh and numba_dropout.py have the
rest, fragments.cuh and numba_fragments.py what tensor cores need besides, harness/operations/attention/dropout.py which
number is whose.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import PlanError, Problem

FEATURE = "dropout"
"""What a variant whose kernels have it says that it `takes`."""
KEYS_TOGETHER = 8
"""Neighbours whose numbers are all of different calls."""
SOURCE = ("_dropout", "dropout.cuh")
SOURCE_OF_FRAGMENTS = ("_dropout", "fragments.cuh")


def dropout_options(problem: Problem) -> tuple[str, ...]:
    """The compile-time parameters of dropout.cuh."""
    return ("-DDROPOUT",) if problem.dropout else ()


def draw_arguments(problem: Problem, *, always: bool, keys: int = KEYS_TOGETHER) -> tuple[Any, ...]:
    """What decides which weights drop out: the threshold, and the low and the high half of the seed.

    Raises `PlanError` where threads draw for tiles of so many `keys`, which would begin within such neighbours.

    `always`: the kernel has one parameter for them, a tuple, as Numba's have, which is empty where nothing drops out;
    else they are parameters that are left out then.
    """
    if not problem.dropout:
        return ((),) if always else ()
    if keys % KEYS_TOGETHER:
        raise PlanError(f"tiles have {keys} keys; under dropout they have a multiple of {KEYS_TOGETHER}")
    low, high = problem.dropout_seed & 0xFFFFFFFF, problem.dropout_seed >> 32
    words = tuple(np.uint32(word) for word in (problem.dropout_threshold, low, high))
    return (words,) if always else words


def factor_arguments(problem: Problem, *, always: bool) -> tuple[Any, ...]:
    """What the weights that are left are multiplied by; `always`: as in `draw_arguments`."""
    if not problem.dropout:
        return ((),) if always else ()
    return (np.float32(problem.kept_factor),)
