"""The gradients of attention as an operation: which module has which part of it, and its smaller parts."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from harness.model.array_types import Float64Array
from harness.model.operation import WHOLE, Hints, Operation, Part, TrivialAnswer
from harness.operations.attention.bias import AXES
from harness.operations.attention.layout import DENSE
from harness.operations.attention.masks import runs_of_keys
from harness.operations.attention_backward.cases import (
    CASES,
    FORWARD,
    BackwardAxes,
    backward,
    builds_of,
    cases,
)
from harness.operations.attention_backward.error_budget import error_budget
from harness.operations.attention_backward.inputs import REGIMES
from harness.operations.attention_backward.libraries import LIBRARIES, libraries_in_words
from harness.operations.attention_backward.oracle import DBIAS, Block, Sums, blocks_of, gradients, products_of
from harness.operations.attention_backward.problem import BackwardProblem
from harness.operations.attention_backward.properties import PROPERTIES
from harness.operations.attention_backward.rounding_sizes import numerics_used
from harness.operations.attention_backward.sinks import DSINKS, sink_gradients
from harness.support.errors import UsageError


def trivial_answers(problem: BackwardProblem, inputs: Mapping[str, np.ndarray]) -> dict[str, TrivialAnswer]:
    """Gradients of each trivial mistake, in the shapes of the outputs or of the part."""
    mistakes = {"equal weights": _equal_weights, "attention over half of the keys": _half_of_the_keys}
    return {name: functools.partial(_gradients, problem, inputs, mistake) for name, mistake in mistakes.items()}


def _equal_weights(block: Block) -> Float64Array:
    """Equal weights over the keys that a row sees. A block with some of the keys keeps the sum of their weights."""
    seen = block.visible.astype(np.float64)
    equal: Float64Array = seen * (block.p.sum(axis=-1, keepdims=True) / np.maximum(seen.sum(axis=-1, keepdims=True), 1))
    return equal


def _half_of_the_keys(block: Block) -> Float64Array:
    keys = block.first_key + np.arange(block.k.shape[-2])
    return block.p * (2 * keys < block.problem.kv_len)


def _gradients(
    problem: BackwardProblem,
    inputs: Mapping[str, np.ndarray],
    weights: Callable[[Block], Float64Array],
    part: Part,
) -> dict[str, Float64Array]:
    """The oracle's formulas with other weights in place of P."""
    sums = Sums.zeros(problem, part)
    for block in blocks_of(problem, inputs, part):
        p = np.where(block.nonfinite, 0.0, weights(block))
        ds = p * (block.dp - block.delta)
        sums.add(block, products_of(block, block.before_terms(ds), p * block.kept, ds))
    # The gradient of sinks does not depend on weights of keys.
    return sums.as_outputs() | ({DSINKS: sink_gradients(problem, inputs, part)} if problem.sinks else {})


ROWS_PER_PART = 16
MOST_PARTS = 8


def choose_parts(problem: BackwardProblem, whole_flops: float) -> tuple[Part, ...]:
    """The whole of a problem of up to `whole_flops`, masks left out; of a larger one runs of rows and of keys.

    Elements of dbias are sums over all that the bias does not vary over.
    """
    p = problem
    flops_per_pair = 6.0 * p.head_dim + 4.0 * p.v_width
    if flops_per_pair * p.batch * p.heads * p.q_len * p.kv_len <= whole_flops:
        return (WHOLE,)
    heads, parts = p.batch * p.heads, []
    count = min(MOST_PARTS, max(2, heads))
    for number in range(count):
        batch, head = divmod(number * (heads - 1) // (count - 1), p.heads)
        rows, keys = (_run(length, number, count) for length in (p.q_len, p.kv_len))
        one, kv = slice(batch, batch + 1), head // p.group
        where = (one, slice(head, head + 1), rows)
        of_keys = (one, slice(kv, kv + 1), keys)
        name = f"batch {batch}, head {head}, rows {rows.start} to {rows.stop - 1}, keys {keys.start} to {keys.stop - 1}"
        others = {"dK": of_keys, "dV": of_keys, DSINKS: where[1:2]}
        own = zip(AXES, (where[1], rows, keys))
        others[DBIAS] = tuple(run if axis in (p.bias or ()) else slice(0, 1) for axis, run in own)
        parts.append(Part(where, name, others))
    return tuple(parts)


def _run(length: int, number: int, count: int) -> slice:
    """The `number`th of `count` runs at equal distances."""
    start = number * max(0, length - ROWS_PER_PART) // (count - 1)
    return slice(start, min(length, start + ROWS_PER_PART))


def _derived_inputs(problem: BackwardProblem) -> Mapping[str, np.ndarray]:
    """Attention's; and which rows see each key, for kernels that go through keys."""
    return {**FORWARD.derived_inputs(problem), **runs_of_keys(problem)}


def _hints(problem: BackwardProblem, output: str) -> Hints:
    factors = {
        1 / math.log(2): "1 / ln 2: a logarithm to base 2",
        math.log(2): "ln 2: base 2 for base e",
        -1.0: "the sign is wrong",
    }
    if output in ("dQ", "dK") and problem.tau not in (0.0, 1.0):
        factors |= {1 / problem.tau: "the scale is missing", problem.tau: "the scale is applied twice"}
    return Hints(factors)


def _problem_of_arrays(arrays: Mapping[str, np.ndarray], dtype: str, fields: Mapping[str, Any]) -> BackwardProblem:
    """The gradients of attention's problem of Q, K and V; lse has one number per row.

    O and dO are shaped as Q, but their rows are as long as those of V.

    Raises `UsageError` or `ProblemError` where they do not fit together.
    """
    shapes = {name: array.shape for name, array in arrays.items()}
    for name in ("O", "dO"):
        if shapes[name] != (*shapes["Q"][:3], shapes["V"][3]):
            rows = "" if shapes["Q"][3] == shapes["V"][3] else f", but for rows as long as those of V, {shapes['V'][3]}"
            raise UsageError(f"Q has shape {shapes['Q']} and {name} {shapes[name]}; they have to be the same{rows}")
    if shapes["lse"] != shapes["Q"][:3]:
        raise UsageError(f"lse has shape {shapes['lse']}; one number for each row of Q would be {shapes['Q'][:3]}")
    forward = FORWARD.problem_of_arrays
    assert forward is not None
    layout = fields.get("layout", BackwardProblem.VARLEN_LAYOUT)  # may place gradients, which attention does not have
    problem = forward(arrays, dtype, {name: value for name, value in fields.items() if name != "layout"})
    return dataclasses.replace(backward(dataclasses.replace(problem, layout=DENSE)), layout=layout)


OPERATION = Operation(
    name="attention-backward",
    idea="dQ, dK and dV of O = softmax(scale Q K^T + mask) V, from Q, K, V, O, lse and dO",
    problem=BackwardProblem,
    regimes=REGIMES,
    derived_inputs=_derived_inputs,
    answer=gradients,
    tolerance=error_budget,
    numerics_used=numerics_used,
    trivial_answers=trivial_answers,
    shorter=FORWARD.shorter,
    parts=choose_parts,
    builds_of=builds_of,
    cases=cases,
    axes=BackwardAxes,
    properties=PROPERTIES,
    simpler=CASES.simpler,
    size=CASES.size,
    enlarged=CASES.enlarged,
    probed_axes=CASES.probed_axes,
    peculiarities=FORWARD.peculiarities,
    tile_names=FORWARD.tile_names,
    hints=_hints,
    settings=FORWARD.settings,
    further_inputs=FORWARD.further_inputs,
    problem_of_arrays=_problem_of_arrays,
    lengths=FORWARD.lengths,
    field_in_words=FORWARD.field_in_words,
    require_sweepable=FORWARD.require_sweepable,
    libraries=LIBRARIES,
    libraries_in_words=libraries_in_words,
    flops_in_words="the five matrix products over the keys that each row sees",
)
"""dQ, dK and dV, after Dao et al. 2022, arXiv 2205.14135, appendix B.2."""
