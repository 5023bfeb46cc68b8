"""Masks and edges of tiles: what is behind them must neither count nor leak; what is before them must not be lost."""

from __future__ import annotations

from tests.mutants.planting import in_kernel, in_tiles

MUTANTS = (
    *in_tiles(
        "fa2", "sentinel of -1e4 for -inf",
        ("#define MINUS_INFINITY __int_as_float(0xff800000)", "#define MINUS_INFINITY -10000.0f"),
        ("MINUS_INFINITY = np.float32(-np.inf)", "MINUS_INFINITY = np.float32(-1e4)"),
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
        ("first_row + kv_len - q_len - first_key), first, end);",
         "first_row + kv_len - q_len - first_key), none, all);"),
        ("scale_and_mask(S, tau, softcap, slope, first_row + kv_len - q_len - first_key, first, end)",
         "for i in range(TM):\n                for j in range(TN):\n                    S[i, j] *= tau"),
        (("        multiply_Q_Kt(S, Q_tile, K_tile);\n",
          "        multiply_Q_Kt(S, Q_tile, K_tile);\n        int none[TM], all[TM];\n"
          "        for (int i = 0; i < TM; ++i) none[i] = 0, all[i] = BC;\n"), None),
        (("const float p = exp_below(S[i][j], m_new);",
          "const float p = first[i] <= key_of(j) && key_of(j) < end[i] ? exp_below(S[i][j], m_new) : 0.0f;"),
         ("p = exp_below(S[i, j], m_new)",
          "p = exp_below(S[i, j], m_new) if first[i] <= key_of(j) and key_of(j) < end[i] else ZERO")),
    ),
    *in_tiles(
        "fa2", "mask aligned top-left",
        ("return min(max(row + kv_len - q_len + after + 1, 0), kv_len);", "return min(row + after + 1, kv_len);"),
        ("return min(max(row + kv_len - q_len + after + 1, 0), kv_len)", "return min(row + after + 1, kv_len)"),
        (("max(row + kv_len - q_len - before, 0)", "max(row - before, 0)"),
         ("max(row + kv_len - q_len - before, 0)", "max(row - before, 0)")),
        (("row_of(i) + kv_len - q_len - first_key", "row_of(i) - first_key"),
         ("row_of(i) + kv_len - q_len - first_key", "row_of(i) - first_key")),
    ),
    *in_tiles(
        "two-pass", "right end of what a row sees off by one",
        ("min(own_key + after + 1, keys)", "min(own_key + after, keys)"),
        ("min(own_key + after + 1, keys)", "min(own_key + after, keys)"),
    ),
    *in_tiles(
        "fa2", "left end of what a row sees off by one",
        ("first[i] = own_key - before;", "first[i] = own_key - before + 1;"),
        ("first[i] = own_key - before", "first[i] = own_key - before + 1"),
    ),
    *in_tiles(
        "fa1", "left end of what a row sees ignored",
        ("first[i] = own_key - before;", "first[i] = 0;"),
        ("first[i] = own_key - before", "first[i] = 0"),
    ),
    *(
        mutant
        for algorithm in ("two-pass", "fa2")
        for mutant in in_kernel(
            algorithm, "first tile of a window skipped",
            ("const int first_by_first = first_seen(first_row, q_len, kv_len, before);",
             "int first_by_first = first_seen(first_row, q_len, kv_len, before);\n"
             "    if (first_by_first % BC) first_by_first += BC;"),
            ("first_by_first = first_seen(first_row, q_len, kv_len, before)",
             "first_by_first = first_seen(first_row, q_len, kv_len, before)\n"
             "        if first_by_first % BC:\n            first_by_first += BC"),
        )
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
    *(
        mutant
        for algorithm in ("two-pass", "fa2")
        for mutant in in_kernel(
            algorithm, "causal bound from the first row of the tile",
            ("end_by_last = end_seen(last_row,", "end_by_last = end_seen(first_row,"),
            ("end_by_last = end_seen(last_row,", "end_by_last = end_seen(first_row,"),
        )
    ),
    *in_kernel(
        "fa1", "rows counted as blind that see the tile's first key",
        ("first_seeing / BR * BR", "(first_seeing + BR - 1) / BR * BR"),
        ("first_seeing // BR * BR", "(first_seeing + BR - 1) // BR * BR"),
    ),
    *in_kernel(
        "fa2", "loop one tile short",
        ("first_key < end_by_last; first_key += BC", "first_key + BC <= end_by_last; first_key += BC"),
        ("range(start_key, end_by_last, BC)", "range(start_key, end_by_last - BC + 1, BC)"),
    ),
    *in_kernel(
        "fa1", "loop one tile short",
        ("first_key < end_by_last; first_key += BC", "first_key + BC <= end_by_last; first_key += BC"),
        ("// BC * BC, end_by_last, BC)", "// BC * BC, end_by_last - BC + 1, BC)"),
    ),
    *in_tiles(
        "fa2", "padding not masked",
        ("end[i] = min(own_key + after + 1, keys);", "end[i] = own_key + after + 1;"),
        ("end[i] = min(own_key + after + 1, keys)", "end[i] = own_key + after + 1"),
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
        ("key_of(j) < end[i] ? score(S[i][j], key_of(j) - row_of(i)) : MINUS_INFINITY",
         "score(S[i][j], key_of(j) - row_of(i)) + (key_of(j) < end[i] ? 0.0f : MINUS_INFINITY)"),
        ("scored if key_of(j) < end[i] else MINUS_INFINITY",
         "scored + (ZERO if key_of(j) < end[i] else MINUS_INFINITY)"),
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
        ("    for (int first_key", "    if (end_by_last == 0) return;\n    for (int first_key"),
        ("        for first_key in", "        if end_by_last == 0:\n            return\n        for first_key in"),
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
