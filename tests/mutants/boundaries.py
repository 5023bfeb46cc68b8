"""Masks and edges of tiles: what is behind them must neither count nor leak; what is before them must not be lost."""

from __future__ import annotations

from tests.mutants.planting import in_feature, in_kernel, in_rows_seeing, in_softmax, in_tiles, planted

_LINE_3 = "# Line 3: for all K_j.\n        for first_key in range("
_LINE_7 = "# Line 7: for all K_j once more, with the final m and l.\n        for first_key in range("
"""Where the sweeps of two-pass begin in Numba."""

MUTANTS = (
    *(
        mutant
        for algorithm, sentinel in (("fa2", "-1e4"), ("three-pass", "-5e4"))
        for mutant in planted(
            algorithm, f"sentinel of {sentinel} for -inf", "_features/scores.cuh", "_tiles/numba_tiles.py",
            (
                (
                    ("MINUS_INFINITY = __builtin_bit_cast(float, 0xff800000u);", f"MINUS_INFINITY = {sentinel}f;"),
                    ("MINUS_INFINITY = np.float32(-np.inf)", f"MINUS_INFINITY = np.float32({sentinel})"),
                ),
            ),
        )
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
        (None, ("import THREADS, ", "import THREADS, ZERO, SeenInTile, ")),
    ),
    *in_feature(
        "fa2", "limits", "mask aligned top-left",
        ("{ return row + kv_len - q_len; }", "{ return row; }"),
        ("return row + run.kv_len - run.q_len + run.after + 1", "return row + run.after + 1"),
        (None, ("return row + run.kv_len - run.q_len - run.before", "return row - run.before")),
    ),
    *in_feature(
        "two-pass", "limits", "right end of what a row sees off by one",
        ("return own_key(row) + after + 1;", "return own_key(row) + after;"),
        ("return row + run.kv_len - run.q_len + run.after + 1", "return row + run.kv_len - run.q_len + run.after"),
    ),
    *in_feature(
        "fa2", "limits", "left end of what a row sees off by one",
        ("return own_key(row) - before;", "return own_key(row) - before + 1;"),
        ("return row + run.kv_len - run.q_len - run.before", "return row + run.kv_len - run.q_len - run.before + 1"),
    ),
    *in_tiles(
        "fa1", "left end of what a row sees ignored",
        ("first[i] = seen.run.unclipped_first(first_row + row_of(i)) - first_key;", "first[i] = 0;"),
        ("first[i] = unclipped_first(seen.run, first_row + row_of(i)) - first_key", "first[i] = 0"),
    ),
    *planted(
        "two-pass", "first tile of a window skipped", "_tiles/sweep.cuh", "attention/two_pass/numba_kernel.py",
        (
            (
                ("= seen.first_key / BC * BC;", "= (seen.first_key + BC - 1) / BC * BC;"),
                (f"{_LINE_3}seen.first_key // BC", f"{_LINE_3}(seen.first_key + BC - 1) // BC"),
            ),
            (None, (f"{_LINE_7}seen.first_key // BC", f"{_LINE_7}(seen.first_key + BC - 1) // BC")),
        ),
    ),
    *in_feature(
        "fa2", "tile_order", "first tile of a window skipped",
        ("return {first_key / BC * BC, end_key};", "return {(first_key + BC - 1) / BC * BC, end_key};"),
        ("RunTile(tiles.first_key // BC * BC,", "RunTile((tiles.first_key + BC - 1) // BC * BC,"),
    ),
    *in_rows_seeing(
        "fa1", "rows left out that see the tile's last keys only",
        ("min(own_row + keys + run.before, q_len)", "min(own_row + run.before + 1, q_len)"),
        ("min(own_row + keys + run.before, q_len)", "min(own_row + run.before + 1, q_len)"),
    ),
    *in_softmax(
        "softmax of a window from the first key on",
        ("first_key = run.first(row)", "first_key = 0"),
        ("first_key = first_of(run, row)", "first_key = 0"),
    ),
    *(
        mutant
        for algorithm in ("two-pass", "fa2")
        for mutant in in_feature(
            algorithm, "limits", "causal bound from the first row of the tile",
            ("run.end(last_row), run.first(last_row)", "run.end(first_row), run.first(last_row)"),
            ("end(run, last_row)", "end(run, block.first_row)"),
        )
    ),
    *in_kernel(
        "fa1", "rows counted as blind that see the tile's first key",
        ("seeing.first / BR * BR", "(seeing.first + BR - 1) / BR * BR"),
        ("first_seeing // BR * BR", "(first_seeing + BR - 1) // BR * BR"),
    ),
    *in_feature(
        "fa2", "tile_order", "loop one tile short",
        ("return first_key < end_key;", "return first_key + BC <= end_key;"),
        ("return tile.first_key < tile.end_key", "return tile.first_key + BC <= tile.end_key"),
    ),
    *in_kernel(
        "fa1", "loop one tile short",
        ("first_key < end_key; first_key += BC", "first_key + BC <= end_key; first_key += BC"),
        ("end(run, q_len - 1), BC)", "end(run, q_len - 1) - BC + 1, BC)"),
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
        ("if (EXTENT * WIDTH % (AT_ONCE * THREADS) == 0 || e + c * THREADS < EXTENT * WIDTH) {",
         "if (e + c * THREADS < rows * WIDTH) {"),
        ("if extent * D % (AT_ONCE * THREADS) == 0 or e + c * THREADS < extent * D:",
         "if e + c * THREADS < rows * D:", "_tiles/numba_tile_copies.py"),
        sanitize=True,
    ),
    *in_tiles(
        "two-pass", "stale tail times a weight of 0",
        ("if (EXTENT * WIDTH % (AT_ONCE * THREADS) == 0 || e + c * THREADS < EXTENT * WIDTH) {",
         "if (e + c * THREADS < rows * WIDTH) {"),
        ("if extent * D % (AT_ONCE * THREADS) == 0 or e + c * THREADS < extent * D:",
         "if e + c * THREADS < rows * D:", "_tiles/numba_tile_copies.py"),
        (("V_tile, end_step * STEP_P, keys,", "V_tile, end_step * STEP_P, BC,"),
         ("end_step * STEP_P, keys,", "end_step * STEP_P, V_tile.shape[0],")),
        (("O[i][j] = seen.in_run(i, k) ? O[i][j] + p * v[j] : O[i][j];", "O[i][j] += p * v[j];"),
         ("if seen.first[i] <= k and k < seen.end[i]:", "if True:")),
    ),
    *in_tiles(
        "fa2", "mask added to the score",
        ("sees ? score(tau * S[i][j], first_row + row_of(i), first_key + key_of(j)) : MINUS_INFINITY;",
         "score(tau * S[i][j], first_row + row_of(i), first_key + key_of(j)) + (sees ? 0.0f : MINUS_INFINITY);"),
        ("S[i, j] = scored if sees else MINUS_INFINITY", "S[i, j] = scored + (ZERO if sees else MINUS_INFINITY)"),
    ),
    *(
        mutant
        for algorithm in ("three-pass", "fa1")
        for mutant in in_tiles(
            algorithm, "V behind the mask times a weight of 0",
            ("O[i][j] = seen.in_run(i, k) ? O[i][j] + p * v[j] : O[i][j];", "O[i][j] += p * v[j];"),
            ("if seen.first[i] <= k and k < seen.end[i]:", "if True:"),
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
        ("if (e < rows * WIDTH) narrow(tile", "if (e < (rows - 1) * WIDTH) narrow(tile"),
        ("if e < rows * D:\n                target", "if e < (rows - 1) * D:\n                target",
         "_tiles/numba_tile_copies.py"),
    ),
    *in_tiles(
        "two-pass", "last key of a tile left out of P V",
        ("V_tile, end_step * STEP_P, keys,", "V_tile, end_step * STEP_P, keys - 1,"),
        ("end_step * STEP_P, keys,", "end_step * STEP_P, keys - 1,"),
    ),
    *in_softmax(
        "tail of S left out of the sum",
        ("l += exp_below(widen(s[c]), m);", "l += start + 32 * (c + 1) <= seen ? exp_below(widen(s[c]), m) : 0.0f;"),
        ("l += exp_below(widen(s[c]), m)", "l += exp_below(widen(s[c]), m) if start + 32 * (c + 1) <= seen else ZERO"),
    ),
    *in_tiles(
        "fa2", "columns beyond head_dim written",
        ("return W % TX == 0 || element_of<W>(j) < W;", "return true;"),
        ("return DV == TX * TD or element_of(j) < DV", "return True"),
    ),
)  # fmt: skip
