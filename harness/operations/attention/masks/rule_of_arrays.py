"""Evaluates a mask from the arrays that kernels get, in any array library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from harness.operations.attention.masks.arrays import (
    BLOCKS,
    CU_SEQLENS_K,
    CU_SEQLENS_Q,
    END_KEYS,
    FIRST_KEYS,
    HIDDEN_ROWS,
)
from harness.operations.attention.masks.mask import band_limits

if TYPE_CHECKING:
    from harness.operations.attention.problem import Problem

Rule = Callable[[Any, Any, Any, Any], Any]
"""Maps batch entry, query head, row and key, integer arrays that broadcast against each other, to booleans."""


def rule_of_arrays(problem: Problem, arrays: Mapping[str, Any]) -> Rule | None:
    """Return a function that says whether a row sees a key, or None if all rows see all keys.

    `arrays` are the inputs of the problem's mask (`mask_arrays`) by name. If they are on a GPU, so is the result. The
    function is a mask_mod in the terms of `flex_attention`.
    """
    rules = (*_runs(problem, arrays), *_blocks(problem, arrays), *_flashmask(problem, arrays))
    if not rules:
        return None

    def sees(batch: Any, head: Any, row: Any, key: Any) -> Any:
        seen = rules[0](batch, head, row, key)
        for rule in rules[1:]:
            seen = seen & rule(batch, head, row, key)
        return seen

    return sees


def _runs(problem: Problem, arrays: Mapping[str, Any]) -> tuple[Rule, ...]:
    if problem.sequences is not None:
        return _of_sequences(problem, arrays)
    if not problem.mask.runs.is_band:
        first_keys, end_keys = arrays[FIRST_KEYS], arrays[END_KEYS]
        return (lambda batch, head, row, key: (key >= first_keys[batch, row]) & (key < end_keys[batch, row]),)
    before, after = band_limits(problem.mask.runs)
    diagonal = problem.diagonal
    rules: list[Rule] = []
    if before is not None:
        first = diagonal - before
        rules.append(lambda batch, head, row, key: key - row >= first)
    if after is not None:
        last = diagonal + after
        rules.append(lambda batch, head, row, key: key - row <= last)
    return tuple(rules)


def _of_sequences(problem: Problem, arrays: Mapping[str, Any]) -> tuple[Rule, ...]:
    q_starts, kv_starts = arrays[CU_SEQLENS_Q], arrays[CU_SEQLENS_K]
    before, after = band_limits(problem.mask_within)
    numbers = range(len(q_starts) - 1)

    def sees(batch: Any, head: Any, row: Any, key: Any) -> Any:
        seen = None
        for n in numbers:
            is_own = (row >= q_starts[n]) & (row < q_starts[n + 1]) & (key >= kv_starts[n]) & (key < kv_starts[n + 1])
            beyond = (key - kv_starts[n + 1]) - (row - q_starts[n + 1])
            is_own = is_own if before is None else is_own & (beyond >= -before)
            is_own = is_own if after is None else is_own & (beyond <= after)
            seen = is_own if seen is None else seen | is_own
        return seen

    return (sees,)


def _blocks(problem: Problem, arrays: Mapping[str, Any]) -> tuple[Rule, ...]:
    if problem.blocks is None:
        return ()
    rows, keys = problem.blocks.size_for(problem.q_len, problem.kv_len)
    if problem.blocks.by_head:
        of_heads = arrays[BLOCKS]
        return (lambda batch, head, row, key: of_heads[head, row // rows, key // keys] != 0,)
    of_all = arrays[BLOCKS][0]
    return (lambda batch, head, row, key: of_all[row // rows, key // keys] != 0,)


def _flashmask(problem: Problem, arrays: Mapping[str, Any]) -> tuple[Rule, ...]:
    if problem.flashmask is None:
        return ()
    hidden = arrays[HIDDEN_ROWS]
    return tuple(_outside(hidden[2 * span], hidden[2 * span + 1]) for span in range(problem.flashmask.spans_per_key))


def _outside(starts: Any, ends: Any) -> Rule:
    return lambda batch, head, row, key: (row < starts[key]) | (row >= ends[key])
