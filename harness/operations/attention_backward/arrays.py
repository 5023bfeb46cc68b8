"""Arrays that a user gives: the gradients that they ask for, and what is wrong with those that ask for none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.model.operation import operation_named
from harness.operations.attention_backward.cases import backward
from harness.operations.attention_backward.problem import BackwardProblem
from harness.support.errors import UsageError


def problem_of_arrays(arrays: Mapping[str, np.ndarray], dtype: str, fields: Mapping[str, Any]) -> BackwardProblem:
    """The gradients of attention's problem of Q, K and V; O and dO are shaped as Q, and lse has one number per row.

    Raises `UsageError` or `ProblemError` where they do not fit together.
    """
    shapes = {name: array.shape for name, array in arrays.items()}
    for name in ("O", "dO"):
        if shapes[name] != shapes["Q"]:
            raise UsageError(f"Q has shape {shapes['Q']} and {name} {shapes[name]}; they have to be the same")
    if shapes["lse"] != shapes["Q"][:3]:
        raise UsageError(f"lse has shape {shapes['lse']}; one number for each row of Q would be {shapes['Q'][:3]}")
    forward = operation_named("attention").problem_of_arrays
    assert forward is not None
    return backward(forward(arrays, dtype, fields))
