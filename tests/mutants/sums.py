"""The denominator l and the accumulated O: not rescaled, of too few bits, never set, of another step."""

from __future__ import annotations

from tests.mutants.planting import in_kernel

MUTANTS = (
    *in_kernel(
        "fa2", "l not rescaled",
        ("l[i] = correction * l[i] + row_sum(sum);", "l[i] = l[i] + row_sum(sum);"),
        ("l[i] = correction * l[i] + row_sum(total)", "l[i] = l[i] + row_sum(total)"),
    ),
    *in_kernel(
        "two-pass", "l not rescaled",
        ("l[i] = l[i] * exp_below(m[i], m_new) + row_sum(sum);", "l[i] = l[i] + row_sum(sum);"),
        ("l[i] = l[i] * exp_below(m[i], m_new) + row_sum(total)", "l[i] = l[i] + row_sum(total)"),
    ),
    *in_kernel(
        "fa1", "l not rescaled",
        ("l_new[i] = old_part + correction * l_here;", "l_new[i] = l_tile[tile_row(i)] + correction * l_here;"),
        ("l_new[i] = old_part + correction * l_here", "l_new[i] = l_tile[tile_row(i)] + correction * l_here"),
    ),
    *in_kernel(
        "fa2", "O not rescaled",
        ("O_acc[i][j] *= correction;", "O_acc[i][j] *= 1.0f;"),
        ("O_acc[i, j] *= correction", "O_acc[i, j] *= float32(1)"),
    ),
    *in_kernel(
        "fa1", "O not rescaled",
        ("*O_ij = weight_old[i] * *O_ij", "*O_ij = *O_ij"),
        ("= weight_old[i] * O_ij +", "= O_ij +"),
    ),
    *in_kernel(
        "fa1", "divided by the previous l",
        ("const float inverse = l_new[i] == 0.0f ? 0.0f : 1.0f / l_new[i];",
         "const float l_old = l_tile[tile_row(i)] == 0.0f ? l_new[i] : l_tile[tile_row(i)];\n"
         "                const float inverse = l_old == 0.0f ? 0.0f : 1.0f / l_old;"),
        ("inverse = float32(0) if l_new[i] == 0 else float32(1) / l_new[i]",
         "l_old = l_new[i] if l_tile[tile_row(i)] == 0 else l_tile[tile_row(i)]\n"
         "                    inverse = float32(0) if l_old == 0 else float32(1) / l_old"),
    ),
    *in_kernel(
        "fa2", "never divided by l",
        ("l[i] == 0.0f ? 0.0f : dropout.factor() / l[i];", "dropout.factor();"),
        ("float32(0) if l[i] == 0 else factor(dropout) / l[i]", "factor(dropout)"),
    ),
    *in_kernel(
        "fa2", "a row that saw nothing is divided by 0",
        ("l[i] == 0.0f ? 0.0f : dropout.factor() / l[i];", "dropout.factor() / l[i];"),
        ("float32(0) if l[i] == 0 else factor(dropout) / l[i]", "factor(dropout) / l[i]"),
    ),
    *in_kernel(
        "fa2", "l summed in one thread only",
        ("row_sum(sum)", "TX * sum"),
        ("row_sum(total)", "float32(8) * total"),
    ),
    *in_kernel(
        "fa2", "l kept in 16 bits",
        ("l[i] = correction * l[i] + row_sum(sum);",
         "l[i] = __int_as_float(__float_as_int(correction * l[i] + row_sum(sum)) & 0xffff0000);"),
        ("l[i] = correction * l[i] + row_sum(total)",
         "l_new = correction * l[i] + row_sum(total)\n"
         "                l[i] = libdevice.int_as_float(libdevice.float_as_int(l_new) & int32(-65536))"),
        (None, ("from numba import cuda, float32, int32\n",
          "from numba import cuda, float32, int32\nfrom numba.cuda import libdevice\n")),
    ),
    *in_kernel(
        "fa2", "O kept in 16 bits",
        ("O_acc[i][j] *= correction;",
         "O_acc[i][j] = __int_as_float(__float_as_int(O_acc[i][j] * correction) & 0xffff0000);"),
        ("O_acc[i, j] *= correction",
         "O_acc[i, j] = libdevice.int_as_float(libdevice.float_as_int(O_acc[i, j] * correction) & int32(-65536))"),
        (None, ("from numba import cuda, float32, int32\n",
          "from numba import cuda, float32, int32\nfrom numba.cuda import libdevice\n")),
    ),
    *in_kernel(
        "fa1", "O not initialised",
        ("if (start + t < block.rows * D) O[", "if (start + t < 0) O["),
        ("for e in range(t, block.rows * D, THREADS):", "for e in range(t, 0, THREADS):"),
    ),
    *in_kernel(
        "fa1", "l not initialised",
        ("        l[first_stat + t] = 0.0f;\n", ""),
        ("            l[block.batch, block.head, block.first_row + t] = 0\n", ""),
    ),
    *in_kernel(
        "fa2", "P of the first tile used for all",
        ("P_tile[row_of(i) * LP + key_of(j)] =", "if (first_key == 0) P_tile[row_of(i) * LP + key_of(j)] ="),
        ("P_tile[row_of(i), key_of(j)] =", "if first_key == 0: P_tile[row_of(i), key_of(j)] ="),
    ),
    *in_kernel(
        "two-pass", "P not divided by l",
        ("exp_below(S[i][j], m[i]) * inverse[i];", "exp_below(S[i][j], m[i]);"),
        ("exp_below(S[i, j], m[i]) * inverse[i]", "exp_below(S[i, j], m[i])"),
    ),
)  # fmt: skip
