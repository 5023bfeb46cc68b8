"""Scores that are computed once for each sweep: sweeps that do not see the same, or forget what the last one found."""

from __future__ import annotations

from tests.mutants.planting import in_kernel

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
        ("        scale_and_mask(S, Scoring{tau}, first, end);\n\n        // Line 7",
         "        for (int i = 0; i < TM; ++i) end[i] = keys;\n"
         "        scale_and_mask(S, Scoring{tau}, first, end);\n\n        // Line 7"),
        ("            scale_and_mask(S, tau, (), ZERO, 0, first, end)\n\n            # Line 7",
         "            for i in range(TM):\n                end[i] = keys\n"
         "            scale_and_mask(S, tau, (), ZERO, 0, first, end)\n\n            # Line 7"),
    ),
    *in_kernel(
        "three-pass-recompute", "no barrier before K is loaded anew",
        ("        __syncthreads();\n        load_tile<BC>(KV_tile, K_head + (size_t)first_key * D, keys);\n"
         "        __syncthreads();\n        float S[TM][TN];\n        multiply_Q_Kt(S, Q_tile, KV_tile);\n"
         "        int first[TM], end[TM];\n"
         "        span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after);\n"
         "        scale_and_mask(S, Scoring{tau}, first, end);\n\n        // Line 7",
         "        load_tile<BC>(KV_tile, K_head + (size_t)first_key * D, keys);\n"
         "        __syncthreads();\n        float S[TM][TN];\n        multiply_Q_Kt(S, Q_tile, KV_tile);\n"
         "        int first[TM], end[TM];\n"
         "        span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after);\n"
         "        scale_and_mask(S, Scoring{tau}, first, end);\n\n        // Line 7"),
        ("            cuda.syncthreads()\n            load_tile(KV_tile, BC, K_head, first_key, keys)\n"
         "            cuda.syncthreads()\n            multiply_Q_Kt(S, Q_tile, KV_tile)\n"
         "            span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after)\n"
         "            scale_and_mask(S, tau, (), ZERO, 0, first, end)\n\n            # Line 7",
         "            load_tile(KV_tile, BC, K_head, first_key, keys)\n"
         "            cuda.syncthreads()\n            multiply_Q_Kt(S, Q_tile, KV_tile)\n"
         "            span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after)\n"
         "            scale_and_mask(S, tau, (), ZERO, 0, first, end)\n\n            # Line 7"),
        sanitize=True,
    ),
)  # fmt: skip
