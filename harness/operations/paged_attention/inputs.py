"""How Q, the pool and the table are drawn: attention's regimes, sequence by sequence, laid out in pages.

The table is a random permutation of the pool: pages of a sequence are scattered over it, and pages that nobody has lie
between. What no sequence has is poison: rows of the pool are NaN, entries of the table name a page that no pool has.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from harness.model.cases.regime import NUMPY_DTYPES, Regime, by_name
from harness.operations.attention.inputs import REGIMES as OF_ATTENTION
from harness.operations.attention.masks import NO_MASK, Mask
from harness.operations.attention.problem import Problem
from harness.operations.paged_attention.problem import PagedProblem
from harness.operations.paged_attention.sequences import PagedSequences

Float64Array = npt.NDArray[np.float64]
Table = npt.NDArray[np.int32]
Drawn = tuple[Float64Array, np.ndarray, np.ndarray, Table]

NO_PAGE = 2**31 - 1
"""Behind the last page of a sequence: a kernel that follows it leaves its memory."""
NOT_FINITE = "non-finite"
"""The regime that has NaN and infinity where they may not reach everybody."""


def sequences_of_length(problem: PagedSequences, length: int, count: int, mask: Mask = NO_MASK) -> Problem:
    """The problem of attention that so many sequences of one length pose; `length` is at least 1."""
    return Problem(
        batch=count,
        heads=problem.heads,
        kv_heads=problem.kv_heads,
        q_len=problem.q_len,
        kv_len=length,
        head_dim=problem.head_dim,
        v_head_dim=problem.v_width,
        dtype=problem.dtype,
        mask=mask,
        scale=problem.tau,
    )


def lengths_of(problem: PagedSequences) -> dict[str, np.ndarray]:
    """The lengths, which follow from the problem."""
    return {"lengths": np.array(problem.lengths, np.int32)}


def draw_table(rng: np.random.Generator, problem: PagedSequences) -> Table:
    """(sequences, `table_len`): each page of the pool that is in use at one place, shared ones at several."""
    scattered = rng.permutation(problem.pool_pages)[: problem.pages_in_use].astype(np.int32)
    table = np.full(problem.table_shape, NO_PAGE, np.int32)
    common, taken = scattered[: max(problem.shared_pages)], max(problem.shared_pages)
    for row, pages, shared in zip(table, problem.sequence_pages, problem.shared_pages):
        row[:shared] = common[:shared]
        row[shared:pages] = scattered[taken : taken + pages - shared]
        taken += pages - shared
    return table


def _drawn_as(name: str, rng: np.random.Generator, problem: PagedProblem) -> Drawn:
    table = draw_table(rng, problem)
    Q = np.empty(problem.q_shape)
    # The pool is large, and rounded as it is filled.
    K, V = (np.full(problem.kv_shape, np.nan, NUMPY_DTYPES[problem.dtype]) for _ in range(2))
    # The longest last: what sequences share is as one of those draws it that have all of it.
    for sequence in sorted(range(problem.sequences), key=lambda sequence: problem.lengths[sequence]):
        length = problem.lengths[sequence]
        # Without a mask: with one, K would be poisoned where few rows are blind to it.
        alone = sequences_of_length(problem, max(length, 1), 1)
        (q,), (k,), (v,) = OF_ATTENTION[name].draw(rng, alone)
        Q[sequence] = q
        if name == NOT_FINITE and problem.q_len > 1 and length > 0:
            k[:, -1, rng.integers(problem.head_dim)] = np.nan  # which the last row alone sees
        for place, page in enumerate(table[sequence, : problem.sequence_pages[sequence]]):
            first = place * problem.page_size
            rows = min(problem.page_size, length - first)
            K[page, :, :rows], V[page, :, :rows] = (x[:, first : first + rows] for x in (k, v))
    return Q, K, V, table


REGIMES = by_name(
    *(Regime(each.name, each.idea, functools.partial(_drawn_as, each.name)) for each in OF_ATTENTION.values())
)
"""Every regime of attention by name, for each sequence on its own."""
