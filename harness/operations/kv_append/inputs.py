"""How the new tokens, the pool and the table are drawn: every row of the pool has values, whether it is a key or not.

The table is paged attention's: pages of a sequence are scattered over the pool, and entries behind the last are -1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.model.cases.regime import NUMPY_DTYPES, Regime, by_name
from harness.operations.kv_append.problem import AppendProblem
from harness.operations.paged_attention.inputs import draw_table

BITS = "bits"


def derived_inputs(problem: AppendProblem) -> dict[str, np.ndarray]:
    """Where the new tokens of each sequence start, and the lengths after the append."""
    return {"starts": np.array(problem.starts, np.int32), "lengths": np.array(problem.lengths, np.int32)}


def _normal(rng: np.random.Generator, problem: AppendProblem) -> Sequence[np.ndarray]:
    K_new, V_new, _, _, _, K, V = (tensor.shape for tensor in problem.tensors)
    table = draw_table(rng, problem)
    # Two draws of each: rows of K and V, new and old ones, all differ.
    new = [rng.standard_normal(shape) for shape in (K_new, V_new)]
    return (*new, table, rng.standard_normal(K), rng.standard_normal(V))


def _bits(rng: np.random.Generator, problem: AppendProblem) -> Sequence[np.ndarray]:
    dtype = NUMPY_DTYPES[problem.dtype]
    K_new, V_new, _, _, _, K, V = (
        rng.integers(0, 256, (*tensor.shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]
        if tensor.dtype == problem.dtype
        else None
        for tensor in problem.tensors
    )
    assert K_new is not None and V_new is not None and K is not None and V is not None
    return K_new, V_new, draw_table(rng, problem), K, V


REGIMES = by_name(
    Regime("normal", "standard normal values, in rows that are no keys, too", _normal),
    Regime(BITS, "any bits: NaN of any payload, infinities, subnormal numbers and -0; copies have the same", _bits),
)
"""Every regime by name."""
