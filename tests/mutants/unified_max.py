"""A constant in place of the maximum, and rows that are computed again: unified-max."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

Text = tuple[str, str]
"""What is replaced, and by what."""
FILES = {"cupy": "kernel.cu", "numba": "numba_kernel.py"}


def _in_kernel(bug: str, cuda: Text, numba: Text, *, sanitize: bool = False) -> tuple[Mutant, ...]:
    return tuple(
        Mutant(bug, f"unified-max-{language}", (Patch(f"attention/unified_max/{file}", *replaced),), sanitize)
        for (language, file), replaced in zip(FILES.items(), (cuda, numba))
    )


MUTANTS = (
    *_in_kernel(
        "weights that are too large for 16 bits used",
        ("if (largest[i] > unified.largest_weight)", "if (false)"),
        ("if largest[i] > unified.largest_weight:", "if False:"),
    ),
    *_in_kernel(
        "sums that are too small used",
        ("is_safe = l >= unified.smallest_sum &&", "is_safe = l >= 0.0f &&"),
        ("is_safe = l >= unified.smallest_sum and", "is_safe = l >= ZERO and"),
    ),
    *_in_kernel(
        "rows not computed again",
        ("is_unsafe = again[t] = sees_keys && !is_safe;", "is_unsafe = again[t] = false;"),
        ("is_unsafe = sees_keys and not is_safe", "is_unsafe = False"),
    ),
    *_in_kernel(
        "counter of splits not reset for the next run",
        (
            "atomicInc(&arrived[tile.number], splits - 1) == splits - 1;",
            "atomicAdd(&arrived[tile.number], 1u) == splits - 1;",
        ),
        ("atomic_increment(counter, uint32(splits - 1))", "atomic_increment(counter, uint32(0xFFFFFFFF))"),
    ),
    *_in_kernel(
        "tiles of a head share a counter of splits",
        ("&arrived[tile.number]", "&arrived[tile.kv_head]"),
        ("arrived() + tile.number *", "arrived() + tile.kv_head *"),
    ),
    *_in_kernel(
        "l of some splits alone",
        ("i < AT_ONCE; ++i) l +=", "i < 1; ++i) l +="), ("for i in range(AT_ONCE):", "for i in range(1):"),
    ),
    *_in_kernel(
        "O of the first split alone",
        ("s < done.splits; ++s) {", "s < 1; ++s) {"), ("for s in range(done.splits):", "for s in range(1):"),
    ),
    *_in_kernel(
        "largest weight of the last tile alone",
        ("fmaxf(largest[e / 2], S[n][e]);", "S[n][e];"), ("max(largest[e // 2], S[0, n, e])", "S[0, n, e]"),
    ),
    *_in_kernel(
        "splits not fenced before the counter",
        (
            "    __threadfence();\n    __syncthreads();\n    if (t == 0) {\n        is_last",
            "    __syncthreads();\n    if (t == 0) {\n        is_last",
        ),
        (
            "        cuda.threadfence()\n        cuda.syncthreads()\n        if t == 0:\n            counter",
            "        cuda.syncthreads()\n        if t == 0:\n            counter",
        ),
        sanitize=True,
    ),
    *_in_kernel(
        "O of the constant beside l of the maximum",
        ("again[row] ? shared_O(e + i) * weight[row] :", "false ? 0.0f :"), ("if again[row] != 0:", "if False:"),
    ),
    *_in_kernel(
        "rows computed again from their first split alone",
        ("whole.first_split * SPLIT, whole.end,", "whole.first_split * SPLIT, min(whole.end, SPLIT),"),
        (
            "int32(tile.first_split * SPLIT), tile.end,",
            "int32(tile.first_split * SPLIT), min(tile.end, int32(SPLIT)),",
        ),
    ),
)  # fmt: skip
