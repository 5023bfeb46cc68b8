"""Appending to a paged cache as an operation: which module has which part of it, and its smaller parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.model.cases.property import DETERMINISM
from harness.model.operation import Operation, cases_of, field_in_words
from harness.model.spread import in_powers
from harness.operations.kv_append.cases import (
    AppendAxes,
    builds_of,
    enlarged,
    peculiarities,
    probed_axes,
    simpler,
    size,
)
from harness.operations.kv_append.inputs import REGIMES, derived_inputs
from harness.operations.kv_append.oracle import (
    answer,
    element_in_words,
    exact_outputs,
    known_mistakes,
    needed_read_bytes,
    tolerance,
    trivial_answers,
)
from harness.operations.kv_append.problem import AppendProblem, new_in_words
from harness.operations.paged_attention.operation import common_prefix, fill_of_pages
from harness.operations.paged_attention.sequences import lengths_in_words, require_page_size
from harness.support.errors import UsageError

LARGEST_SWEPT = 2**20
"""Keys of a sequence, or new tokens. Beyond, even the closed forms would take minutes."""


def problem_of_arrays(arrays: Mapping[str, np.ndarray], dtype: str, fields: Mapping[str, Any]) -> AppendProblem:
    """Return the problem that these arrays pose. Raises `UsageError` or `ProblemError` if they do not fit together."""
    K_new, V_new, starts, table, lengths, K, V = (
        arrays[name] for name in ("K_new", "V_new", "starts", "table", "lengths", "K", "V")
    )
    for name, one, other in (("K and V", K, V), ("K_new and V_new", K_new, V_new)):
        if one.shape != other.shape:
            raise UsageError(f"{name} have the shapes {one.shape} and {other.shape}; they have to be the same")
    pages, kv_heads, page_size, head_dim = K.shape
    if K_new.shape[1:] != (kv_heads, head_dim):
        raise UsageError(
            f"a token of K_new has {K_new.shape[1:]} heads and columns, and the pool {(kv_heads, head_dim)}"
        )
    if not len(starts) - 1 == len(table) == len(lengths):
        raise UsageError(
            f"starts has {len(starts)} elements, the table {len(table)} sequences and lengths {len(lengths)}; starts "
            "has one more than there are sequences"
        )
    new = np.diff(starts)
    if starts[0] != 0 or starts[-1] != len(K_new) or (new < 0).any():
        raise UsageError(f"starts has to go up from 0 to the number of new tokens, which is {len(K_new)}")
    require_page_size(page_size)
    if (new > lengths).any():
        sequence = int(np.argmax(new > lengths))
        raise UsageError(
            f"sequence {sequence} has length {lengths[sequence]} and {new[sequence]} new tokens; lengths have to count "
            "new tokens"
        )
    fill = fill_of_pages(table, lengths, pages, page_size)
    _require_own_rows(table, lengths, new, page_size)
    return AppendProblem(
        lengths=tuple(lengths.tolist()), new_lengths=tuple(new.tolist()), kv_heads=kv_heads, head_dim=head_dim,
        dtype=dtype, page_size=page_size, pages=pages, table_len=table.shape[1],
        prefix=common_prefix(table, lengths - new, page_size),
        in_use=(int(np.count_nonzero(fill)), int(fill.sum())), **fields,
    )  # fmt: skip


def _require_own_rows(table: np.ndarray, lengths: np.ndarray, new: np.ndarray, page_size: int) -> None:
    """Raise `UsageError` if a sequence appends into a page that another one has, too."""
    owners: dict[int, int] = {}
    written: dict[int, int] = {}
    for sequence, (length, count) in enumerate(zip(lengths.tolist(), new.tolist())):
        pages = table[sequence, : -(-length // page_size)].tolist()
        appended = set(pages[(length - count) // page_size :]) if count else set()
        for page in dict.fromkeys(pages):
            other = owners.get(page) if page in appended else written.get(page)
            if other is not None:
                raise UsageError(
                    f"sequences {other} and {sequence} share page {page}, to which one of them appends; an engine "
                    "copies such a page first"
                )
        owners.update(dict.fromkeys(pages, sequence))
        written.update(dict.fromkeys(appended, sequence))


def _field_in_words(problem: AppendProblem, name: str) -> list[str]:
    if name == "lengths":
        return [lengths_in_words(problem.lengths)]
    if name == "new_lengths":
        return [new_in_words(problem.new_lengths)]
    if name == "far":
        return [f"far {in_powers(problem.far)}"] if problem.far else []
    silent = name in ("batch", "pages", "table_len", "in_use") or (name == "prefix" and not problem.prefix)
    return [] if silent else field_in_words(problem, name)


def _require_sweepable(problem: AppendProblem) -> None:
    if max(*problem.lengths, problem.tokens) > LARGEST_SWEPT:
        raise UsageError(
            f"--sweep reaches {max(problem.lengths):,} keys in a sequence and {problem.tokens:,} new tokens; the most "
            f"is {LARGEST_SWEPT:,} either way"
        )


OPERATION = Operation(
    name="kv-append",
    idea="new keys and values are copied to their rows of a paged cache",
    problem=AppendProblem,
    regimes=REGIMES,
    derived_inputs=derived_inputs,
    answer=answer,
    tolerance=tolerance,
    exact_outputs=exact_outputs,
    element_in_words=element_in_words,
    trivial_answers=trivial_answers,
    needed_read_bytes=needed_read_bytes,
    builds_of=builds_of,
    cases=cases_of("harness.operations.kv_append.strategies"),
    axes=AppendAxes,
    properties={DETERMINISM.name: DETERMINISM},
    simpler=simpler,
    size=size,
    enlarged=enlarged,
    probed_axes=probed_axes,
    peculiarities=peculiarities,
    known_mistakes=known_mistakes,
    problem_of_arrays=problem_of_arrays,
    field_in_words=_field_in_words,
    require_sweepable=_require_sweepable,
    flops_in_words="a copy has none",
)
"""K and V of new tokens -> rows of a pool of pages, of which everything else stays as it is."""
