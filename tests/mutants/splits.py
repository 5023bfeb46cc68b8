"""Keys split over blocks and over warps, heads in one tile, copies on their way: split-kv, which is CUDA alone."""

from __future__ import annotations

from tests.mutants.patching import Mutant
from tests.mutants.planting import Replacement, in_split_kv


def _in_kernel(bug: str, old: str, new: str, *more: Replacement, sanitize: bool = False) -> Mutant:
    return in_split_kv(bug, (old, new), *more, sanitize=sanitize)


def _in_combine(bug: str, old: str, new: str, *more: Replacement, sanitize: bool = False) -> Mutant:
    """Planted where splits are put together, which pages have, too."""
    return in_split_kv(bug, (old, new), *more, file="_mma/combine.cuh", sanitize=sanitize)


_PUT_TOGETHER = (
    _in_kernel(
        "splits that a row does not see are added",
        "(end_seen(query, q_len, kv_len, after) + SPLIT - 1)", "(kv_len + SPLIT - 1)",
    ),
    _in_kernel(
        "splits ahead of a row's window are added",
        "first_split = first_seen(query, q_len, kv_len, before) / SPLIT;", "first_split = 0;",
    ),
    _in_kernel(
        "first split of a window left out",
        "first_seen(query, q_len, kv_len, before) / SPLIT;",
        "(first_seen(query, q_len, kv_len, before) + SPLIT - 1) / SPLIT;",
    ),
    _in_kernel("every split writes l where the first does", "l_split[split_stat + t]", "l_split[first_stat + t]"),
    _in_combine(
        "splits not brought to one maximum",
        "weight = exp_below(m_own, m_new);", "weight = m_own > MINUS_INFINITY;",
        ("l += exp_below(m_warps[w], m) *", "l += (m_warps[w] > MINUS_INFINITY) *"),
        ("sum += exp_below(m_warps[w], m) *", "sum += (m_warps[w] > MINUS_INFINITY) *"),
    ),
    _in_combine("only one warp's splits", "w < warps; ++w) sum +=", "w < 1; ++w) sum +="),
    _in_combine("weight of a share's first split for all", "weight, start + s);", "weight, 0);"),
    _in_combine("l of a share's first split alone", "warp_sum(weight * l_own);", "weight * l_own;"),
    _in_combine("maximum of a lane's own split", "fmaxf(m, warp_max(m_own))", "fmaxf(m, m_own)"),
    _in_combine(
        "no barrier before splits are added up",
        "    __syncthreads();\n\n    m = MINUS_INFINITY;", "    m = MINUS_INFINITY;", sanitize=True,
    ),
    _in_kernel(
        "warps not brought to one maximum",
        "const float correction = exp_below(m[i], m_block),", "const float correction = 1.0f,",
    ),
    _in_kernel("l summed in one lane only", "l_row = quad_sum(l[i]);", "l_row = l[i];"),
    _in_kernel(
        "no barrier before slots become O",
        "    __syncthreads();  // and nobody reads a slot any more\n", "", sanitize=True,
    ),
)  # fmt: skip
_ROWS_AND_KEYS = (
    _in_kernel(
        "rows of a group taken for one head's", "(first_row + lane / 4 + 8 * i) % q_len", "first_row + lane / 4"
    ),
    _in_kernel("rows of the next group written", "rows = min(BR, group_rows - first_row);", "rows = BR;"),
    _in_kernel(
        "a zero weight times NaN",
        "if (max(key, first) >= from_for_all && min(key + BC, end) <= to_for_all) {",
        "if (true) {",
    ),
    _in_kernel("window one key too long on the left", "k >= from[e / 2] &&", "k + 1 >= from[e / 2] &&"),
    _in_kernel("window one key too long on the right", "k < to[e / 2] ?", "k <= to[e / 2] ?"),
    _in_kernel("first tile of a window unmasked", "k >= from[e / 2] && k < to", "k < to"),
    _in_kernel("first tile of a window skipped", "(key + BC <= first ||", "(key < first ||"),
    _in_kernel("keys of the second of two heads skipped", "key >= low_end && key + keys", "key + keys"),
    _in_kernel("keys beyond the last copied", "end - copied_key, lane);", "BC, lane);"),
    _in_kernel(
        "every warp begins with the first tile", "next_seen(split_first + warp * BC);", "next_seen(split_first);"
    ),
)
_COPIES = (
    _in_kernel("a copy too few is waited for", "wait_for_copies<SLOTS - 2>();", "wait_for_copies<SLOTS - 1>();"),
    _in_kernel("other lanes' copies not waited for", "        __syncwarp();\n", "", sanitize=True),
    _in_kernel(
        "a slot filled while it is read",
        "i < SLOTS - 1; ++i) copy_next();", "i < SLOTS; ++i) copy_next();", sanitize=True,
    ),
    _in_kernel("what rows are padded with not zeroed", "if constexpr (D % 16 != 0) {", "if constexpr (false) {"),
)  # fmt: skip

MUTANTS = (*_PUT_TOGETHER, *_ROWS_AND_KEYS, *_COPIES)
