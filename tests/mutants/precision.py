"""Scales, bases and roundings, of the scores, of O and of the log-sum-exp."""

from __future__ import annotations

from tests.mutants.planting import in_kernel, in_plan, in_tiles, planted

MUTANTS = (
    *in_tiles(
        "fa2", "scale applied twice",
        ("? score(tau * S[i][j],", "? score(tau * tau * S[i][j],"),
        ("score_of(score, tau * S[i, j],", "score_of(score, tau * tau * S[i, j],"),
    ),
    *in_plan("two-pass", "scale inverted", "np.float32(features.factor(p))", "np.float32(1 / p.tau if p.tau else 0)"),
    *in_plan("fa1", "scale missing", "np.float32(p.tau)", "np.float32(1)"),
    *in_kernel(
        "fa2", "Q K in 16 bits before the scale",
        ("        const auto seen_here =",
         "        stored s;\n        for (int i = 0; i < TM; ++i)\n            for (int j = 0; j < TN; ++j) {\n"
         "                narrow(S[i][j], &s);\n                S[i][j] = widen(s);\n            }\n"
         "        const auto seen_here ="),
        ("            seen_here =",
         "            for i in range(TM):\n                for j in range(TN):\n"
         "                    S[i, j] = widen(narrow(S[i, j]))\n            seen_here ="),
        (None, ("import THREADS, ", "import THREADS, conversions, ")),
        (None,
         ("    _, store_tile = layout_copies(DV, dtype, aligned)\n",
          "    _, store_tile = layout_copies(DV, dtype, aligned)\n    _, widen, narrow = conversions(dtype)\n")),
    ),
    *in_tiles(
        "fa1", "powers of 2 in the place of e",
        ("return __expf(x - ", "return exp2f(x - "),
        ("libdevice.fast_expf(x - ", "libdevice.exp2f(x - "),
    ),
    *planted(
        "fa2", "O truncated to bfloat16", "_features/stored_bfloat16.cuh", "_features/numba_stored.py",
        (
            (
                ("*to = __float2bfloat16_rn(x);", "*to = __float2bfloat16_rz(x);"),
                ("uint16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)", "uint16(bits >> 16)"),
            ),
        ),
    ),
    *in_kernel(
        "fa2", "lse to base 2",
        ("m_tile[t] + logf(l_tile[t])", "1.4426950f * (m_tile[t] + logf(l_tile[t]))"),
        ("m_tile[t] + math.log(l_tile[t])", "float32(1.4426950) * (m_tile[t] + math.log(l_tile[t]))"),
    ),
    *in_kernel(
        "fa2", "lse without the maximum",
        ("m_tile[t] + logf(l_tile[t])", "logf(l_tile[t])"),
        ("m_tile[t] + math.log(l_tile[t])", "math.log(l_tile[t])"),
    ),
    *in_kernel(
        "fa2", "lse of a constant",
        ("m_tile[t] + logf(l_tile[t])", "0.0f"),
        ("m_tile[t] + math.log(l_tile[t])", "float32(0)"),
    ),
    *in_kernel(
        "fa2", "lse without log",
        ("m_tile[t] + logf(l_tile[t])", "m_tile[t] + l_tile[t]"),
        ("m_tile[t] + math.log(l_tile[t])", "m_tile[t] + l_tile[t]"),
    ),
)  # fmt: skip
