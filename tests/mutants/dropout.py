"""Which weights drop out, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.patching import Mutant
from tests.mutants.planting import (
    Replacement,
    in_backward,
    in_backward_weights,
    in_feature,
    in_kernel,
    in_output,
    in_plan,
    in_products,
    in_softmax,
    planted,
)


def _in_fragments(algorithm: str, bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    """Planted in what kernels on tensor cores have in common for dropout, and seen through one of them."""
    files = ("_features/dropout_fragments.cuh", "_features/numba_dropout_fragments.py")
    yield from planted(algorithm, bug, *files, ((cuda, numba),))


def _in_scores(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    """Planted where blocks of that launch score tiles of rows."""
    yield from planted("bwd-mma", bug, "_mma_backward/scoring.cuh", "_mma_backward/numba_scoring.py", ((cuda, numba),))


def _in_owner_of_keys(
    bug: str, cuda: Replacement, numba: Replacement, *more: tuple[Replacement | None, Replacement | None]
) -> Iterator[Mutant]:
    """Planted in the launch of `bwd-mma` whose blocks own keys."""
    pairs = ((cuda, numba), *more)
    yield from planted("bwd-mma", bug, "_mma_backward/keys.cu", "_mma_backward/numba_keys.py", pairs)


_DRAWN = (
    *in_feature(
        "fa2", "dropout", "high half of the seed ignored",
        ("batch), seed_low, seed_high);", "batch), seed_low, 0);"),
        ("drawn.seed_low, drawn.seed_high)", "drawn.seed_low, uint32(0))"),
    ),
    *in_feature(
        "three-pass", "dropout", "low half of the seed ignored",
        ("batch), seed_low, seed_high);", "batch), 0, seed_high);"),
        ("drawn.seed_low, drawn.seed_high)", "uint32(0), drawn.seed_high)"),
    ),
    *in_feature(
        "fa2", "dropout", "a neighbour's counter",
        ("make_uint4(key_block * 8 + key_of_8,", "make_uint4(key_block * 8 + (key_of_8 ^ 1),"),
        ("uint32(key_block * 8 + key_of_8)", "uint32(key_block * 8 + (key_of_8 ^ 1))"),
    ),
    *in_feature(
        "three-pass", "dropout", "row and key exchanged",
        ("make_uint4(key_block * 8 + key_of_8, row_block * 8 + row_of_8, head",
         "make_uint4(row_block * 8 + row_of_8, key_block * 8 + key_of_8, head"),
        ("x, y = uint32(key_block", "y, x = uint32(key_block"),
    ),
    *in_feature("fa2", "dropout", "one round less", ("round < 10", "round < 9"), ("range(10)", "range(9)")),
    *in_feature(
        "three-pass", "dropout", "one key for all rounds",
        ("key_low += 0x9E3779B9;", ""), ("uint32(key_low + STEP_LOW)", "key_low"),
    ),
    *in_feature(
        "fa2", "dropout", "bytes of a word in the other order",
        ("(words[w] >> row % 32 / 8 * 8 & 0xff)", "(words[w] >> (24 - row % 32 / 8 * 8) & 0xff)"),
        ("(uint32(row) % uint32(32) // uint32(8) * uint32(8))",
         "(uint32(24) - uint32(row) % uint32(32) // uint32(8) * uint32(8))"),
    ),
    *in_feature(
        "fa2", "dropout", "one number for rows that are eight apart",
        ("(words[w] >> row % 32 / 8 * 8 & 0xff)", "(words[w] & 0xff)"),
        ("(uint32(row) % uint32(32) // uint32(8) * uint32(8))", "uint32(0)"),
    ),
    *in_feature(
        "fa2", "dropout", "words in another order",
        ("{drawn.x, drawn.y, drawn.z, drawn.w}", "{drawn.x, drawn.z, drawn.y, drawn.w}"),
        ("x, y, z, w = numbers(drawn, row >> 5, row & 7, block,",
         "x, z, y, w = numbers(drawn, row >> 5, row & 7, block,"),
    ),
    *in_feature(
        "three-pass", "dropout", "the same number for keys that are 16 apart",
        ("key & 16 ? high : low", "low"), ("high if key & 16 else low", "low"),
    ),
    *in_feature(
        "fa2", "dropout", "the block's numbers in every tile of it",
        ("const int ahead = 4 * block - first_key / 8;", "const int ahead = 0;"),
        ("ahead = int32(4 * block - int32(uint32(first_key) >> uint32(3)))", "ahead = int32(0)"),
    ),
    *in_feature(
        "fa2", "dropout", "what is to drop out is kept",
        ("& 0xff) >= threshold) bits", "& 0xff) < threshold) bits"),
        ("number_of_row(w, row) >= drawn.threshold", "number_of_row(w, row) < drawn.threshold"),
    ),
)  # fmt: skip
_COUNTED = (
    *in_kernel(
        "fa2", "numbers of the place within the tile",
        (".kept<TN>(first_row + row_of(i)", ".kept<TN>(row_of(i)"),
        ("kept_of(drawn, first_row + row_of(i)", "kept_of(drawn, row_of(i)"),
    ),
    *in_kernel(
        "fa2", "numbers of the first tile of keys",
        ("row_of(i), first_key, thread_column()", "row_of(i), 0, thread_column()"),
        ("row_of(i), first_key, thread_column()", "row_of(i), 0, thread_column()"),
    ),
    *in_kernel(
        "fa2", "numbers of the key/value head",
        ("dropout.of_head(head, batch)", "dropout.of_head(head / group, batch)"),
        ("dropout_of_head(dropout, head, batch)", "dropout_of_head(dropout, kv_head, batch)"),
    ),
    *in_softmax(
        "numbers of the first batch entry",
        ("dropout.of_head(blockIdx.y, blockIdx.z)", "dropout.of_head(blockIdx.y, 0)"),
        ("dropout_of_head(dropout, head_index(), batch_index())", "dropout_of_head(dropout, head_index(), 0)"),
    ),
    *in_softmax(
        "numbers of heads counted through the batch",
        ("dropout.of_head(blockIdx.y, blockIdx.z)", "dropout.of_head(head_index(), 0)"),
        ("dropout_of_head(dropout, head_index(), batch_index())",
         "dropout_of_head(dropout, batch_index() * cuda.gridDim.y + head_index(), 0)"),
    ),
    *in_softmax(
        "keys counted from the first that the row sees",
        (".keeps(row, first_key + j + c * 32)", ".keeps(row, j + c * 32)"),
        ("keeps(drawn, row, first_key + j + c * 32", "keeps(drawn, row, j + c * 32"),
    ),
)  # fmt: skip
_WEIGHTS = (
    *(
        mutant
        for algorithm in ("fa2", "three-pass")
        for mutant in in_feature(
            algorithm, "dropout", "what is left is not scaled",
            ("return kept_factor;", "return 1.0f;"), ("return dropout[3]", "return ONE"),
        )
    ),
    *in_kernel(
        "fa2", "dropped before the denominator",
        ("sum += p;", "sum += kept.or_zero(p, j);"), ("total += p\n", "total += or_zero(kept, p, j)\n"),
    ),
    *in_kernel(
        "fa2", "what is left scaled by 1 - P",
        ("dropout.factor() / l[i]", "1.0f / (dropout.factor() * l[i])"),
        ("factor(dropout) / l[i]", "float32(1) / (factor(dropout) * l[i])"),
    ),
)  # fmt: skip
_ON_TENSOR_CORES = (
    *_in_fragments(
        "fa2-mma", "one number for two neighbouring columns",
        ("key / 32, lane % 4 * 2 + c)", "key / 32, lane % 4 * 2)"),
        ("g, column = lane >> uint32(2), (lane & uint32(3)) * uint32(2) + uint32(c)",
         "g, column = lane >> uint32(2), (lane & uint32(3)) * uint32(2)"),
    ),
    *_in_fragments(
        "fa2-mma", "numbers of row g for row g + 8",
        ("byte = IN_PAIRS ? i % 2 * 2 + h : h;", "byte = IN_PAIRS ? i % 2 * 2 : 0;"),
        ("s % 2 * 2 + j if WHOLE_BLOCKS else j, byte)", "s % 2 * 2 + j if WHOLE_BLOCKS else j, byte & 2)"),
    ),
    *_in_fragments(
        "fa2-mma", "numbers of 16 keys for the next 16",
        ("word = WHOLE_BLOCKS ? s % 2 * 2 + j : j", "word = j"), ("s % 2 * 2 + j if WHOLE_BLOCKS else j", "j"),
    ),
    *_in_fragments(
        "fa2-mma", "marks of even bytes for odd ones",
        ("0xcc88 + 0x1111 * byte", "0xcc88 + 0x1111 * (byte & 2)"),
        ("0xCC88 + 0x1111 * byte", "0xCC88 + 0x1111 * (byte & 2)"),
    ),
    *_in_fragments(
        "fa2-mma", "a number as large as the threshold drops out",
        ("0x80808080) - seven_bits", "0x80808080) - seven_bits - 0x01010101"),
        ("- seven_bits)", "- seven_bits - uint32(0x01010101))"),
    ),
    *_in_fragments(
        "fa2-mma", "the eighth bit of a number left out",
        ("return (numbers & reached) |", "return reached |"), ("return (numbers & reached) |", "return reached |"),
    ),
    *_in_fragments(
        "bwd-mma", "the eighth bit of a number enough for any threshold",
        ("(eighth_is_enough & (numbers | reached))", "(numbers | reached)"),
        ("(eighth_is_enough & (numbers | reached))", "(numbers | reached)"),
    ),
    *_in_fragments(
        "fa2-mma", "columns exchanged",
        ("marks[0][word], marks[1][word]", "marks[1][word], marks[0][word]"),
        ("marks[block, 0, word], marks[block, 1, word]", "marks[block, 1, word], marks[block, 0, word]"),
    ),
    *in_kernel(
        "fa2-mma", "numbers of the first warp's rows",
        ("kept.draw(drawn, scoring.row, scoring.key, s);",
         "kept.draw(drawn, scoring.row / BR * BR, scoring.key, s);"),
        ("poisoned, dropout, warp_row, first_key,", "poisoned, dropout, first_row, first_key,"),
    ),
    *planted(
        "fa2-mma", "numbers of the first sequence for all",
        "attention/fa2_mma/kernel.cu", "attention/fa2_mma/numba_products.py",
        ((("dropout.of_head(head, batch)", "dropout.of_head(head, 0)"),
          ("else head, entry_of_head(heads))", "else head, uint32(0))")),),
    ),
    *in_kernel(
        "fa2-mma", "numbers of the first tile of keys",
        ("kept.draw(drawn, scoring.row, scoring.key, s);", "kept.draw(drawn, scoring.row, 0, s);"),
        ("poisoned, dropout, warp_row, first_key,", "poisoned, dropout, warp_row, int32(0),"),
    ),
    *in_products(
        "dropped before the denominator",
        (" l[i][h] += low;", " if (kept.both(1u, i, h, s, j)) l[i][h] += low;"),
        ("l[i, h] += low\n", "l[i, h] += low if kept_both(uint32(1), marks, i, h, s, j) else ZERO\n"),
    ),
    *in_output(
        "what is left is not scaled beside a sink",
        ("kept_factor * correction / l;", "correction / l;"),
        ("factor_of(dropout) * correction / total", "correction / total"),
    ),
)  # fmt: skip
_OF_GRADIENTS = (
    *in_backward(
        "bwd-fa2", "dP kept where the weight drops out",
        ("dp = kept.or_zero(factor * dP[i][j], row_of(i) / 8);", "dp = factor * dP[i][j];"),
        ("dp = or_zero(kept, factor * dP[i, j], row_of(i) >> 3)", "dp = factor * dP[i, j]"),
    ),
    *in_backward(
        "bwd-fa2", "dP not grown",
        ("kept.or_zero(factor * dP[i][j],", "kept.or_zero(dP[i][j],"),
        ("or_zero(kept, factor * dP[i, j],", "or_zero(kept, dP[i, j],"),
    ),
    *in_backward(
        "bwd-fa2", "dV of all weights",
        ("= kept.or_zero(p, row_of(i) / 8);", "= p;"), ("= or_zero(kept, p, row_of(i) >> 3)", "= p"),
    ),
    *in_backward(
        "bwd-fa2", "no dS where the weight drops out",
        ("dp = kept.or_zero(factor * dP[i][j], row_of(i) / 8);",
         "dp = kept.or_zero(factor * dP[i][j] - delta_j, row_of(i) / 8) + delta_j;"),
        ("dp = or_zero(kept, factor * dP[i, j], row_of(i) >> 3)",
         "dp = or_zero(kept, factor * dP[i, j] - delta_j, row_of(i) >> 3) + delta_j"),
    ),
    *in_backward(
        "bwd-fa2", "numbers of rows counted within the tile",
        ("(first_row + key_of(j), seeing.first_key,", "(key_of(j), seeing.first_key,"),
        ("kept_of(drawn, first_row + key_of(j),", "kept_of(drawn, key_of(j),"),
    ),
    *in_backward(
        "bwd-fa2", "numbers of the keys' transposed place",
        ("seeing.first_key, thread_row() % 8)", "seeing.first_key, thread_column())"),
        ("thread_row() & 7", "thread_column()"),
    ),
    *in_kernel(
        "bwd-fa2", "numbers of the key/value head",
        ("dropout.of_head(head, blockIdx.z)", "dropout.of_head(blockIdx.x, blockIdx.z)"),
        ("dropout_of_head(dropout, head, batch)", "dropout_of_head(dropout, kv_head, batch)"),
    ),
    *in_kernel(
        "bwd-fa2", "dV not grown",
        ("                dropout.factor(), keys);", "                1.0f, keys);"),
        ("dV_acc, tau, factor(dropout),", "dV_acc, tau, float32(1),"),
    ),
    *in_plan("bwd-three-pass", "dV not grown", "np.float32(p.kept_factor)", "np.float32(1)"),
    *in_backward_weights(
        "dP kept where the weight drops out",
        ("((kept ? dropout.factor() * widen(dp[c]) : 0.0f) - delta)", "(dropout.factor() * widen(dp[c]) - delta)"),
        ("factor(dropout) * widen(dp[c]) if kept else ZERO", "factor(dropout) * widen(dp[c])"),
    ),
    *in_backward_weights(
        "dS from weights that are left alone",
        ("narrow(p * ((kept ?", "narrow((kept ? p : 0.0f) * ((kept ?"),
        ("narrow(p * (dp_c - delta))", "narrow((p if kept else ZERO) * (dp_c - delta))"),
    ),
    *in_backward_weights(
        "keys counted from the first that the row sees",
        (".keeps(row, first_key + j + c * 32)", ".keeps(row, j + c * 32)"),
        ("keeps(drawn, row, first_key + j + c * 32)", "keeps(drawn, row, j + c * 32)"),
    ),
    *_in_fragments(
        "bwd-mma", "dP kept where the weight drops out",
        ("__uint_as_float(__float_as_uint(dP) & mask)", "dP"),
        ("libdevice.fmaf(factor, kept, -delta)", "libdevice.fmaf(factor, dP, -delta)"),
    ),
    *_in_fragments(
        "bwd-mma", "dP not grown",
        ("fmaf(factor, __uint_as_float", "fmaf(1.0f, __uint_as_float"),
        ("libdevice.fmaf(factor, kept", "libdevice.fmaf(factor / factor, kept"),
    ),
    *_in_scores(
        "dV of all weights",
        ("            drop(P, kept);\n", ""), ("                drop(P, marks)\n", ""),
    ),
    *_in_owner_of_keys(
        "dV not grown",
        ("own.of_dV ? dropout.factor() : tau", "own.of_dV ? 1.0f : tau"),
        ("factor(dropout) if of_dV", "np.float32(1) if of_dV"),
        (("gather(chip.V_tile, sums[0], dropout.factor()", "gather(chip.V_tile, sums[0], 1.0f"),
         ("gather(V_tile, sums[0], factor(dropout))", "gather(V_tile, sums[0], np.float32(1))")),
    ),
    *_in_scores(
        "numbers of the group's first head",
        ("of_head(blockIdx.x * block.group + turn.head, blockIdx.z)", "of_head(blockIdx.x * block.group, blockIdx.z)"),
        ("int32(cuda.blockIdx.x * block.group + turn.head)", "int32(cuda.blockIdx.x * block.group)"),
    ),
    *_in_scores(
        "numbers of the first warp's keys",
        ("% 32, key, row);", "% 32, block.first_key, row);"),
        ("cuda.blockIdx.z), key, row)", "cuda.blockIdx.z), block.first_key, row)"),
    ),
    *_in_fragments(
        "bwd-mma", "rows and keys exchanged",
        ("drawn.numbers(row / 32, lane % 4 * 2 + c, key / 32, lane / 4)",
         "drawn.numbers(key / 32, lane / 4, row / 32, lane % 4 * 2 + c)"),
        ("numbers(drawn, row >> uint32(5), column, key >> uint32(5), g)",
         "numbers(drawn, key >> uint32(5), g, row >> uint32(5), column)"),
    ),
    *in_kernel(
        "bwd-mma-ordered", "numbers of the first tile of keys",
        ("row, key, 0);", "row, 0, 0);"),
        ("cuda.blockIdx.z), warp_row, key)", "cuda.blockIdx.z), warp_row, int32(0))"),
    ),
)  # fmt: skip

MUTANTS = (*_DRAWN, *_COUNTED, *_WEIGHTS, *_ON_TENSOR_CORES, *_OF_GRADIENTS)
