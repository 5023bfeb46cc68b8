"""The running maximum: overwritten too early, not carried, of another frame, over other keys than the row's.

Softmax does not change when the same number is taken from all scores of a row. Some of these are therefore right as
long as no exponential overflows or vanishes, and only hot, rising or negative inputs tell.
"""

from __future__ import annotations

from tests.mutants.planting import in_kernel, in_softmax, in_tiles

MUTANTS = (
    *in_kernel(
        "fa2", "m overwritten before the correction",
        ("const float correction = exp_below(m[i], m_new);\n            m[i] = m_new;",
         "m[i] = m_new;\n            const float correction = exp_below(m[i], m_new);"),
        ("correction = exp_below(m[i], m_new)\n                m[i] = m_new",
         "m[i] = m_new\n                correction = exp_below(m[i], m_new)"),
    ),
    *in_kernel(
        "two-pass", "m overwritten before the correction",
        ("const float m_new = fmaxf(m[i], row_max(S[i]));",
         "const float m_new = fmaxf(m[i], row_max(S[i]));\n            m[i] = m_new;"),
        ("m_new = max(m[i], row_max(S, i))",
         "m_new = max(m[i], row_max(S, i))\n                m[i] = m_new"),
    ),
    *in_kernel(
        "fa2", "m not carried across tiles",
        ("const float m_new = fmaxf(m[i], row_max(S[i]));", "const float m_new = row_max(S[i]);"),
        ("m_new = max(m[i], row_max(S, i))", "m_new = row_max(S, i)"),
    ),
    *in_kernel(
        "two-pass", "m not carried across tiles",
        ("const float m_new = fmaxf(m[i], row_max(S[i]));", "const float m_new = row_max(S[i]);"),
        ("m_new = max(m[i], row_max(S, i))", "m_new = row_max(S, i)"),
    ),
    *in_kernel(
        "fa1", "m not carried across tiles",
        ("m_new[i] = fmaxf(m_old, m_here);", "m_new[i] = m_here;"),
        ("m_new[i] = max(m_old, m_here)", "m_new[i] = m_here"),
    ),
    *in_kernel(
        "fa2", "P relative to the old maximum",
        ("const float p = exp_below(S[i][j], m_new);", "const float p = exp_below(S[i][j], m_old);"),
        ("p = exp_below(S[i, j], m_new)", "p = exp_below(S[i, j], m_old)"),
        (("const float correction = exp_below(m[i], m_new);",
          "const float m_old = m[i] == MINUS_INFINITY ? m_new : m[i];\n"
          "            const float correction = exp_below(m[i], m_new);"),
         ("correction = exp_below(m[i], m_new)",
          "m_old = m_new if m[i] == -math.inf else m[i]\n                correction = exp_below(m[i], m_new)")),
    ),
    *in_kernel(
        "fa1", "P V not brought to the new maximum",
        ("weight_new[i] = correction * inverse;", "weight_new[i] = inverse;"),
        ("= old_part * inverse, correction * inverse", "= old_part * inverse, inverse"),
    ),
    *in_kernel(
        "fa2", "sign of the correction inverted",
        ("const float correction = exp_below(m[i], m_new);",
         "const float correction = m[i] == MINUS_INFINITY ? 0.0f : exp_below(m_new, m[i]);"),
        ("correction = exp_below(m[i], m_new)",
         "correction = float32(0) if m[i] == -math.inf else exp_below(m_new, m[i])"),
    ),
    *in_kernel(
        "fa1", "sign of the correction inverted",
        ("exp_below(m_old, m_new[i]) * l_tile", "exp_below(m_new[i], m_old) * l_tile"),
        ("exp_below(m_old, m_new[i]) * l_tile", "exp_below(m_new[i], m_old) * l_tile"),
    ),
    *in_softmax(
        "maximum over a part of the row",
        ("for (int c = 0; c < KEYS_AT_ONCE; ++c) m = fmaxf(m, widen(s[c]));", "m = fmaxf(m, widen(s[0]));"),
        ("for c in range(KEYS_AT_ONCE):\n                m = max(m, widen(s[c]))", "m = max(m, widen(s[0]))"),
        # A loop's pragma has to go with the loop.
        (("#pragma unroll\n        m = ", "m = "), None),
    ),
    *in_tiles(
        "fa2", "maximum over one thread's keys only",
        ("return lanes_max<TX, APART>(largest);", "return largest;"),
        ("return lanes_max(largest, TX, APART)", "return largest"),
    ),
    *in_tiles(
        "fa2", "maximum over the rows of a warp",
        ("return lanes_max<TX, APART>(largest);", "return lanes_max<32>(largest);"),
        ("return lanes_max(largest, TX, APART)", "return lanes_max(largest, 32, 1)"),
    ),
    *in_kernel(
        "fa2", "maximum starts at 0",
        ("m[i] = first_m;", "m[i] = 0.0f;"),
        ("SINK_WEIGHT, first_m", "SINK_WEIGHT, float32(0)"),
    ),
    *in_softmax(
        "maximum starts at 0",
        ("float m = sink_logit;", "float m = 0.0f;"),
        ("m = sink_logit\n", "m = ZERO\n"),
    ),
)  # fmt: skip
