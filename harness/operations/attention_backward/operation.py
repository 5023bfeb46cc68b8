"""The gradients of attention as an operation: which module has which part of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.model.operation import Hints, Operation, operation_named
from harness.operations.attention.masks import runs_of_keys
from harness.operations.attention_backward.cases import (
    BackwardAxes,
    backward,
    builds_of,
    enlarged,
    probed_axes,
    simpler,
    size,
)
from harness.operations.attention_backward.error_budget import NUMERICS_USED, error_budget
from harness.operations.attention_backward.inputs import REGIMES
from harness.operations.attention_backward.libraries import LIBRARIES, libraries_in_words
from harness.operations.attention_backward.oracle import gradients
from harness.operations.attention_backward.parts import choose_parts
from harness.operations.attention_backward.problem import BackwardProblem
from harness.operations.attention_backward.properties import PROPERTIES
from harness.operations.attention_backward.trivial_answers import trivial_answers
from harness.support.errors import UsageError

if TYPE_CHECKING:
    from hypothesis import strategies as st

    from harness.model.cases.case import Case

FORWARD = operation_named("attention")


def _derived_inputs(problem: BackwardProblem) -> Mapping[str, np.ndarray]:
    """Attention's; and which rows see each key, for kernels that go through keys."""
    return {**FORWARD.derived_inputs(problem), **runs_of_keys(problem)}


def _cases(
    builds: Sequence[Any], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
) -> st.SearchStrategy[Case]:
    from harness.operations.attention_backward.strategies import cases  # imports Hypothesis

    return cases(builds, most_tiles, checks, takes)


def _hints(problem: BackwardProblem, output: str) -> Hints:
    factors = {
        1 / math.log(2): "1 / ln 2: a logarithm to base 2",
        math.log(2): "ln 2: base 2 for base e",
        -1.0: "the sign is wrong",
    }
    if output != "dV" and problem.tau not in (0.0, 1.0):
        factors |= {1 / problem.tau: "the scale is missing", problem.tau: "the scale is applied twice"}
    return Hints(factors)


def _problem_of_arrays(arrays: Mapping[str, np.ndarray], dtype: str, fields: Mapping[str, Any]) -> BackwardProblem:
    """The gradients of attention's problem of Q, K and V; O and dO are shaped as Q, and lse has one number per row.

    Raises `UsageError` or `ProblemError` where they do not fit together.
    """
    shapes = {name: array.shape for name, array in arrays.items()}
    for name in ("O", "dO"):
        if shapes[name] != shapes["Q"]:
            raise UsageError(f"Q has shape {shapes['Q']} and {name} {shapes[name]}; they have to be the same")
    if shapes["lse"] != shapes["Q"][:3]:
        raise UsageError(f"lse has shape {shapes['lse']}; one number for each row of Q would be {shapes['Q'][:3]}")
    forward = FORWARD.problem_of_arrays
    assert forward is not None
    return backward(forward(arrays, dtype, fields))


OPERATION = Operation(
    name="attention-backward",
    idea="dQ, dK and dV of O = softmax(scale Q K^T + mask) V, from Q, K, V, O, lse and dO",
    problem=BackwardProblem,
    regimes=REGIMES,
    derived_inputs=_derived_inputs,
    answer=gradients,
    tolerance=error_budget,
    numerics_used=lambda problem: NUMERICS_USED,
    trivial_answers=trivial_answers,
    shorter=FORWARD.shorter,
    parts=choose_parts,
    builds_of=builds_of,
    cases=_cases,
    axes=BackwardAxes,
    properties=PROPERTIES,
    simpler=simpler,
    size=size,
    enlarged=enlarged,
    probed_axes=probed_axes,
    peculiarities=FORWARD.peculiarities,
    tile_names=FORWARD.tile_names,
    hints=_hints,
    settings=FORWARD.settings,
    problem_of_arrays=_problem_of_arrays,
    lengths=FORWARD.lengths,
    field_in_words=FORWARD.field_in_words,
    require_sweepable=FORWARD.require_sweepable,
    libraries=LIBRARIES,
    libraries_in_words=libraries_in_words,
    flops_in_words="the five matrix products over the keys that each row sees",
)
"""dQ, dK and dV, after Dao et al. 2022, arXiv 2205.14135, appendix B.2."""
