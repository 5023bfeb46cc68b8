"""How Q, the pool and the table are drawn: attention's regimes, sequence by sequence, laid out in pages.

The table is a random permutation of the pool: pages of a sequence are scattered over it, and pages that nobody has lie
between. What no row sees is poison: rows of the pool are NaN, and entries of the table name no page. That includes what
lies before a sequence's window. Inputs of score terms and sinks are drawn as attention draws them for the longest
sequence. Keys and values in 8 bits are drawn in the dtype of Q first, then divided by scales and rounded.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.model.cases.regime import NUMPY_DTYPES, Regime, by_name
from harness.operations.attention.inputs import REGIMES as OF_ATTENTION
from harness.operations.attention.masks import CU_SEQLENS_Q
from harness.operations.attention.problem import Problem
from harness.operations.paged_attention.eight_bits import draw_scales, stored
from harness.operations.paged_attention.problem import PagedProblem
from harness.operations.paged_attention.sequences import PagedPool, PagedSequences

Float64Array = npt.NDArray[np.float64]
Table = npt.NDArray[np.int32]
Drawn = Sequence[np.ndarray]

NO_PAGE = -1
"""Entry of the table behind the last page of a sequence, and before its window: a kernel that follows it leaves its
memory."""
NOT_FINITE = "non-finite"
"""The regime that has NaN and infinity where they may not reach everybody."""


def sequences_of_length(
    problem: PagedSequences, length: int, count: int, rows: int | None = None, **rules: Any
) -> Problem:
    """The problem of attention that so many sequences of one length pose; `length` is at least 1.

    Each has `rows` rows, at least 1, by default `q_len`. It has no mask and no score terms but those of `rules`.
    """
    return Problem(
        batch=count,
        heads=problem.heads,
        kv_heads=problem.kv_heads,
        q_len=problem.q_len if rows is None else rows,
        kv_len=length,
        head_dim=problem.head_dim,
        v_head_dim=problem.v_width,
        dtype=problem.dtype,
        scale=problem.tau,
        **rules,
    )


def rules_of(problem: PagedSequences) -> dict[str, Any]:
    """The mask and the score terms, as fields of attention's problem."""
    return {"mask": problem.mask, **{term.field: getattr(problem, term.field) for term in problem.terms}}


def place_of_rows(problem: PagedSequences, sequence: int) -> tuple[Any, ...]:
    """Return the index of the rows of a sequence in Q, O and lse."""
    if problem.q_lengths is None:
        return (sequence,)
    first, end = problem.row_starts[sequence : sequence + 2]
    return (0, slice(None), slice(first, end))


def derived_inputs(problem: PagedSequences) -> dict[str, np.ndarray]:
    """The lengths, where packed rows begin, and inputs of score terms that follow from the problem."""
    of_terms = {name: array for term in problem.terms for name, array in term.derived(problem).items()}
    starts = {} if problem.q_lengths is None else {CU_SEQLENS_Q: np.array(problem.row_starts, np.int32)}
    return {"lengths": np.array(problem.lengths, np.int32), **starts, **of_terms}


def draw_table(rng: np.random.Generator, problem: PagedPool) -> Table:
    """(sequences, `table_len`): each page of the pool that is in use at one place, shared ones at several."""
    scattered = rng.permutation(problem.pool_pages)[: problem.pages_in_use].astype(np.int32)
    table = np.full(problem.table_shape, NO_PAGE, np.int32)
    # Of the common pages those that all sequences have evicted have none.
    evicted = problem.evicted_pages
    held = np.zeros(max(problem.shared_pages), np.bool_)
    for begin, shared in zip(evicted, problem.shared_pages):
        held[begin:shared] = True
    taken = int(held.sum())
    common = np.full(len(held), NO_PAGE, np.int32)
    common[held] = scattered[:taken]
    for row, pages, shared, begin in zip(table, problem.sequence_pages, problem.shared_pages, evicted):
        row[begin:shared] = common[begin:shared]
        own = max(0, pages - max(begin, shared))
        row[pages - own : pages] = scattered[taken : taken + own]
        taken += own
    return table


def fill_pools(
    pools: Sequence[tuple[np.ndarray, np.ndarray]], table: Table, problem: PagedSequences, sequence: int
) -> None:
    """Write those keys of a sequence that some row sees to its pages.

    Each of `pools` is a pool and the sequence's keys: (pages, ..., page_size, columns) and (..., length, columns).
    """
    length, size = problem.lengths[sequence], problem.page_size
    first_seen = problem.first_seen(length, problem.rows[sequence])
    for place in range(first_seen // size, -(-length // size)):
        begin, end = max(first_seen, place * size), min(length, (place + 1) * size)
        at = slice(begin - place * size, end - place * size)
        for pool, rows in pools:
            pool[table[sequence, place], ..., at, :] = rows[..., begin:end, :]


def _drawn_as(name: str, rng: np.random.Generator, problem: PagedProblem) -> Drawn:
    table = draw_table(rng, problem)
    Q = np.empty(problem.q_shape)
    # The pool is large, and rounded as it is filled.
    K, V = (np.full(problem.kv_shape, np.nan, NUMPY_DTYPES[problem.dtype]) for _ in range(2))
    # The longest last: what sequences share is as one of those draws it that have all of it.
    # What a sequence without rows has is seen by no row, except what it shares with others.
    with_rows = (sequence for sequence in range(problem.sequences) if problem.rows[sequence])
    for sequence in sorted(with_rows, key=lambda sequence: problem.lengths[sequence]):
        length, rows = problem.lengths[sequence], problem.rows[sequence]
        # Without a mask: with one, K would be poisoned where few rows are blind to it.
        alone = sequences_of_length(problem, max(length, 1), 1, rows)
        (q,), (k,), (v,) = OF_ATTENTION[name].draw(rng, alone)
        Q[place_of_rows(problem, sequence)] = q
        if name == NOT_FINITE and rows > 1 and length > 0:
            k[:, -1, rng.integers(problem.head_dim)] = np.nan  # which the last row alone sees
        fill_pools(((K, k), (V, v)), table, problem, sequence)
    longest = sequences_of_length(problem, max(1, length), 1, rows, **rules_of(problem))
    of_terms = list(_drawn_terms(name, rng, problem, longest, q, k))
    if problem.kv_dtype is None:
        return (Q, K, V, table, *of_terms)
    scales = [draw_scales(rng, pool) for pool in (K, V)]
    return (Q, *map(stored, (K, V), scales), table, *scales, *of_terms)


def _drawn_terms(
    name: str, rng: np.random.Generator, problem: PagedProblem, longest: Problem, q: Float64Array, k: Float64Array
) -> Iterator[Float64Array]:
    """Inputs of score terms and sinks, given Q and K of the longest sequence that has rows, and its problem."""
    if problem.terms:
        drawn = {"Q": q[None], "K": k[None]}
        for term in (term for term in problem.terms if not term.inputs_follow):
            (array,) = term.input_names
            drawn[array] = term.draw(name, rng, longest, drawn)
            yield drawn[array]


REGIMES = by_name(
    *(Regime(each.name, each.idea, functools.partial(_drawn_as, each.name)) for each in OF_ATTENTION.values())
)
"""Every regime of attention by name, for each sequence on its own."""
