"""Gradients that are wrong in a trivial way, for `Operation.trivial_answers`: scores ignored, or half of the keys."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from harness.model.operation import WHOLE, Part, TrivialAnswer
from harness.operations.attention_backward.oracle import Block, Sums, blocks_of, over_group
from harness.operations.attention_backward.problem import BackwardProblem

Float64Array = npt.NDArray[np.float64]


def trivial_answers(problem: BackwardProblem, inputs: Mapping[str, np.ndarray]) -> dict[str, TrivialAnswer]:
    """dQ, dK and dV of each trivial mistake, in the shapes of the outputs or of the part."""
    mistakes = {"equal weights": _equal_weights, "half of the keys": _half_of_the_keys}
    return {name: functools.partial(_gradients, problem, inputs, mistake) for name, mistake in mistakes.items()}


def _equal_weights(block: Block, first_key: int) -> Float64Array:
    """Equal weights over the keys that a row sees. A block with some of the keys keeps the sum of their weights."""
    seen = block.visible.astype(np.float64)
    equal: Float64Array = seen * (block.p.sum(axis=-1, keepdims=True) / np.maximum(seen.sum(axis=-1, keepdims=True), 1))
    return equal


def _half_of_the_keys(block: Block, first_key: int) -> Float64Array:
    keys = first_key + np.arange(block.k.shape[-2])
    halved: Float64Array = block.p * (2 * keys < block.problem.kv_len)
    return halved


def _gradients(
    problem: BackwardProblem,
    inputs: Mapping[str, np.ndarray],
    weights: Callable[[Block, int], Float64Array],
    part: Part,
) -> dict[str, Float64Array]:
    """The oracle's formulas with other weights in place of P."""
    sums = Sums.zeros(problem, part)
    for block in blocks_of(problem, inputs, part):
        # Blocks of rows have all keys.
        first_key = 0 if part is WHOLE or block.keys is None else part.of("dK")[2].start
        p = np.where(block.nonfinite, 0.0, weights(block, first_key))
        ds = p * (block.dp - block.delta)
        sums.add(
            block,
            None if block.rows is None else problem.tau * (ds @ block.k),
            None if block.keys is None else problem.tau * over_group(ds, block.q),
            None if block.keys is None else over_group(p * block.kept, block.do),
        )
    return sums.as_outputs()
