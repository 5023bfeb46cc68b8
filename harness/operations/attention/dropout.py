"""Defines which weights are dropped, by counter-based random numbers, which are the same in any order and any tiles.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", SC'11) maps a counter of four 32-bit
words and a key of two to four words. One call covers four rows and four keys, eight apart: those rows r with the same
r // 32 and r % 8, and those keys k with the same k // 32 and k % 8:

    counter = (k // 32 * 8 + k % 8, r // 32 * 8 + r % 8, query head, batch entry)
    key     = (low, high 32 bits of the seed)

The number of a row and a key is byte (r % 32) // 8, counted from the lowest, of word (k % 32) // 8. The weight is
dropped if it is below the problem's `dropout_threshold`. In fragments of tensor cores a thread has rows or keys that
are eight apart, for S and for its transpose, so for 32 rows and 32 keys it uses all numbers of its calls.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.operations.attention.problem import Problem

Words = npt.NDArray[np.uint64]
"""Words of 32 bits, stored in 64 so that products fit."""

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
"""Added to the key after each round."""
LOW_WORD = np.uint64(0xFFFFFFFF)
BLOCK, CALL_STRIDE = np.uint64(32), np.uint64(8)
"""Rows and keys of a block, and the distance between those of one call."""


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Return Philox4x32-10 of each counter. The arrays of `counter` broadcast against each other."""
    a, b, c, d = counter
    shift = np.uint64(32)
    for number in range(ROUNDS):
        first, second = ((word + number * step) & 0xFFFFFFFF for word, step in zip(key, WEYL))
        even, odd = np.uint64(MULTIPLIERS[0]) * a, np.uint64(MULTIPLIERS[1]) * c
        a, b, c, d = (
            (odd >> shift) ^ b ^ np.uint64(first),
            odd & LOW_WORD,
            (even >> shift) ^ d ^ np.uint64(second),
            even & LOW_WORD,
        )
    return a, b, c, d


def kept_keys(problem: Problem, batches: slice, heads: slice, rows: slice) -> npt.NDArray[np.bool_]:
    """Return which weights of these batch entries, query heads and rows are not dropped, (b, h, rows, kv_len)."""
    entry, head, row, key = (
        np.arange(run.start, run.stop, dtype=np.uint64) for run in (batches, heads, rows, slice(0, problem.kv_len))
    )
    # Distinct calls, and the index of each row's and each key's call.
    row_calls, call_of_row = np.unique(_call(row), return_inverse=True)
    key_calls, call_of_key = np.unique(_call(key), return_inverse=True)
    seed = problem.dropout_seed
    words = philox(
        (key_calls, row_calls[:, None], head[:, None, None], entry[:, None, None, None]),
        (seed & 0xFFFFFFFF, seed >> 32),
    )
    shape = (len(entry), len(head), len(row_calls), len(key_calls))
    drawn = np.stack([np.broadcast_to(word, shape) for word in words]).astype("<u4").view(np.uint8)
    numbers = drawn.reshape(len(words), *shape, -1)  # word, entry, head, calls of rows and of keys, byte
    byte, word = _place(row)[:, None], _place(key)
    chosen = numbers[word, :, :, call_of_row[:, None], call_of_key, byte]  # row, key, entry, head
    kept: npt.NDArray[np.bool_] = chosen.transpose(2, 3, 0, 1) >= problem.dropout_threshold
    return kept


def _call(positions: Words) -> Words:
    """Return the call that draws the numbers of each row, or of each key; several share one."""
    calls: Words = positions // BLOCK * CALL_STRIDE + positions % CALL_STRIDE
    return calls


def _place(positions: Words) -> npt.NDArray[np.intp]:
    """Return the positions of numbers in a call's result: the byte for rows, the word for keys."""
    places: npt.NDArray[np.intp] = (positions % BLOCK // CALL_STRIDE).astype(np.intp)
    return places
