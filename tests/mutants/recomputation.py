"""Scores that are computed once for each sweep: sweeps that do not see the same, or forget what the last one found."""

from __future__ import annotations

from tests.mutants.planting import in_kernel, in_sweep

MUTANTS = (
    *in_kernel(
        "three-pass-recompute", "m of the last tile only",
        ("m[i] = fmaxf(m[i], row_max(S[i]));", "m[i] = row_max(S[i]);"),
        ("m[i] = max(m[i], row_max(S, i))", "m[i] = row_max(S, i)"),
    ),
    *in_kernel(
        "three-pass-recompute", "l of the last tile only",
        ("l[i] += row_sum(sum);", "l[i] = row_sum(sum);"),
        ("l[i] += row_sum(total)", "l[i] = row_sum(total)"),
    ),
    *in_kernel(
        "three-pass-recompute", "l without the maximum",
        ("sum += exp_below(S[i][j], m[i]);", "sum += exp_below(S[i][j], 0.0f);"),
        ("total += exp_below(S[i, j], m[i])", "total += exp_below(S[i, j], ZERO)"),
    ),
    *in_kernel(
        "three-pass-recompute", "P without the maximum",
        ("exp_below(S[i][j], m[i]) * inverse[i]", "exp_below(S[i][j], 0.0f) * inverse[i]"),
        ("exp_below(S[i, j], m[i]) * inverse[i]", "exp_below(S[i, j], ZERO) * inverse[i]"),
    ),
    *in_kernel(
        "three-pass-recompute", "maximum starts at 0",
        ("m[i] = MINUS_INFINITY;", "m[i] = 0.0f;"),
        ("m[i] = MINUS_INFINITY", "m[i] = ZERO"),
    ),
    *in_kernel(
        "three-pass-recompute", "keys behind the mask in the denominator",
        ("(&S)[TM][TN], int, int) {\n        // Line 7",
         "(&)[TM][TN], int first_key, int keys) {\n        float S[TM][TN];\n"
         "        multiply_Q_Kt(S, Q_tile, KV_tile);\n"
         "        auto seen_here = seen_in_tile(seen, block.first_row, first_key, keys);\n"
         "        for (int i = 0; i < TM; ++i) seen_here.end[i] = keys;\n"
         "        scale_and_mask(S, tau, Terms<>{}, seen_here, block.first_row, first_key);\n\n        // Line 7"),
        ("            scores_of_tile(S, bounds, Q_tile, KV_tile, K_head, first_row, first_key, keys, tau, (), seen)\n\n"
         "            # Line 7",
         "            seen_here = scores_of_tile(\n"
         "                S, Q_tile, KV_tile, K_head, first_row, first_key, keys, tau, (), seen\n            )\n"
         "            for i in range(TM):\n                seen_here.end[i] = keys\n"
         "            multiply_Q_Kt(S, Q_tile, KV_tile)\n"
         "            scale_and_mask(S, tau, (), seen_here, first_row, first_key)\n\n            # Line 7"),
        (None, ("    add_P_V, gather = tiles.add_P_V, tiles.gather\n",
                "    add_P_V, gather = tiles.add_P_V, tiles.gather\n"
                "    multiply_Q_Kt, scale_and_mask = tiles.multiply_Q_Kt, tiles.scale_and_mask\n")),
    ),
    *in_sweep(
        "three-pass-recompute", "no barrier before K is loaded anew",
        ("        __syncthreads();\n        load_tile<BC>(", "        load_tile<BC>("),
        ("        cuda.syncthreads()\n        load_tile(", "        load_tile("),
        sanitize=True,
    ),
)  # fmt: skip
