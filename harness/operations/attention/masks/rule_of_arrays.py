"""Which keys a row sees, from the arrays that kernels are given: in whatever library these arrays are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from harness.operations.attention.masks.arrays import BLOCKS, END_KEYS, FIRST_KEYS, HIDDEN_ROWS
from harness.operations.attention.masks.mask import band_limits

if TYPE_CHECKING:
    from harness.operations.attention.problem import Problem

Rule = Callable[[Any, Any, Any, Any], Any]
"""Batch entry, query head, row and key, arrays of whole numbers that are broadcast against each other -> booleans."""


def rule_of_arrays(problem: Problem, arrays: Mapping[str, Any]) -> Rule | None:
    """Whether a row sees a key; None: it sees all.

    `arrays` has the inputs of the problem that are its mask's (`mask_arrays`), by name. The rule takes no array but
    these: where they are on a GPU, so is what it gives. It is what `flex_attention` calls a mask_mod.
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
