"""Rows without tiles: what a warp's lanes do together, the ends of a row's keys, and the softmax along them."""

from __future__ import annotations

from tests.mutants.planting import in_kernel, in_warps

MUTANTS = (
    *in_kernel(
        "row-wise", "m not carried along the keys",
        ("const float m_new = fmaxf(m, keys_max(s));", "const float m_new = keys_max(s);"),
        ("m_new = max(m, keys_max(s))", "m_new = keys_max(s)"),
    ),
    *in_kernel(
        "row-wise", "maximum of one lane's keys only",
        ("fmaxf(m, keys_max(s))", "fmaxf(m, s)"),
        ("max(m, keys_max(s))", "max(m, s)"),
    ),
    *in_kernel(
        "row-wise", "l not rescaled",
        ("l = l * correction + p;", "l = l + p;"),
        ("l = l * correction + p", "l = l + p"),
    ),
    *in_kernel(
        "row-wise", "o not rescaled",
        ("o[e] *= correction;", "o[e] *= 1.0f;"),
        ("o[e] *= correction", "o[e] *= ONE"),
    ),
    *in_kernel(
        "row-wise", "P relative to the old maximum",
        ("const float p = exp_below(s, m_new);", "const float p = exp_below(s, m == MINUS_INFINITY ? m_new : m);"),
        ("p = exp_below(s, m_new)", "p = exp_below(s, m_new if m == MINUS_INFINITY else m)"),
    ),
    *in_kernel(
        "row-wise", "lse to base 2",
        ("m + logf(l)", "m + log2f(l)"),
        ("m + math.log(l)", "m + math.log2(l)"),
    ),
    *in_kernel(
        "native", "weight of a key beyond the last",
        ("__expf(tau * dot) : 0.0f;", "__expf(tau * dot) : 1.0f;"),
        ("libdevice.fast_expf(tau * dot) if has_key(end_key - key) else ZERO",
         "libdevice.fast_expf(tau * dot) if has_key(end_key - key) else ONE"),
    ),
    *in_kernel(
        "native", "denominator of one lane's keys only",
        ("l = keys_sum(l);", ""),
        ("        l = keys_sum(l)\n", ""),
    ),
    *in_kernel(
        "native", "a row that saw nothing is divided by 0",
        ("l == 0.0f ? 0.0f : 1.0f / l", "1.0f / l"),
        ("ZERO if l == ZERO else ONE / l", "ONE / l"),
    ),
    *in_kernel(
        "native", "last row of a block never written",
        ("if (row >= q_len) return;", "if (row >= q_len || (row > 0 && row == q_len - 1)) return;"),
        ("if row >= q_len:", "if row >= q_len or (row > 0 and row == q_len - 1):"),
    ),
    *in_kernel(
        "native", "first key of a window lost",
        ("int key = first_key;", "int key = (first_key + 1) & -2;"),
        ("range(first_key, end_key, KEYS)", "range((first_key + 1) & -2, end_key, KEYS)"),
    ),
    *in_kernel(
        "native", "scale left out",
        ("__expf(tau * dot)", "__expf(dot)"),
        ("fast_expf(tau * dot)", "fast_expf(dot)"),
    ),
    *in_warps(
        "row-wise", "halves given and kept the wrong way round",
        ("keeps_upper ? lower : upper, kept * SHARING", "keeps_upper ? upper : lower, kept * SHARING"),
        ("lower if keeps_upper else upper, kept * SHARING", "upper if keeps_upper else lower, kept * SHARING"),
    ),
    *in_warps(
        "native", "sums of the lanes that share a key not put together",
        ("return lanes_sum<SHARING>(dot[0]);", "return dot[0];"),
        ("return lanes_sum(dot[0], SHARING)", "return dot[0]"),
    ),
    *in_warps(
        "row-wise", "weight of the neighbour's key",
        ("__shfl_sync(0xffffffff, p, c * SHARING)", "__shfl_sync(0xffffffff, p, (c + 1) % KEYS * SHARING)"),
        ("cuda.shfl_sync(0xFFFFFFFF, p, c * SHARING)", "cuda.shfl_sync(0xFFFFFFFF, p, (c + 1) % KEYS * SHARING)"),
    ),
    *in_warps(
        "row-wise", "last element of a row left out",
        ("return D % 32 == 0 || lane_index() + 32 * e < D;", "return lane_index() + 32 * e < (D > 1 ? D - 1 : D);"),
        ("return D % 32 == 0 or lane_index() + 32 * e < D", "return lane_index() + 32 * e < (D - 1 if D > 1 else D)"),
    ),
    *in_warps(
        "native", "one row too many is read",
        ("if (rows >= ROWS) {", "if (rows >= ROWS - 1) {"),
        ("if rows >= count:", "if rows >= count - 1:"),
    ),
)  # fmt: skip
