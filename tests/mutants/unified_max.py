"""A constant in place of the maximum, and rows that are computed again: unified-max, which is CUDA alone."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch


def _in_kernel(bug: str, old: str, new: str, *, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "unified-max-cupy", (Patch("attention/unified_max/kernel.cu", old, new),), sanitize)


MUTANTS = (
    _in_kernel("weights that are too large for 16 bits used", "if (largest[i] > unified.largest_weight)", "if (false)"),
    _in_kernel("sums that are too small used", "is_safe = l >= unified.smallest_sum &&", "is_safe = l >= 0.0f &&"),
    _in_kernel(
        "rows not computed again",
        "is_unsafe = again[t] = sees_keys && !is_safe;", "is_unsafe = again[t] = false;",
    ),
    _in_kernel(
        "counter of splits not reset for the next run",
        "atomicInc(&arrived[tile.number], splits - 1) == splits - 1;",
        "atomicAdd(&arrived[tile.number], 1u) == splits - 1;",
    ),
    _in_kernel("tiles of a head share a counter of splits", "&arrived[tile.number]", "&arrived[tile.kv_head]"),
    _in_kernel("l of some splits alone", "i < AT_ONCE; ++i) l +=", "i < 1; ++i) l +="),
    _in_kernel("O of the first split alone", "s < done.splits; ++s) {", "s < 1; ++s) {"),
    _in_kernel("largest weight of the last tile alone", "fmaxf(largest[e / 2], S[n][e]);", "S[n][e];"),
    _in_kernel(
        "splits not fenced before the counter",
        "    __threadfence();\n    __syncthreads();\n    if (t == 0) {\n        is_last",
        "    __syncthreads();\n    if (t == 0) {\n        is_last",
        sanitize=True,
    ),
    _in_kernel(
        "O of the constant beside l of the maximum",
        "again[row] ? shared_O(e + i) * weight[row] :", "false ? 0.0f :",
    ),
    _in_kernel(
        "rows computed again from their first split alone",
        "whole.first_split * SPLIT, whole.end,", "whole.first_split * SPLIT, min(whole.end, SPLIT),",
    ),
)  # fmt: skip
