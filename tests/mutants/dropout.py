"""Which weights drop out, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.patching import Mutant
from tests.mutants.planting import Replacement, in_backward, in_kernel, in_plan, planted


def _in_dropout(algorithm: str, bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    """Planted in what kernels have in common for dropout, and seen through one of them."""
    yield from planted(algorithm, bug, "_dropout/dropout.cuh", "_dropout/numba_dropout.py", ((cuda, numba),))


_DRAWN = (
    *_in_dropout(
        "fa2", "high half of the seed ignored",
        ("entry), seed_low, seed_high);", "entry), seed_low, 0);"), ("draw[1], draw[2])", "draw[1], uint32(0))"),
    ),
    *_in_dropout(
        "three-pass", "low half of the seed ignored",
        ("entry), seed_low, seed_high);", "entry), 0, seed_high);"), ("draw[1], draw[2])", "uint32(0), draw[2])"),
    ),
    *_in_dropout(
        "fa2", "a neighbour's counter",
        ("make_uint4(block * 8 + column, row", "make_uint4(block * 8 + (column ^ 1), row"),
        ("uint32(block * 8 + column)", "uint32(block * 8 + (column ^ 1))"),
    ),
    *_in_dropout(
        "three-pass", "row and key exchanged",
        ("make_uint4(block * 8 + column, row, head", "make_uint4(row, block * 8 + column, head"),
        ("uint32(block * 8 + column), uint32(row), uint32(head)",
         "uint32(row), uint32(block * 8 + column), uint32(head)"),
    ),
    *_in_dropout("fa2", "one round less", ("round < 10", "round < 9"), ("range(10)", "range(9)")),
    *_in_dropout(
        "three-pass", "one key for all rounds",
        ("key_low += 0x9E3779B9;", ""), ("uint32(key_low + STEP_LOW)", "key_low"),
    ),
    *_in_dropout(
        "fa2", "halves of a word exchanged",
        ("words[4] = {drawn.x, drawn.y, drawn.z, drawn.w};",
         "words[4] = {__funnelshift_l(drawn.x, drawn.x, 16), __funnelshift_l(drawn.y, drawn.y, 16),"
         " __funnelshift_l(drawn.z, drawn.z, 16), __funnelshift_l(drawn.w, drawn.w, 16)};"),
        ("(uint32(1) if low else uint32(0)) | (uint32(2) if high else uint32(0))",
         "(uint32(2) if low else uint32(0)) | (uint32(1) if high else uint32(0))"),
    ),
    *_in_dropout(
        "fa2", "words in another order",
        ("{drawn.x, drawn.y, drawn.z, drawn.w}", "{drawn.x, drawn.z, drawn.y, drawn.w}"),
        ("x, y, z, w = numbers(draw, row, block", "x, z, y, w = numbers(draw, row, block"),
    ),
    *_in_dropout(
        "three-pass", "the same number for keys that are 32 apart",
        ("key & 32 ? high : low", "low"), ("high if key & 32 else low", "low"),
    ),
    *_in_dropout(
        "fa2", "the block's numbers in every tile of it",
        ("const int ahead = 8 * block - first_key / 8;", "const int ahead = 0;"),
        ("ahead = int32(8 * block - int32(uint32(first_key) >> uint32(3)))", "ahead = int32(0)"),
    ),
    *_in_dropout(
        "fa2", "what is to drop out is kept",
        ("if (words[w] >= threshold << 16)", "if (words[w] < threshold << 16)"),
        ("(word >> uint32(16)) >= threshold", "(word >> uint32(16)) < threshold"),
    ),
)  # fmt: skip
_COUNTED = (
    *in_kernel(
        "fa2", "numbers of the place within the tile",
        (".kept<TN>(first_row + row_of(i)", ".kept<TN>(row_of(i)"),
        ("kept(draw, first_row + row_of(i)", "kept(draw, row_of(i)"),
    ),
    *in_kernel(
        "fa2", "numbers of the first tile of keys",
        ("row_of(i), first_key, thread_column()", "row_of(i), 0, thread_column()"),
        ("row_of(i), first_key, thread_column()", "row_of(i), 0, thread_column()"),
    ),
    *in_kernel(
        "fa2", "numbers of the key/value head",
        ("DROPOUT_OF(blockIdx.y, blockIdx.z)", "DROPOUT_OF(blockIdx.y / group, blockIdx.z)"),
        ("thread_column(), head_index(), batch_index())", "thread_column(), kv_head_index(group), batch_index())"),
    ),
    *in_kernel(
        "three-pass", "numbers of the first batch entry",
        ("DROPOUT_OF(blockIdx.y, blockIdx.z)", "DROPOUT_OF(blockIdx.y, 0)"),
        ("32, head_index(), batch_index())", "32, head_index(), 0)"),
    ),
    *in_kernel(
        "three-pass", "numbers of heads counted through the batch",
        ("DROPOUT_OF(blockIdx.y, blockIdx.z)", "DROPOUT_OF(head_index(), 0)"),
        ("32, head_index(), batch_index())", "32, batch_index() * cuda.gridDim.y + head_index(), 0)"),
    ),
    *in_kernel(
        "three-pass", "keys counted from the first that the row sees",
        (".keeps(row, first_key + j + c * 32)", ".keeps(row, j + c * 32)"),
        ("keeps(draw, row, first_key + j + c * 32", "keeps(draw, row, j + c * 32"),
    ),
)  # fmt: skip
_WEIGHTS = (
    *(
        mutant
        for algorithm in ("fa2", "three-pass")
        for mutant in _in_dropout(
            algorithm, "what is left is not scaled",
            ("#define KEPT_FACTOR kept_factor", "#define KEPT_FACTOR 1.0f"), ("return kept_factor", "return ONE"),
        )
    ),
    *in_kernel(
        "fa2", "dropped before the denominator",
        ("sum += p;", "sum += DROPPED(p, kept, j);"), ("total += p\n", "total += dropped(p, bits, j)\n"),
    ),
    *in_kernel(
        "fa2", "what is left scaled by 1 - P",
        ("KEPT_FACTOR / l[i]", "1.0f / (KEPT_FACTOR * l[i])"),
        ("factor_of(kept_factor) / l[i]", "np.float32(1) / (factor_of(kept_factor) * l[i])"),
        (None, ("import math\n", "import math\n\nimport numpy as np\n")),
    ),
)  # fmt: skip
_ON_TENSOR_CORES = (
    *_in_dropout(
        "fa2-mma", "one number for two neighbouring columns",
        ("of_block, lane % 4 * 2 + 1)", "of_block, lane % 4 * 2)"), ("uint32(2) + uint32(c)", "uint32(2)"),
    ),
    *_in_dropout(
        "fa2-mma", "numbers of row g for row g + 8",
        ("warp_row + 16 * i + 8 * h + lane / 4", "warp_row + 16 * i + lane / 4"),
        ("uint32(warp_row + 16 * i + 8 * h)", "uint32(warp_row + 16 * i)"),
    ),
    *in_kernel(
        "fa2-mma", "numbers of the first warp's rows",
        ("seen, poisoned KEPT_OF_TILE_ARGUMENTS(warp_row,", "seen, poisoned KEPT_OF_TILE_ARGUMENTS(first_row,"),
        ("poisoned, draw, warp_row, first_key,", "poisoned, draw, first_row, first_key,"),
    ),
    *in_kernel(
        "fa2-mma", "numbers of the first tile of keys",
        ("seen, false KEPT_OF_TILE_ARGUMENTS(warp_row, first_key)", "seen, false KEPT_OF_TILE_ARGUMENTS(warp_row, 0)"),
        ("poisoned, draw, warp_row, first_key,", "poisoned, draw, warp_row, int32(0),"),
    ),
    *in_kernel(
        "fa2-mma", "columns exchanged",
        ("DROPPED(low, kept[i][h], 2 * s + j), DROPPED(high, kept[i][h], 16 + 2 * s + j)",
         "DROPPED(low, kept[i][h], 16 + 2 * s + j), DROPPED(high, kept[i][h], 2 * s + j)"),
        ("dropped(low, bits[i, h], tile_of_8), dropped(high, bits[i, h], 16 + tile_of_8)",
         "dropped(low, bits[i, h], 16 + tile_of_8), dropped(high, bits[i, h], tile_of_8)"),
    ),
    *in_kernel(
        "fa2-mma", "dropped before the denominator",
        ("rows.l[i][h] += low;", "rows.l[i][h] += DROPPED(low, kept[i][h], 2 * s + j);"),
        ("l[i, h] += low\n", "l[i, h] += dropped(low, bits[i, h], 2 * s + j)\n"),
    ),
    *in_kernel(
        "fa2-mma", "what is left is not scaled beside a sink",
        ("KEPT_FACTOR * correction / l;", "correction / l;"),
        ("factor_of(kept_factor) * correction / total", "correction / total"),
    ),
)  # fmt: skip
_OF_GRADIENTS = (
    *in_backward(
        "bwd-fa2", "dP kept where the weight drops out",
        ("dp = DROPPED(kept_factor * dP[i][j], kept, row_of(i) / 8);", "dp = kept_factor * dP[i][j];"),
        ("dp = dropped(grown(dP[i, j], dropout), bits, row_of(i) >> 3)", "dp = grown(dP[i, j], dropout)"),
    ),
    *in_backward(
        "bwd-fa2", "dP not grown",
        ("DROPPED(kept_factor * dP[i][j], kept", "DROPPED(dP[i][j], kept"),
        ("dropped(grown(dP[i, j], dropout), bits", "dropped(dP[i, j], bits"),
    ),
    *in_backward(
        "bwd-fa2", "dV of all weights",
        ("P_tile[row_of(i) * LP + key_of(j)] = DROPPED(p, kept, row_of(i) / 8);",
         "P_tile[row_of(i) * LP + key_of(j)] = p;"),
        ("P_tile[row_of(i), key_of(j)] = dropped(p, bits, row_of(i) >> 3)", "P_tile[row_of(i), key_of(j)] = p"),
    ),
    *in_backward(
        "bwd-fa2", "no dS where the weight drops out",
        ("dp = DROPPED(kept_factor * dP[i][j], kept, row_of(i) / 8);",
         "dp = kept >> row_of(i) / 8 & 1 ? kept_factor * dP[i][j] : delta_j;"),
        ("dp = dropped(grown(dP[i, j], dropout), bits, row_of(i) >> 3)",
         "dp = dropped(grown(dP[i, j], dropout) - delta_j, bits, row_of(i) >> 3) + delta_j"),
    ),
    *in_backward(
        "bwd-fa2", "numbers of rows counted within the tile",
        ("(first_row + key_of(j), first_key, thread_row() % 8)", "(key_of(j), first_key, thread_row() % 8)"),
        ("kept(draw, first_row + key_of(j), first_key,", "kept(draw, key_of(j), first_key,"),
    ),
    *in_backward(
        "bwd-fa2", "numbers of the keys' transposed place",
        ("first_key, thread_row() % 8)", "first_key, thread_column())"), ("thread_row() & 7", "thread_column()"),
    ),
    *in_kernel(
        "bwd-fa2", "numbers of the key/value head",
        ("DROPOUT_OF(blockIdx.y * group + member, blockIdx.z)", "DROPOUT_OF(blockIdx.y, blockIdx.z)"),
        ("(draw, kept_factor, head, first_row", "(draw, kept_factor, head_index(), first_row"),
    ),
    *in_kernel(
        "bwd-fa2", "dV not grown",
        ("gather<KEYS>(V_tile, dV_acc, KEPT_FACTOR);", "gather<KEYS>(V_tile, dV_acc, 1.0f);"),
        ("dV_acc, TM, factor_of(kept_factor))", "dV_acc, TM, float32(1))"),
    ),
    *in_plan("bwd-three-pass", "dV not grown", "np.float32(p.kept_factor)", "one"),
    *in_kernel(
        "bwd-three-pass", "dP kept where the weight drops out",
        ("(DROPPED(KEPT_FACTOR * widen(dp[c]), kept, 0) - delta)", "(KEPT_FACTOR * widen(dp[c]) - delta)"),
        ("factor_of(kept_factor) * widen(dp[c]) if kept else ZERO", "factor_of(kept_factor) * widen(dp[c])"),
    ),
    *in_kernel(
        "bwd-three-pass", "dS from weights that are left alone",
        ("narrow(p * (DROPPED(", "narrow(DROPPED(p, kept, 0) * (DROPPED("),
        ("narrow(p * (dp_c - delta))", "narrow((p if kept else ZERO) * (dp_c - delta))"),
    ),
    *in_kernel(
        "bwd-three-pass", "keys counted from the first that the row sees",
        (".keeps(row, first_key + j + c * 32)", ".keeps(row, j + c * 32)"),
        ("keeps(draw, row, first_key + j + c * 32", "keeps(draw, row, j + c * 32"),
    ),
)  # fmt: skip

MUTANTS = (*_DRAWN, *_COUNTED, *_WEIGHTS, *_ON_TENSOR_CORES, *_OF_GRADIENTS)
