"""How Q, the pool and the table are drawn: attention's regimes, sequence by sequence, laid out in pages.

Values are columns of keys, so attention's draw of K becomes the cache. Two regimes are about values: there, the latent
columns are attention's draw of V. As in paged attention, pages are scattered over the pool, what no sequence has is
NaN, and table entries behind the last page name no page.
"""

from __future__ import annotations

import functools

import numpy as np

from harness.model.array_types import Float64Array
from harness.model.cases.regime import NUMPY_DTYPES, Regime, by_name
from harness.operations.attention.inputs import REGIMES as OF_ATTENTION
from harness.operations.mla_decode.problem import MlaProblem
from harness.operations.paged_attention.inputs import NOT_FINITE, draw_table, fill_pools, sequences_of_length

Drawn = tuple[Float64Array, np.ndarray, np.ndarray]

ABOUT_VALUES = ("exact", "subnormal")
"""Regimes in which the latent columns are those of V."""
IDEAS = {
    NOT_FINITE: "the last key of each sequence has NaN or infinity, which must not affect rows that do not see it",
    "exact": "Q is 0 and values are whole numbers: if a row sees 2^m keys, its result must be exact",
    "subnormal": "values around the smallest normal number of their dtype and below",
    "offset": "the cache around 4: the means of values are far from zero",
}
"""What regimes are about that differ from attention's."""


def _drawn_as(name: str, rng: np.random.Generator, problem: MlaProblem) -> Drawn:
    table = draw_table(rng, problem)
    Q = np.empty(problem.q_shape)
    # The pool is large, and rounded as it is filled.
    C = np.full(problem.cache_shape, np.nan, NUMPY_DTYPES[problem.dtype])
    regime = OF_ATTENTION["normal" if name == NOT_FINITE else name]
    # The longest last: what sequences share is as one of those draws it that have all of it.
    for sequence in sorted(range(problem.sequences), key=lambda sequence: problem.lengths[sequence]):
        length = problem.lengths[sequence]
        # Without a mask: with one, keys would be poisoned where few rows are blind to them.
        (q,), (k,), (v,) = regime.draw(rng, sequences_of_length(problem, max(length, 1), 1))
        Q[sequence] = q
        rows = np.array(k[0])
        if name in ABOUT_VALUES:
            rows[:, : problem.latent_dim] = v[0]
        if name == NOT_FINITE and problem.q_len > 1:  # the last row alone sees it; with one row, all would be NaN
            rows[-1, rng.integers(problem.head_dim)] = rng.choice([np.nan, np.inf, -np.inf])
        fill_pools(((C, rows),), table, problem, sequence)
    return Q, C, table


REGIMES = by_name(
    *(
        Regime(each.name, IDEAS.get(each.name, each.idea), functools.partial(_drawn_as, each.name))
        for each in OF_ATTENTION.values()
    )
)
"""Every regime of attention by name, for each sequence on its own."""
