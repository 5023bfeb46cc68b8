"""Masks and edges of tiles: what is behind them must neither count nor leak; what is before them must not be lost."""

from __future__ import annotations

from tests.mutants.planting import in_feature, in_kernel, in_tiles, planted

MUTANTS = (
    *planted(
        "fa2", "sentinel of -1e4 for -inf", "_features/scores.cuh", "_tiles/numba_tiles.py",
        (
            (
                ("MINUS_INFINITY = __builtin_bit_cast(float, 0xff800000u);", "MINUS_INFINITY = -10000.0f;"),
                ("MINUS_INFINITY = np.float32(-np.inf)", "MINUS_INFINITY = np.float32(-1e4)"),
            ),
        ),
    ),
    *in_tiles(
        "three-pass", "sentinel of -5e4 for -inf",
        ("#define MINUS_INFINITY __int_as_float(0xff800000)", "#define MINUS_INFINITY -50000.0f"),
        ("MINUS_INFINITY = np.float32(-np.inf)", "MINUS_INFINITY = np.float32(-5e4)"),
    ),
    *(
        mutant
        for algorithm in ("fa1", "fa2")
        for mutant in in_tiles(
            algorithm, "(-inf) - (-inf) where a row saw nothing",
            ("__expf(x - (m == MINUS_INFINITY ? 0.0f : m))", "__expf(x - m)"),
            ("libdevice.fast_expf(x - (ZERO if m == MINUS_INFINITY else m))", "libdevice.fast_expf(x - m)"),
        )
    ),
    *in_kernel(
        "fa2", "masked after the maximum",
        ("scale_and_mask(S, tau, score, seen_here, first_row, first_key);",
         "auto unmasked = seen_here;\n"
         "        for (int i = 0; i < TM; ++i) unmasked.first[i] = 0, unmasked.end[i] = BC;\n"
         "        scale_and_mask(S, tau, score, unmasked, first_row, first_key);"),
        ("scale_and_mask(S, tau, score, seen_here, first_row, first_key)",
         "for i in range(TM):\n                none[i], all_keys[i] = 0, BC\n"
         "            unmasked = SeenInTile(none, all_keys, 0, BC, pairs)\n"
         "            scale_and_mask(S, tau, score, unmasked, first_row, first_key)"),
        (("const float p = exp_below(S[i][j], m_new);",
          "const float p = seen_here.in_run(i, key_of(j)) ? exp_below(S[i][j], m_new) : 0.0f;"),
         ("p = exp_below(S[i, j], m_new)",
          "p = exp_below(S[i, j], m_new)\n"
          "                    if not (seen_here.first[i] <= key_of(j) and key_of(j) < seen_here.end[i]):\n"
          "                        p = ZERO")),
        (None, ("        l = cuda.local.array(TM, float32)\n",
                "        l = cuda.local.array(TM, float32)\n"
                "        none, all_keys = cuda.local.array(TM, int32), cuda.local.array(TM, int32)\n")),
        (None, ("from numba import cuda, float32\n", "from numba import cuda, float32, int32\n")),
        (None, ("    ZERO,\n    batch_index,\n", "    ZERO,\n    SeenInTile,\n    batch_index,\n")),
    ),
    *in_feature(
        "fa2", "limits", "mask aligned top-left",
        ("{ return row + kv_len - q_len; }", "{ return row; }"),
        ("return row + run.kv_len - run.q_len + run.after + 1", "return row + run.after + 1"),
        (None, ("return row + run.kv_len - run.q_len - run.before", "return row - run.before")),
    ),
    *in_tiles(
        "two-pass", "right end of what a row sees off by one",
        ("min(own_key + after + 1, keys)", "min(own_key + after, keys)"),
        ("min(own_key + after + 1, keys)", "min(own_key + after, keys)"),
    ),
    *in_feature(
        "fa2", "limits", "left end of what a row sees off by one",
        ("return own_key(row) - before;", "return own_key(row) - before + 1;"),
        ("return row + run.kv_len - run.q_len - run.before", "return row + run.kv_len - run.q_len - run.before + 1"),
    ),
    *in_tiles(
        "fa1", "left end of what a row sees ignored",
        ("first[i] = own_key - before;", "first[i] = 0;"),
        ("first[i] = own_key - before", "first[i] = 0"),
    ),
    *in_kernel(
        "two-pass", "first tile of a window skipped",
        ("const int first_by_first = first_seen(first_row, q_len, kv_len, before);",
         "int first_by_first = first_seen(first_row, q_len, kv_len, before);\n"
         "    if (first_by_first % BC) first_by_first += BC;"),
        ("first_by_first = first_seen(first_row, q_len, kv_len, before)",
         "first_by_first = first_seen(first_row, q_len, kv_len, before)\n"
         "        if first_by_first % BC:\n            first_by_first += BC"),
    ),
    *in_feature(
        "fa2", "tile_order", "first tile of a window skipped",
        ("return {first_key / BC * BC, end_key};", "return {(first_key + BC - 1) / BC * BC, end_key};"),
        ("RunTile(tiles.first_key // BC * BC,", "RunTile((tiles.first_key + BC - 1) // BC * BC,"),
    ),
    *in_kernel(
        "fa1", "rows left out that see the tile's last keys only",
        ("min(own_row + keys + before, q_len)", "min(own_row + before + 1, q_len)"),
        ("min(own_row + keys + before, q_len)", "min(own_row + before + 1, q_len)"),
    ),
    *in_kernel(
        "three-pass", "softmax of a window from the first key on",
        ("const int first_key = first_seen(row, q_len, kv_len, before);", "const int first_key = 0;"),
        ("first_key = first_seen(row, q_len, kv_len, before)", "first_key = 0"),
    ),
    *in_kernel(
        "two-pass", "causal bound from the first row of the tile",
        ("end_by_last = end_seen(last_row,", "end_by_last = end_seen(first_row,"),
        ("end_by_last = end_seen(last_row,", "end_by_last = end_seen(first_row,"),
    ),
    *in_feature(
        "fa2", "limits", "causal bound from the first row of the tile",
        ("run.end(last_row), run.first(last_row)", "run.end(first_row), run.first(last_row)"),
        ("end(run, last_row)", "end(run, block.first_row)"),
    ),
    *in_kernel(
        "fa1", "rows counted as blind that see the tile's first key",
        ("first_seeing / BR * BR", "(first_seeing + BR - 1) / BR * BR"),
        ("first_seeing // BR * BR", "(first_seeing + BR - 1) // BR * BR"),
    ),
    *in_feature(
        "fa2", "tile_order", "loop one tile short",
        ("return first_key < end_key;", "return first_key + BC <= end_key;"),
        ("return tile.first_key < tile.end_key", "return tile.first_key + BC <= tile.end_key"),
    ),
    *in_kernel(
        "fa1", "loop one tile short",
        ("first_key < end_by_last; first_key += BC", "first_key + BC <= end_by_last; first_key += BC"),
        ("// BC * BC, end_by_last, BC)", "// BC * BC, end_by_last - BC + 1, BC)"),
    ),
    *in_tiles(
        "fa2", "padding not masked",
        ("min(seen.run.unclipped_end(first_row + row_of(i)) - first_key, keys)",
         "seen.run.unclipped_end(first_row + row_of(i)) - first_key"),
        ("min(unclipped_end(seen.run, first_row + row_of(i)) - first_key, keys)",
         "unclipped_end(seen.run, first_row + row_of(i)) - first_key"),
    ),
    *in_tiles(
        "fa2", "stale tail of a tile read",
        ("if (EXTENT * D % (AT_ONCE * THREADS) == 0 || e + c * THREADS < EXTENT * D) {",
         "if (e + c * THREADS < rows * D) {"),
        ("if extent * D % (AT_ONCE * THREADS) == 0 or e + c * THREADS < extent * D:",
         "if e + c * THREADS < rows * D:"),
        sanitize=True,
    ),
    *in_tiles(
        "two-pass", "stale tail times a weight of 0",
        ("if (EXTENT * D % (AT_ONCE * THREADS) == 0 || e + c * THREADS < EXTENT * D) {",
         "if (e + c * THREADS < rows * D) {"),
        ("if extent * D % (AT_ONCE * THREADS) == 0 or e + c * THREADS < extent * D:",
         "if e + c * THREADS < rows * D:"),
        (("V_tile, end_step * STEP_P, keys,", "V_tile, end_step * STEP_P, BC,"),
         ("end_step * STEP_P, keys,", "end_step * STEP_P, BC,")),
        (("O[i][j] = first[i] <= k && k < end[i] ? O[i][j] + p * v[j] : O[i][j];", "O[i][j] += p * v[j];"),
         ("if first[i] <= k and k < end[i]:", "if True:")),
    ),
    *in_tiles(
        "fa2", "mask added to the score",
        ("sees ? score(tau * S[i][j], first_row + row_of(i), first_key + key_of(j)) : MINUS_INFINITY;",
         "score(tau * S[i][j], first_row + row_of(i), first_key + key_of(j)) + (sees ? 0.0f : MINUS_INFINITY);"),
        ("scored = MINUS_INFINITY\n                if key_of(j) < seen.end[i]:\n                    scored = score_of(",
         "scored = ZERO if key_of(j) < seen.end[i] else MINUS_INFINITY\n                scored += score_of("),
    ),
    *(
        mutant
        for algorithm in ("three-pass", "fa1")
        for mutant in in_tiles(
            algorithm, "V behind the mask times a weight of 0",
            ("O[i][j] = first[i] <= k && k < end[i] ? O[i][j] + p * v[j] : O[i][j];", "O[i][j] += p * v[j];"),
            ("if first[i] <= k and k < end[i]:", "if True:"),
        )
    ),
    *in_kernel(
        "fa2", "block that sees no key writes nothing",
        ("    auto next = tiles.first();\n", "    auto next = tiles.first();\n    if (!next.exists()) return;\n"),
        ("        next = first_tile(tiles)\n",
         "        next = first_tile(tiles)\n        if not exists(next):\n            return\n"),
    ),
    *in_tiles(
        "fa2", "last row of a block never written",
        ("if (e < rows * D) narrow(tile", "if (e < (rows - 1) * D) narrow(tile"),
        ("if e < rows * D:\n                target", "if e < (rows - 1) * D:\n                target"),
    ),
    *in_tiles(
        "two-pass", "last key of a tile left out of P V",
        ("V_tile, end_step * STEP_P, keys,", "V_tile, end_step * STEP_P, keys - 1,"),
        ("end_step * STEP_P, keys,", "end_step * STEP_P, keys - 1,"),
    ),
    *in_kernel(
        "three-pass", "tail of S left out of the sum",
        ("l += exp_below(widen(s[c]), m);", "l += start + 32 * (c + 1) <= seen ? exp_below(widen(s[c]), m) : 0.0f;"),
        ("l += exp_below(widen(s[c]), m)", "l += exp_below(widen(s[c]), m) if start + 32 * (c + 1) <= seen else ZERO"),
    ),
    *in_tiles(
        "fa2", "columns beyond head_dim written",
        ("return D == TX * TD || element_of(j) < D;", "return true;"),
        ("return D == TX * TD or element_of(j) < D", "return True"),
    ),
)  # fmt: skip
