"""Arrays that a user gives: the problem that they pose, and what is wrong with those that pose none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.operations.attention.problem import Problem
from harness.support.errors import UsageError


def problem_of_arrays(arrays: Mapping[str, np.ndarray], dtype: str, fields: Mapping[str, Any]) -> Problem:
    """The problem of Q (batch, heads, q_len, head_dim) and of K and V (batch, kv_heads, kv_len, head_dim).

    `fields` has what shapes do not say. Raises `UsageError` or `ProblemError` where they do not fit together.
    """
    q, k, v = (arrays[name].shape for name in "QKV")
    if k != v:
        raise UsageError(f"K has shape {k} and V {v}; they have to be the same")
    if q[0] != k[0]:
        raise UsageError(f"Q has batch {q[0]} and K and V have {k[0]}; they have to be the same")
    if q[3] != k[3]:
        raise UsageError(f"the rows of Q have {q[3]} elements and those of K and V {k[3]}; they have to be the same")
    sizes = {"batch": q[0], "heads": q[1], "kv_heads": k[1], "q_len": q[2], "kv_len": k[2], "head_dim": q[3]}
    return Problem.from_fields({**sizes, "dtype": dtype, **fields})
