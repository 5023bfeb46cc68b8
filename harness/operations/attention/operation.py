"""Attention as an operation: which module has which part of it, and its smaller parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.model.operation import (
    ROWS_PER_PART,
    WHOLE,
    FurtherInput,
    Hints,
    Operation,
    Part,
    cases_of,
    count_of_parts,
    field_in_words,
    oracle_flops,
    part_flops,
)
from harness.model.spread import in_powers
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.budget.rounding_sizes import numerics_used
from harness.operations.attention.cases.axes import AttentionAxes
from harness.operations.attention.cases.build import TILE_NAMES, builds_of
from harness.operations.attention.cases.case_values import raises_scores
from harness.operations.attention.cases.simplification import (
    enlarged,
    peculiarities,
    probed_axes,
    shorter,
    simpler,
    size,
)
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.invariance import changes
from harness.operations.attention.libraries import LIBRARIES, libraries_in_words
from harness.operations.attention.masks.arrays import mask_arrays
from harness.operations.attention.mistakes.known_mistakes import forward_hints, known_mistakes, trivial_answers
from harness.operations.attention.needed_bytes import io_bound, needed_read_bytes
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import SCORE_FEATURES, Problem
from harness.operations.attention.properties import PROPERTIES
from harness.operations.attention.score_term import ScoreTerm
from harness.operations.attention.score_terms import TERMS
from harness.operations.attention.sums import ordered_sums
from harness.support.errors import UsageError


def choose_parts(problem: Problem, whole_flops: float) -> tuple[Part, ...]:
    """Return the whole of a problem of up to `whole_flops`, ignoring masks, or else runs of rows of single heads."""
    p = problem
    heads = p.batch * p.heads
    each = part_flops(p.kv_len, (p.head_dim + p.v_width) / 2)
    if oracle_flops(heads * p.q_len / ROWS_PER_PART * each, p.q_len) <= whole_flops:
        return (WHOLE,)
    # Rows that see no key are not worth checking.
    seeing = np.flatnonzero((p.keys_seen > 0).any(axis=0))
    first_row, end_row = (int(seeing[0]), int(seeing[-1]) + 1) if len(seeing) else (0, p.q_len)
    count = count_of_parts(heads, each, whole_flops)
    parts = []
    for number in range(count):
        batch, head = divmod(number * (heads - 1) // (count - 1), p.heads)
        start = first_row + round(number * (end_row - first_row) / (count - 1) / ROWS_PER_PART) * ROWS_PER_PART
        start = max(0, min(start, end_row - ROWS_PER_PART))
        stop = min(p.q_len, start + ROWS_PER_PART)
        where = (slice(batch, batch + 1), slice(head, head + 1), slice(start, stop))
        parts.append(Part(where, f"batch {batch}, head {head}, rows {start} to {stop - 1}"))
    return tuple(parts)


def _field_in_words(problem: Problem, name: str) -> list[str]:
    """One field for a headline, such as `heads 8`; nothing where it has its default."""
    if name == "mask":
        return [problem.mask.shown] if problem.mask.parts else []
    if name in SCORE_FEATURES:
        return [term.in_words(problem) for term in problem.terms if term.field == name]
    if name in ("dropout", "dropout_seed"):
        said = f"dropout {problem.dropout:.4g}" if name == "dropout" else f"dropout seed {problem.dropout_seed}"
        return [said] if problem.dropout else []
    if name == "layout":
        return [] if problem.layout.is_dense else [f"layout {problem.layout}"]
    if name == "varlen" or (name == "v_head_dim" and problem.v_head_dim is None):
        return []  # unpadded sequences are a part of the mask
    if name == "far":
        return [f"far {in_powers(problem.far)}"] if problem.far else []
    if name == "scale" or (name == "kv_heads" and problem.kv_heads == problem.heads):
        return []
    return field_in_words(problem, name)


LARGEST_LENGTH = 2**20
LARGEST_ROWS = 2**22
"""Rows of all heads together. Beyond, even the closed forms would take minutes."""


def _derived_inputs(problem: Problem) -> Mapping[str, np.ndarray]:
    of_terms = (term.derived(problem) for term in problem.terms)
    return {**mask_arrays(problem), **{name: array for each in of_terms for name, array in each.items()}}


def _hints(problem: Problem, output: str) -> Hints:
    return forward_hints(problem.tau, output, 1 / problem.kept_factor if problem.dropout else None)


def _problem_of_arrays(arrays: Mapping[str, np.ndarray], dtype: str, fields: Mapping[str, Any]) -> Problem:
    """The problem of Q, K and V, each of shape (batch, heads, rows, elements of a row).

    `fields` has what shapes do not say. Raises `UsageError` or `ProblemError` where they do not fit together.
    """
    q, k, v = (arrays[name].shape for name in "QKV")
    if k[:3] != v[:3]:
        raise UsageError(f"K has shape {k} and V {v}; they have to be the same, except for the elements per row")
    if q[0] != k[0]:
        raise UsageError(f"Q has batch {q[0]} and K and V have {k[0]}; they have to be the same")
    if q[3] != k[3]:
        raise UsageError(f"the rows of Q have {q[3]} elements and those of K {k[3]}; they have to be the same")
    sizes = {"batch": q[0], "heads": q[1], "kv_heads": k[1], "q_len": q[2], "kv_len": k[2], "head_dim": q[3]}
    sizes |= {} if v[3] == k[3] else {"v_head_dim": v[3]}
    return Problem.from_fields({**sizes, "dtype": dtype, **fields})


def _further_input(term: ScoreTerm) -> FurtherInput:
    tells_values = type(term).value_of_array is not ScoreTerm.value_of_array
    return FurtherInput(term.field, term.plain, term.value_of_array if tells_values else None, term.inputs_follow)


def _require_sweepable(problem: Problem) -> None:
    p = problem
    longest = max(p.q_len, p.kv_len)
    rows = p.batch * p.heads * longest
    if longest > LARGEST_LENGTH or rows > LARGEST_ROWS or max(p.head_dim, p.v_width) > LARGEST_LENGTH:
        raise UsageError(
            f"--sweep reaches batch {p.batch}, {p.heads} heads, {p.q_len} x {p.kv_len}, head_dim {p.head_dim}; "
            f"the most is {LARGEST_LENGTH:,} rows, {LARGEST_ROWS:,} over all heads"
        )


OPERATION = Operation(
    name="attention",
    idea="O = softmax(scale Q K^T + mask) V, forward",
    problem=Problem,
    regimes=REGIMES,
    derived_inputs=_derived_inputs,
    answer=attention,
    tolerance=error_budget,
    numerics_used=numerics_used,
    trivial_answers=trivial_answers,
    shorter=shorter,
    needed_read_bytes=needed_read_bytes,
    parts=choose_parts,
    builds_of=builds_of,
    cases=cases_of("harness.operations.attention.cases.strategies"),
    axes=AttentionAxes,
    leaves_regime=raises_scores,
    properties=PROPERTIES,
    changes=changes,
    simpler=simpler,
    size=size,
    enlarged=enlarged,
    probed_axes=probed_axes,
    peculiarities=peculiarities,
    tile_names=TILE_NAMES,
    known_mistakes=known_mistakes,
    hints=_hints,
    settings=(
        "mask",
        "scale",
        *(term.field for term in TERMS if term.inputs_follow),
        "dropout",
        "dropout_seed",
        "layout",
    ),
    further_inputs={name: _further_input(term) for term in TERMS for name in term.input_names},
    problem_of_arrays=_problem_of_arrays,
    lengths={"seq_len": ("q_len", "kv_len")},
    field_in_words=_field_in_words,
    require_sweepable=_require_sweepable,
    ordered_sums=ordered_sums,
    io_bound=io_bound,
    libraries=LIBRARIES,
    libraries_in_words=libraries_in_words,
    flops_in_words="the two matrix products over the keys that each row sees",
)
"""O = softmax(scale * Q K^T + mask) V per head, after Vaswani et al. 2017, equation 1."""
