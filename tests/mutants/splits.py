"""Keys split over blocks and over warps, heads in one tile, copies on their way: split-kv, which is CUDA alone."""

from __future__ import annotations

from tests.mutants.patching import Mutant
from tests.mutants.planting import SPLIT, Replacement, in_split_kv


def _in_kernel(bug: str, old: str, new: str, *more: Replacement, sanitize: bool = False) -> Mutant:
    return in_split_kv(bug, (old, new), *more, sanitize=sanitize)


def _in_split(bug: str, old: str, new: str, *, sanitize: bool = False) -> Mutant:
    """Planted in what a block does with its split, which pages have, too."""
    return in_split_kv(bug, (old, new), file=SPLIT, sanitize=sanitize)


def _in_runs(bug: str, old: str, new: str) -> Mutant:
    """Planted in which keys rows see."""
    return in_split_kv(bug, (old, new), file="_mma/runs_of_rows.cuh")


def _in_combine(bug: str, old: str, new: str, *more: Replacement, sanitize: bool = False) -> Mutant:
    """Planted where splits are put together, which pages have, too."""
    return in_split_kv(bug, (old, new), *more, file="_mma/combine.cuh", sanitize=sanitize)


_PUT_TOGETHER = (
    _in_kernel(
        "splits that a row does not see are added",
        "(run.end(row.query) + SPLIT - 1)", "(own.kv_len + SPLIT - 1)",
    ),
    _in_kernel(
        "splits ahead of a row's window are added",
        "first_split = run.first(row.query) / SPLIT,", "first_split = 0,",
    ),
    _in_kernel(
        "first split of a window left out",
        "run.first(row.query) / SPLIT,", "(run.first(row.query) + SPLIT - 1) / SPLIT,",
    ),
    _in_kernel("every split writes l where the first does", "l_split + split_stat,", "l_split + first_stat,"),
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
    _in_split(
        "warps not brought to one maximum",
        "const float correction = exp_below(own.m[i], m_block),", "const float correction = 1.0f,",
    ),
    _in_split("l summed in one lane only", "l_row = quad_sum(own.l[i]);", "l_row = own.l[i];"),
    _in_split(
        "no barrier before slots become O",
        "    __syncthreads();  // and no warp reads a slot any more\n", "", sanitize=True,
    ),
)  # fmt: skip
_ROWS_AND_KEYS = (
    _in_kernel(
        "rows of a group taken for one head's",
        "{own_rows[0] % own_len, own_rows[1] % own_len}",
        "{own_rows[0], own_rows[1]}",
    ),
    _in_kernel("rows of the next group written", "rows = min(BR, group_rows - first_row);", "rows = BR;"),
    _in_split(
        "a zero weight times NaN",
        "if (seen.all_see(max(key, keys.first), min(key + BC, keys.end))) {",
        "if (true) {",
    ),
    _in_runs("window one key too long on the left", "k >= from[i] &&", "k + 1 >= from[i] &&"),
    _in_runs("window one key too long on the right", "k < to[i];", "k <= to[i];"),
    _in_runs("first tile of a window unmasked", "k >= from[i] && k < to", "k < to"),
    _in_kernel("first tile of a window skipped", "(key + BC <= first ||", "(key < first ||"),
    _in_kernel("keys of the second of two heads skipped", "key >= low_end && key + keys", "key + keys"),
    _in_split("keys beyond the last copied", "end = keys.end - copied_key;", "end = BC;"),
    _in_kernel(
        "every warp begins with the first tile", "next_seen(split_first + warp * BC);", "next_seen(split_first);"
    ),
)
_COPIES = (
    _in_split("a copy too few is waited for", "wait_for_copies<Tiles::COUNT - 2>();",
              "wait_for_copies<Tiles::COUNT - 1>();"),
    _in_split("other lanes' copies not waited for", "        __syncwarp();\n", "", sanitize=True),
    _in_split(
        "a slot filled while it is read",
        "i < Tiles::COUNT - 1; ++i) ring.copy_next();", "i < Tiles::COUNT; ++i) ring.copy_next();", sanitize=True,
    ),
    _in_split("what rows are padded with not zeroed", "if constexpr (D % 16 != 0) {", "if constexpr (false) {"),
)  # fmt: skip

MUTANTS = (*_PUT_TOGETHER, *_ROWS_AND_KEYS, *_COPIES)
