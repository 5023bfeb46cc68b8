"""The mistakes of backward_tensor_cores.py in the twins from Python: the same bugs, by the same names."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

KEYS, ENDS, SCORING, PRODUCTS, SEEN, TURNS, SHARES, DQ = (
    f"_mma_backward/numba_{name}.py"
    for name in ("keys", "ends", "scoring", "products", "seen", "turns", "shares", "dq")
)
PLAN = "_mma_backward/__init__.py"
ROWS = "attention_backward/mma_ordered/numba_kernel.py"


def _of_keys(bug: str, *changes: tuple[str, str], file: str = KEYS, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "bwd-mma-numba", tuple(Patch(file, *change) for change in changes), sanitize)


def _of_scores(bug: str, *changes: tuple[str, str], sanitize: bool = False) -> Mutant:
    return _of_keys(bug, *changes, file=SCORING, sanitize=sanitize)


def _of_visits(bug: str, *changes: tuple[str, str]) -> Mutant:
    return _of_keys(bug, *changes, file=TURNS)


def _of_limits(bug: str, *changes: tuple[str, str]) -> Mutant:
    return _of_keys(bug, *changes, file=SEEN)


def _of_products(bug: str, *changes: tuple[str, str], sanitize: bool = False) -> Mutant:
    return _of_keys(bug, *changes, file=PRODUCTS, sanitize=sanitize)


def _of_rows(bug: str, *changes: tuple[str, str], file: str = ROWS, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "bwd-mma-ordered-numba", tuple(Patch(file, *change) for change in changes), sanitize)


_ADD_APART = (
    '"{ .reg .f32 a, b, c, d; ld.global.v4.f32 {a, b, c, d}, [$0]; add.f32 a, a, $1; add.f32 b, b, $2;"\n'
    '    " add.f32 c, c, $3; add.f32 d, d, $4; st.global.v4.f32 [$0], {a, b, c, d}; }"'
)

_FORMULAS = (
    _of_scores(
        "D left out",
        ("D_low, D_high = load_floats(", "D_low, D_high = float32(0), float32(0)  # load_floats("),
    ),
    _of_scores("D of the row beside", ("D_low, D_high = load_floats(", "D_high, D_low = load_floats(")),
    _of_scores("log-sum-exp of the row beside", ("tau2, -L_high)", "tau2, -L_low)")),
    _of_keys("P from a log-sum-exp to base e", ("LOG2_E * lse_of_row", "lse_of_row"), file=ENDS),
    _of_keys(
        "D without the last elements of a row",
        ("if chunk * CHUNK < D:", "if chunk * CHUNK + CHUNK <= D:"),
        file=ENDS,
    ),
    _of_keys("half of a row's lanes left out of D", ("other = LANES // 2", "other = LANES // 4"), file=ENDS),
    _of_keys("scale missing on dQ", ("column), packed(tau * c0, tau * c1)", "column), packed(c0, c1)"), file=ENDS),
    _of_keys(
        "scale missing on dK", ("gather(K_tile, sums[LAST_SUM], tau)", "gather(K_tile, sums[LAST_SUM], np.float32(1))")
    ),
    _of_keys("scale on dV", ("gather(V_tile, sums[0], factor(dropout))", "gather(V_tile, sums[0], tau)")),
    _of_visits("group not summed", ("uint32(int32(heads * tiles) + LAG)", "uint32(tiles + LAG)")),
    _of_keys(
        "group's heads mapped by tiling",
        (
            "first = head_of(block, turn) * uint64",
            "first = (uint64(kv_head_across()) + uint64(uint32(turn.head)) * uint64(cuda.gridDim.x)) * uint64",
        ),
    ),
    _of_keys(
        "dQ not zeroed",
        (
            "store_numbers(to + uint64(uint32(e)) * uint64(16), NOTHINGS)",
            "store_numbers(to + uint64(uint32(e)) * uint64(16), "
            "(NOTHINGS[0], NOTHINGS[0], NOTHINGS[0], uint32(127 << 23)))",
        ),
        file=ENDS,
    ),
)
_MASKS = (
    _of_scores("mask not repeated", ("if not by_all:", "if load_word(block.not_finite) != 0:")),
    _of_keys(
        "window before and after mixed up",
        ("limits, dropout = features.mirrored_limits(problem)", "limits, dropout = features.limits(problem)"),
        file=PLAN,
    ),
    _of_limits(
        "causal off by one in tiles that are masked",
        ("return int32(own - seen.after), rows", "return int32(own - seen.after - 1), rows"),
    ),
    _of_limits(
        "a tile on the diagonal taken for unmasked",
        (
            "int32(of.key + of.keys) <= end_in_band(seen, of.row)",
            "int32(of.key + of.keys) <= end_in_band(seen, of.last_row)",
        ),
    ),
    _of_limits(
        "keys on the diagonal skipped",
        ("of.key < end_in_band(seen, of.last_row)", "of.key < end_in_band(seen, of.row)"),
    ),
    _of_scores(
        "dS of a warp whose keys nobody sees left as it was",
        (
            "                store_weights(to, dS)",
            "                if by_some:\n                    store_weights(to, dS)",
        ),
    ),
    _of_visits("last tile of rows left out", ("uint32(end + BR - 1) // uint32(BR)", "uint32(end) // uint32(BR)")),
    _of_visits(
        "first tile of rows left out",
        ("int32(uint32(first) // uint32(BR))", "int32(uint32(first + BR - 1) // uint32(BR))"),
    ),
    _of_keys("NaN in dO reaches keys behind the mask", (" | copied_not_finite(dO_i, BR)", "")),
    _of_keys(
        "NaN in K reaches rows that do not see it",
        ("if found and thread_index() < BC:", "if found and thread_index() < 0:"),
    ),
    _of_rows(
        "NaN in K reaches rows that do not see it",
        ("if cuda.syncthreads_or(copied_not_finite(K_tile, BC)) != 0:", "if cuda.syncthreads_or(0) != 0:"),
    ),
    _of_rows(
        "causal off by one in tiles that are masked",
        ("int32(own + seen.after + 1)", "int32(own + seen.after)"),
    ),
    _of_rows(
        "last tile of keys left out of dQ",
        ("while first_key < end_key:", "while int32(first_key + BC) <= end_key:"),
    ),
    _of_rows(
        "a tile that lacks one key taken for unmasked",
        ("int32(key + KEYS_AT_ONCE) > warp_sees_to:", "int32(key + KEYS_AT_ONCE) > int32(warp_sees_to + 1):"),
    ),
)
_FRAGMENTS = (
    _of_products(
        "registers of P in the order of C",
        ("W[j >> 1, i, (j & 1) * 2 + h] = packed", "W[j >> 1, i, 2 * h + (j & 1)] = packed"),
    ),
    _of_scores(
        "dS stored in the place of the eight rows beside",
        (
            "W_lane = uint32(W_tile + W_lane + uint32(warps_key)",
            "W_lane = uint32(W_tile + (W_lane ^ uint32(16)) + uint32(warps_key)",
        ),
    ),
    _of_scores(
        "keys g and g + 8 of dS swapped",
        (
            "lane = lane_index()\n                W_lane = swizzled",
            "lane = lane_index() ^ uint32(8)\n                W_lane = swizzled",
        ),
    ),
    _of_scores(
        "dS of the warp beside",
        (
            "W_tile + W_lane + uint32(warps_key) * uint32(W_ROW_BYTES)",
            "W_tile + W_lane + (uint32(warps_key) ^ uint32(WARP_KEYS)) * uint32(W_ROW_BYTES)",
        ),
    ),
    _of_keys(
        "dS not transposed",
        ("= load_matrices_transposed(at)", "= load_matrices(at)"),
        ("    load_matrices_transposed,\n", "    load_matrices,\n    load_matrices_transposed,\n"),
        file=DQ,
    ),
    _of_keys(
        "rows g and g + 8 of dQ swapped",
        ("add_together(to, c)", "add_together(to, (c[2], c[3], c[0], c[1]))"),
        file=DQ,
    ),
    _of_keys("dQ of the columns beside", ("2 * k * DQ_GROUPS + e\n", "2 * k * DQ_GROUPS + 1 - e\n"), file=DQ),
    _of_scores("dK from P", ("add_kept_Wt_Y(sums[LAST_SUM], dS,", "add_kept_Wt_Y(sums[LAST_SUM], P,")),
    _of_scores(
        "weights for dV where those for dK are",
        ("W_lane + uint32(of_dV) * uint32(W_BYTES)", "W_lane + uint32(1 - of_dV) * uint32(W_BYTES)"),
    ),
    _of_keys(
        "half of the columns of a warp that sums",
        ("int32(own % uint32(COLUMN_GROUPS) * uint32(SUM_STEPS))", "int32(0)"),
        file=SHARES,
    ),
    _of_rows("D of rows g for rows g + 8", ("minus(dP, delta[i, h],", "minus(dP, delta[i, 0],")),
    _of_rows(
        "K not transposed",
        ("= load_matrices_transposed(chunks_further(K_lane,", "= load_matrices(chunks_further(K_lane,"),
    ),
)
_COPIES = (
    _of_keys(
        "no barrier before the next rows are copied",
        (
            "            else:\n                cuda.syncthreads()\n            if int32(turn.number + 1)",
            "            if int32(turn.number + 1)",
        ),
        sanitize=True,
    ),
    _of_scores(
        "dS stored where that of the step before is read",
        (
            "W_tile = dS_tile(block.chip, turn.number)\n        if HANDS",
            "W_tile = dS_tile(block.chip, int32(turn.number + 1))\n        if HANDS",
        ),
        sanitize=True,
    ),
    _of_keys("rows copied to the stage that is read", ("STAGES = tile.stages", "STAGES = 1"), file=SHARES),
    _of_keys(
        "rows copied to the stage that is summed", ("STAGES = tile.stages", "STAGES = 2"), file=SHARES, sanitize=True
    ),
    _of_keys("copies not waited for", ("wait_for_copies(0)", "wait_for_copies(1)")),
    _of_visits(
        "dQ of the step's own rows",
        (
            "(end_row(numbers) if is_first else turn.first_row) - BR)",
            "end_row(numbers) if is_first else turn.first_row)",
        ),
    ),
    _of_keys(
        "no barrier before dK is gathered where K was",
        ("        cuda.syncthreads()\n        if HANDS_WEIGHTS:", "        if HANDS_WEIGHTS:"),
        sanitize=True,
    ),
    _of_keys(
        "dQ added without atomics",
        ('"red.global.add.v4.f32 [$0], {$1, $2, $3, $4};"', _ADD_APART),
        file=DQ,
        sanitize=True,
    ),
    _of_rows(
        "no barrier before the next keys are copied",
        ("            else:\n                cuda.syncthreads()\n            free_tile", "            free_tile"),
        sanitize=True,
    ),
    _of_rows(
        "no barrier before dQ is stored",
        ("        cuda.syncthreads()\n        store_tile(global_address(dQ)", "        store_tile(global_address(dQ)"),
        sanitize=True,
    ),
)
MUTANTS = (*_FORMULAS, *_MASKS, *_FRAGMENTS, *_COPIES)
