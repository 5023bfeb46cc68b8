"""Which weights drop out: random numbers by counter, so that kernels have the same in any order, with any tiles.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", SC'11) makes of a counter of four
words and a key of two, of 32 bits each, four words. One call is for one row, and for eight of its keys, those k that
have the same k // 64 and k % 8:

    counter = (k // 64 * 8 + k % 8, row, query head, batch entry)          key = (low, high 32 bits of the seed)

Of its four words, number (k % 64) // 8 is a half of word (k % 64) // 16: the low 16 bits where k // 8 is even, else the
high ones. The weight drops out where that number is below the problem's `dropout_threshold`. Threads that own every
eighth key of a row, as on CUDA cores, and those that have two neighbouring columns of every eight, as in fragments of
tensor cores, use all numbers of a call so.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.operations.attention.problem import Problem

Words = npt.NDArray[np.uint64]
"""Of 32 bits each, in 64: products fit."""

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
"""What is added to the key from round to round."""
LOW_WORD = np.uint64(0xFFFFFFFF)
KEYS_PER_BLOCK, COLUMNS = 64, 8


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10 of each of these counters, whose arrays are broadcast against each other."""
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
    """(b, h, rows, kv_len): which weights of these batch entries, query heads and rows do not drop out."""
    blocks = -(-problem.kv_len // KEYS_PER_BLOCK)
    calls = np.arange(blocks * COLUMNS, dtype=np.uint64)
    entry, head, row = (np.arange(run.start, run.stop, dtype=np.uint64) for run in (batches, heads, rows))
    seed = problem.dropout_seed
    words = philox(
        (calls, row[:, None], head[:, None, None], entry[:, None, None, None]), (seed & 0xFFFFFFFF, seed >> 32)
    )
    shape = (len(entry), len(head), len(row), blocks, COLUMNS)
    halves = [part for word in words for part in (word & np.uint64(0xFFFF), word >> np.uint64(16))]
    numbers = np.stack([np.broadcast_to(half, (*shape[:3], len(calls))).reshape(shape) for half in halves], axis=-2)
    kept: npt.NDArray[np.bool_] = (numbers >= problem.dropout_threshold).reshape(*shape[:3], -1)
    return kept[..., : problem.kv_len]
