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
        ("scale_and_mask(S, tau, seen);",
         "int unmasked[TM];\n        for (int i = 0; i < TM; ++i) unmasked[i] = BC;\n"
         "        scale_and_mask(S, tau, unmasked);"),
        ("scale_and_mask(S, tau, seen)",
         "for i in range(TM):\n                for j in range(TN):\n                    S[i, j] *= tau"),
        (("const float p = exp_below(S[i][j], m_new);",
          "const float p = key_of(j) < seen[i] ? exp_below(S[i][j], m_new) : 0.0f;"),
         ("p = exp_below(S[i, j], m_new)", "p = exp_below(S[i, j], m_new) if key_of(j) < seen[i] else ZERO")),
    ),
    *in_tiles(
        "fa2", "causal mask aligned top-left",
        ("min(max(row + 1 - q_len + kv_len, 0), kv_len)", "min(row + 1, kv_len)"),
        ("min(max(row + 1 - q_len + kv_len, 0), kv_len)", "min(row + 1, kv_len)"),
    ),
    *in_tiles(
        "two-pass", "causal mask off by one",
        ("row + 1 - q_len + kv_len", "row - q_len + kv_len"),
        ("row + 1 - q_len + kv_len", "row - q_len + kv_len"),
    ),
    *(
        mutant
        for algorithm in ("two-pass", "fa2")
        for mutant in in_kernel(
            algorithm, "causal bound from the first row of the tile",
            ("seen_by_last = keys_seen(first_row + rows - 1,", "seen_by_last = keys_seen(first_row,"),
            ("seen_by_last = keys_seen(first_row + rows - 1,", "seen_by_last = keys_seen(first_row,"),
        )
    ),
    *in_kernel(
        "fa1", "rows counted as blind that see the tile's first key",
        ("first_seeing / BR * BR", "(first_seeing + BR - 1) / BR * BR"),
        ("first_seeing // BR * BR", "(first_seeing + BR - 1) // BR * BR"),
    ),
    *in_kernel(
        "fa2", "loop one tile short",
        ("first_key < seen_by_last; first_key += BC", "first_key + BC <= seen_by_last; first_key += BC"),
        ("range(0, seen_by_last, BC)", "range(0, seen_by_last - BC + 1, BC)"),
    ),
    *in_kernel(
        "fa1", "loop one tile short",
        ("first_key < kv_len; first_key += BC", "first_key + BC <= kv_len; first_key += BC"),
        ("range(0, kv_len, BC)", "range(0, kv_len - BC + 1, BC)"),
    ),
    *in_tiles(
        "fa2", "padding not masked",
        ("seen[i] = min(BC, keys_seen(first_row + row_of(i), q_len, kv_len, causal) - first_key);",
         "seen[i] = causal ? min(BC, keys_seen(first_row + row_of(i), q_len, kv_len, causal) - first_key) : BC;"),
        ("seen[i] = min(BC, keys_seen(first_row + row_of(i), q_len, kv_len, causal) - first_key)",
         "seen[i] = min(BC, keys_seen(first_row + row_of(i), q_len, kv_len, causal) - first_key) if causal else BC"),
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
        (("for (; k < keys; ++k) {", "for (; k < BC; ++k) {"),
         ("STEP_P * STEP_P, keys):", "STEP_P * STEP_P, BC):")),
        (("O[i][j] = k < seen[i] ? O[i][j] + p * v[j] : O[i][j];", "O[i][j] += p * v[j];"),
         ("if k < seen[i]:", "if True:")),
    ),
    *in_tiles(
        "fa2", "mask added to the score",
        ("key_of(j) < seen[i] ? tau * S[i][j] : MINUS_INFINITY",
         "tau * S[i][j] + (key_of(j) < seen[i] ? 0.0f : MINUS_INFINITY)"),
        ("tau * S[i, j] if key_of(j) < seen[i] else MINUS_INFINITY",
         "tau * S[i, j] + (ZERO if key_of(j) < seen[i] else MINUS_INFINITY)"),
    ),
    *(
        mutant
        for algorithm in ("three-pass", "fa1")
        for mutant in in_tiles(
            algorithm, "V behind the mask times a weight of 0",
            ("O[i][j] = k < seen[i] ? O[i][j] + p * v[j] : O[i][j];", "O[i][j] += p * v[j];"),
            ("if k < seen[i]:", "if True:"),
        )
    ),
    *in_kernel(
        "fa2", "block that sees no key writes nothing",
        ("q_len, kv_len, causal);\n    for (int first_key",
         "q_len, kv_len, causal);\n    if (seen_by_last == 0) return;\n    for (int first_key"),
        ("        for first_key in", "        if seen_by_last == 0:\n            return\n        for first_key in"),
    ),
    *in_tiles(
        "fa2", "last row of a block never written",
        ("if (e < rows * D) narrow(tile", "if (e < (rows - 1) * D) narrow(tile"),
        ("if e < rows * D:\n                target", "if e < (rows - 1) * D:\n                target"),
    ),
    *in_tiles(
        "two-pass", "last key of a tile left out of P V",
        ("for (; k < keys; ++k) {", "for (; k < keys - 1; ++k) {"),
        ("STEP_P * STEP_P, keys):", "STEP_P * STEP_P, keys - 1):"),
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
