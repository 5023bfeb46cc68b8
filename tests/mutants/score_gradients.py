"""What can go wrong with gradients under score terms and sinks: derivatives, dbias, dsinks."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.patching import Mutant
from tests.mutants.planting import Replacement, in_backward, in_feature, in_kernel, planted

_DERIVATIVE_LEFT_OUT = "derivative of the cap left out"


def _in_dsinks(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    """Planted in the gradient of sinks."""
    files = "_tiles/sink_gradient.cu", "_tiles/numba_sink_gradient.py"
    yield from planted("bwd-fa2", bug, *files, ((cuda, numba),))


def _in_added_dbias(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    """Planted where blocks add to the gradient of a bias."""
    files = "_tiles/bias_gradient.cuh", "_tiles/numba_bias_gradient.py"
    yield from planted("bwd-fa2", bug, *files, ((cuda, numba),))


def _in_ordered_dbias(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    """Planted where a block has a tile of the gradient of a bias."""
    folder = "attention_backward/fa2_ordered"
    yield from planted("bwd-fa2-ordered", bug, f"{folder}/of_bias.cu", f"{folder}/numba_of_bias.py", ((cuda, numba),))


def _in_mma(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    """Planted where tensor cores have scored a tile."""
    files = "_mma_backward/scoring.cuh", "_mma_backward/numba_scoring.py"
    yield from planted("bwd-mma", bug, *files, ((cuda, numba),))


_TENSOR_CORES = (
    *_in_mma(
        _DERIVATIVE_LEFT_OUT,
        ("s.derivative * (P * kept", "(P * kept"),
        ("2 * h + e] = derivative * (\n", "2 * h + e] = (\n"),
    ),
    *_in_mma(
        "slope of the key/value head, on tensor cores",
        ("anew(blockIdx.x * block.group + turn.head)", "anew(blockIdx.x)"),
        ("unknown(head)", "unknown(int32(cuda.blockIdx.x))"),
    ),
)
_SCORES = (
    *in_feature(
        "bwd-fa2", "scores", "derivative of the cap of the wrong power",
        ("tanhf(s);\n        return {cap * t, 1.0f - t * t}", "tanhf(s);\n        return {cap * t, 1.0f - t}"),
        ("math.tanh(s)\n    return softcap[0] * t, ONE - t * t", "math.tanh(s)\n    return softcap[0] * t, ONE - t"),
    ),
    *in_backward(
        "bwd-fa2", _DERIVATIVE_LEFT_OUT,
        ("= derivative * dS;", "= dS;"),
        ("= (derivative if sees else ONE) * dS\n                dP", "= dS\n                dP"),
    ),
    *in_backward(
        "bwd-fa2-ordered", _DERIVATIVE_LEFT_OUT,
        ("S[i][j] = derivative * dP[i][j];", "S[i][j] = dP[i][j];"),
        ("S[i, j] = (derivative if sees else ONE) * dP[i, j]", "S[i, j] = dP[i, j]"),
    ),
    *in_kernel(
        "bwd-fa2", "factor of the cap on dQ, too",
        ("gather_dQ(dO_tile, dQ_part, tau)", "gather_dQ(dO_tile, dQ_part, score_tau)"),
        ("gather_dQ(dQ_tile, dQ_part, tau)", "gather_dQ(dQ_tile, dQ_part, score_tau)"),
    ),
    *in_kernel(
        "bwd-fa2", "slope of the key/value head",
        ("scores.of_head(head, own_rows", "scores.of_head(blockIdx.x, own_rows"),
        ("score_of_head(scores, head, own_rows", "score_of_head(scores, kv_head, own_rows"),
    ),
    *in_backward(
        "bwd-fa2-ordered", "score terms lost where P is computed once more",
        ("? score.with_derivative(tau * S[i][j], first_row + row_of(i), first_key + key_of(j))",
         "? Scored{tau * S[i][j], 1.0f}"),
        ("with_derivative(score, tau * S[i, j], first_row + row_of(i), first_key + key_of(j))", "(tau * S[i, j], ONE)"),
    ),
    *in_backward(
        "bwd-fa2", "rows and keys mixed up in score terms",
        ("first_row + key_of(j), seeing.first_key + row_of(i))",
         "first_row + row_of(i), seeing.first_key + key_of(j))"),
        ("row, key = first_row + key_of(j), seeing.first_key + row_of(i)",
         "row, key = first_row + row_of(i), seeing.first_key + key_of(j)"),
    ),
)  # fmt: skip
_SINKS = (
    *_in_dsinks(
        "dsinks without D",
        (" * delta[first + row];", ";"), (" * delta[b, head, row]", ""),
    ),
    *_in_dsinks("sign of dsinks", ("sum -=", "sum +="), ("total -=", "total +=")),
    *_in_dsinks(
        "dsinks of the last sequence alone",
        ("int b = 0;", "int b = batch - 1;"), ("in range(batch)", "in range(batch - 1, batch)"),
    ),
    *_in_dsinks("dsinks of one warp", ("warp < THREADS / 32", "warp < 1"), ("range(1, WARPS)", "range(1, 1)")),
)  # fmt: skip
_BIAS = (
    *_in_added_dbias(
        "dbias of the last block alone",
        ("atomicAdd(at(row, key), dS[i][j])", "*at(row, key) = dS[i][j]"),
        ("cuda.atomic.add(values, (first_row + key_of(j), first_key + row_of(i)), dS[i, j])",
         "values[first_row + key_of(j), first_key + row_of(i)] = dS[i, j]"),
    ),
    *_in_added_dbias(
        "dbias summed over the wrong axis",
        ("} else if (row_stride != 0) {", "} else if (row_stride == 0) {"),
        ("elif row_stride != 0:", "elif row_stride == 0:"),
    ),
    *_in_added_dbias(
        "dbias of some keys of a warp",
        ("                    sum = lanes_sum<APART>(sum);\n", ""),
        ("                total = lanes_sum(total, APART)\n", ""),
    ),
    *_in_added_dbias(
        "dbias of the first head", ("dbias + (size_t)head * head_stride, row", "dbias, row"),
        ("dbias[0][head if dbias[0].shape[0] > 1 else 0]", "dbias[0][0]"),
    ),
    *in_kernel(
        "bwd-fa2", "dbias not set to 0", ("    dbias.zero();\n", ""), ("        zero_dbias(dbias)\n", "")
    ),
    *in_backward(
        "bwd-fa2", "dbias after the derivative of the cap",
        ("dP[i][j] = dS;", "dP[i][j] = derivative * dS;"),
        ("dP[i, j] = dS\n", "dP[i, j] = derivative * dS if sees else ZERO\n"),
    ),
    *in_backward(
        "bwd-fa2", "a bias of minus infinity where a row sees no other key",
        ("if constexpr (DBiasOfHead::IS_BIASED) sees = sees && s.score != MINUS_INFINITY;", ""),
        ("                if IS_BIASED:\n                    sees = sees and s != MINUS_INFINITY\n"
         "                p = libdevice.fast_expf(s - lse_j)",
         "                p = libdevice.fast_expf(s - lse_j)"),
    ),
    *_in_ordered_dbias(
        "dbias of the first sequence alone",
        ("int b = 0; b < batch;", "int b = 0; b < 1;"), ("in range(batch)", "in range(1)"),
    ),
    *_in_ordered_dbias(
        "dbias not summed over heads",
        ("head_stride != 0 ? own_head + 1 : heads", "own_head + 1"),
        ("own_head + 1 if head_stride != 0 else heads", "own_head + 1"),
    ),
    *_in_ordered_dbias(
        "dbias of the last tile of keys alone",
        ("dS_acc[i][j] += dP[i][j];", "dS_acc[i][j] = dP[i][j];"),
        ("dS_acc[i, j] += dP[i, j]", "dS_acc[i, j] = dP[i, j]"),
    ),
)  # fmt: skip
MUTANTS = (*_SCORES, *_SINKS, *_BIAS, *_TENSOR_CORES)
