"""Masks that are no band: the run of keys of each row, read from arrays. Packed documents and prefixes show these."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.patching import Mutant
from tests.mutants.planting import Replacement, in_feature, in_kernel, in_rows_seeing, in_softmax, in_split_kv, planted

_CUDA, _TILES, _ON_TENSOR_CORES = "_tiles/spans.cuh", "_tiles/numba_spans.py", "_mma/numba_spans.py"


def _in_runs(
    algorithm: str, bug: str, cuda: Replacement, *numba: Replacement, sanitize: bool = False
) -> Iterator[Mutant]:
    """Planted where runs are read; what is one place in CUDA may be two in Numba."""
    files = ("_features/limits.cuh", _ON_TENSOR_CORES) if algorithm == "fa2-mma" else (_CUDA, _TILES)
    pairs = ((cuda, numba[0]), *((None, each) for each in numba[1:]))
    return planted(algorithm, bug, *files, pairs, sanitize)


def _in_order(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    """Planted where blocks of rows are put in order, and seen through `fa2-mma`."""
    files = ("_tiles/longest_first.cu", "_tiles/numba_longest_first.py")
    return planted("fa2-mma", bug, *files, ((cuda, numba),))


_READING = (
    *in_feature(
        "fa2",
        "limits",
        "first key of a run off by one",
        ("return first_keys[row - first_row];", "return first_keys[row - first_row] + 1;"),
        (
            "return run.first_keys[(row - run.first_row) & MASK]",
            "return run.first_keys[(row - run.first_row) & MASK] + 1",
        ),
    ),
    *in_feature(
        "two-pass",
        "limits",
        "end of a run off by one",
        ("return end_keys[row - first_row];", "return end_keys[row - first_row] - 1;"),
        ("return run.end_keys[(row - run.first_row) & MASK]", "return run.end_keys[(row - run.first_row) & MASK] - 1"),
    ),
    *in_feature(
        "fa2",
        "limits",
        "what lies ahead of a run is seen",
        (
            "int unclipped_first(int row) const { return first(row); }",
            "int unclipped_first(int row) const { return 0; }",
        ),
        (
            "    return first, end, first, end, of_sequence, run_of_block\n",
            "    @cuda.jit(device=True, forceinline=True)\n    def none(run, row):\n        return 0\n\n"
            "    return none, end, first, end, of_sequence, run_of_block\n",
        ),
    ),
    *in_feature(
        "fa2",
        "limits",
        "rows beyond a block's last before all keys",
        ("__ldg(first_keys + first + t) : kv_len;", "__ldg(first_keys + first + t) : 0;"),
        (
            "limits[0][block.batch, block.first_row + t] if t < block.rows else kv_len",
            "limits[0][block.batch, block.first_row + t] if t < block.rows else 0",
        ),
    ),
    *in_feature(
        "fa2",
        "limits",
        "runs of the first sequence for all",
        (
            "const size_t first = (size_t)block.batch * q_len + block.first_row;",
            "const size_t first = block.first_row;",
        ),
        ("limits[0][block.batch, block.first_row + t]", "limits[0][0, block.first_row + t]"),
        (None, ("limits[1][block.batch, block.first_row + t]", "limits[1][0, block.first_row + t]")),
    ),
    *_in_runs(
        "fa2-mma",
        "runs of the first sequence for all",
        (
            "const size_t first = (size_t)block.batch * q_len + block.first_row;",
            "const size_t first = block.first_row;",
        ),
        ("first_keys[cuda.blockIdx.z,", "first_keys[0,"),
        ("end_keys[cuda.blockIdx.z,", "end_keys[0,"),
    ),
    *in_feature(
        "two-pass",
        "limits",
        "runs of the first block of rows for all",
        (
            "const size_t first = (size_t)block.batch * q_len + block.first_row;",
            "const size_t first = (size_t)block.batch * q_len;",
        ),
        ("limits[0][block.batch, block.first_row + t]", "limits[0][block.batch, t]"),
        (None, ("limits[1][block.batch, block.first_row + t]", "limits[1][block.batch, t]")),
    ),
    *in_feature(
        "fa2",
        "limits",
        "runs looked up by a row's place",
        (
            "const size_t first = (size_t)block.batch * q_len + block.first_row;",
            "const int place = min(max(block.first_row + t + kv_len - q_len, 0), q_len - 1);\n"
            "        const size_t first = (size_t)block.batch * q_len + place - t;",
        ),
        (
            "limits[0][block.batch, block.first_row + t]",
            "limits[0][block.batch, min(max(block.first_row + t + kv_len - q_len, 0), q_len - 1)]",
        ),
        (
            None,
            (
                "limits[1][block.batch, block.first_row + t]",
                "limits[1][block.batch, min(max(block.first_row + t + kv_len - q_len, 0), q_len - 1)]",
            ),
        ),
    ),
    *in_softmax(
        "softmax of the first sequence's runs",
        ("limits.of_sequence(blockIdx.z, q_len, kv_len)", "limits.of_sequence(0, q_len, kv_len)"),
        ("limits_of_sequence(limits, batch_index(), q_len, kv_len)", "limits_of_sequence(limits, 0, q_len, kv_len)"),
    ),
    *in_feature(
        "fa2",
        "limits",
        "no barrier after runs were kept",
        ("        __syncthreads();\n", ""),
        ("        cuda.syncthreads()\n", ""),
        sanitize=True,
    ),
)
_VISITING = (
    *in_rows_seeing(
        "fa1",
        "blocks of rows left out that see a tile's first keys only",
        ("q_len) - 1) <= first_key)", "q_len) - 1) < first_key + keys)"),
        ("q_len) - 1) <= first_key:", "q_len) - 1) < first_key + keys:"),
    ),
    *in_rows_seeing(
        "fa1",
        "blocks of rows left out that begin within a tile",
        ("run.first(end) < first_key + keys)", "run.first(end) <= first_key)"),
        ("first_of(run, end) < first_key + keys:", "first_of(run, end) <= first_key:"),
    ),
    *in_rows_seeing(
        "three-pass",
        "a row that begins with the key counted as blind to it",
        ("rows_up_to(run.first_keys, block.rows, key)", "rows_up_to(run.first_keys, block.rows, key - 1)"),
        ("rows_up_to(run.first_keys, block.rows, key)", "rows_up_to(run.first_keys, block.rows, key - 1)"),
    ),
    *in_rows_seeing(
        "three-pass",
        "a row that ends with the key counted as blind to it",
        ("rows_up_to(run.end_keys, block.rows, key)", "rows_up_to(run.end_keys, block.rows, key + 1)"),
        ("rows_up_to(run.end_keys, block.rows, key)", "rows_up_to(run.end_keys, block.rows, key + 1)"),
    ),
    *in_kernel(
        "fa2-mma",
        "first tile of a document skipped",
        (
            "block, seen.first_key, seen.end_key, sequence.q_len, sequence.kv_len);",
            "block, (seen.first_key + BC - 1) / BC * BC, seen.end_key, sequence.q_len, sequence.kv_len);",
        ),
        (
            "int32(uint32(first_seen(first_row, q_len, kv_len, before)) // uint32(BC) * uint32(BC))",
            "int32(uint32(first_seen(first_row, q_len, kv_len, before) + BC - 1) // uint32(BC) * uint32(BC))",
        ),
    ),
    *planted(
        "fa2-mma",
        "end of the run of another row",
        "attention/fa2_mma/seen.cuh",
        _ON_TENSOR_CORES,
        (
            (
                ("end_keys[row_of(i, h)] - first_key", "end_keys[row_of(i, 0)] - first_key"),
                ("kept_of(after[0], row_of(i, h))", "kept_of(after[0], row_of(i, 0))"),
            ),
        ),
    ),
    *planted(
        "fa2-mma",
        "runs of the first warp for all",
        "attention/fa2_mma/registers.cuh",
        _ON_TENSOR_CORES,
        (
            (
                ("row_from((int)threadIdx.x / 32 * WARP_ROWS, i, h)", "row_from(0, i, h)"),
                ("int32(warp * uint32(WARP_ROWS) + uint32(16 * i + 8 * h)", "int32(uint32(16 * i + 8 * h)"),
            ),
        ),
    ),
    *planted(
        "fa2-mma",
        "first key of a kept run off by one",
        "attention/fa2_mma/seen.cuh",
        _ON_TENSOR_CORES,
        (
            (
                ("first_keys[row_of(i, h)] - first_key;", "first_keys[row_of(i, h)] - first_key - 1;"),
                (
                    "int32(kept_of(before[0], row_of(i, h)) - place)",
                    "int32(kept_of(before[0], row_of(i, h)) - place - 1)",
                ),
            ),
        ),
    ),
    *planted(
        "fa2-mma",
        "whole tiles taken for those that a warp's first row sees",
        "attention/fa2_mma/seen.cuh",
        "attention/fa2_mma/numba_kernel.py",
        (
            (
                ("first_keys[last] <= first_key", "first_keys[own] <= first_key"),
                ("warp_sees_from = first_seen(warps_last,", "warp_sees_from = first_seen(warp_row,"),
            ),
        ),
    ),
)
_ORDER = (
    *_in_order(
        "blocks of rows that visit as many tiles ranked alike",
        (" || (counts[i] == own_visits && first + i > own);", ";"),
        (" or (other == own_visits and first + i > own):", ":"),
    ),
    *_in_order("ranks from one", ("int rank = 0;", "int rank = 1;"), ("rank = int32(0)", "rank = int32(1)")),
)
_SPLITS = (
    in_split_kv(
        "runs of the first sequence for all",
        ("const size_t at = (size_t)batch * q_len + (first_query", "const size_t at = (first_query"),
    ),
    in_split_kv(
        "splits put together by the first sequence's runs",
        ("limits.of_sequence(own.batch, own.q_len,", "limits.of_sequence(0, own.q_len,"),
    ),
    in_split_kv(
        "sequences counted by heads",
        (
            "row / ((unsigned)heads * (unsigned)q_len);",
            "row / (unsigned)q_len;",
            "attention/split_kv/sequences.cuh",
        ),
    ),
    in_split_kv(
        "queries of a packed head not counted anew",
        ("(first_query + threadIdx.x) % q_len;", "min(first_query + threadIdx.x, q_len - 1);"),
    ),
    in_split_kv(
        "no barrier after a tile's runs were kept",
        ("    __syncthreads();\n    return {first_kept,", "    return {first_kept,"),
        sanitize=True,
    ),
)
MUTANTS = (*_READING, *_VISITING, *_ORDER, *_SPLITS)  # fmt: skip
