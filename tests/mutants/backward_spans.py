"""Gradients under masks that are no band: the run of rows that see a key, read from arrays, and what follows of it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.patching import Mutant
from tests.mutants.planting import Replacement, in_feature, in_kernel, in_plan, planted

_KEPT = "_tiles/rows_seeing.cuh"
_PRODUCTS, _ROWS = "_mma_backward/products.cuh", "attention_backward/mma_ordered/kernel.cu"
_PRODUCTS_IN_NUMBA, _SPANS_IN_NUMBA = "_mma_backward/numba_seen.py", "_mma/numba_spans.py"


def _on_tensor_cores(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    return planted("bwd-mma", bug, _PRODUCTS, _PRODUCTS_IN_NUMBA, ((cuda, numba),))


def _in_three_pass(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    return in_kernel("bwd-three-pass", bug, cuda, numba)


_READING = (
    *in_feature(
        "bwd-fa2",
        "limits",
        "runs of the first sequence's keys for all",
        ("(size_t)block.batch * q_len + block.first_row", "block.first_row"),
        ("limits[0][block.batch, block.first_row + t]", "limits[0][0, block.first_row + t]"),
        (None, ("limits[1][block.batch, block.first_row + t]", "limits[1][0, block.first_row + t]")),
    ),
    *(
        mutant
        for algorithm, file, sequence in (("bwd-mma", _SPANS_IN_NUMBA, "cuda.blockIdx.z"),)
        for mutant in planted(
            algorithm,
            "runs of the first sequence's keys for all",
            _KEPT,
            file,
            (
                (
                    (
                        "(first_kept, first_rows, first_key,",
                        "(first_kept, first_rows, first_key - blockIdx.z * kv_len,",
                    ),
                    (f"first_keys[{sequence}, first_row + t]", "first_keys[0, first_row + t]"),
                ),
                (
                    ("(end_kept, end_rows, first_key,", "(end_kept, end_rows, first_key - blockIdx.z * kv_len,"),
                    (f"end_keys[{sequence}, first_row + t]", "end_keys[0, first_row + t]"),
                ),
            ),
        )
    ),
    *in_plan(
        "bwd-fa2-ordered",
        "runs of rows where those of keys belong",
        "features.mirrored_limits(p).argument",
        "features.limits(p).argument",
    ),
    *in_plan(
        "bwd-three-pass",
        "runs of rows where those of keys belong",
        "features.mirrored_limits(p).argument",
        "features.limits(p).argument",
    ),
    *in_plan(
        "bwd-mma-ordered",
        "runs of keys where those of rows belong",
        "scalars(p, limits(p), always=always)",
        "scalars(p, limits_of_keys(p), always=always)",
    ),
    *in_feature(
        "bwd-fa2-ordered",
        "limits",
        "no barrier after runs of keys were kept",
        ("        __syncthreads();\n", ""),
        ("        cuda.syncthreads()\n", ""),
        sanitize=True,
    ),
)
_VISITING = (
    *in_feature(
        "bwd-fa2",
        "limits",
        "rows left out that see a tile's last keys alone",
        ("run.end(last_row), run.first(last_row)", "run.end(first_row), run.first(last_row)"),
        ("end(run, last_row)", "end(run, block.first_row)"),
    ),
    *in_feature(
        "bwd-fa1",
        "limits",
        "rows left out that see a tile's first keys alone",
        ("{run, run.first(first_row),", "{run, run.first(last_row),"),
        ("run, first(run, block.first_row),", "run, first(run, last_row),"),
    ),
    *in_feature(
        "bwd-fa2-ordered",
        "limits",
        "rows that see a tile's first key taken to see all",
        ("run.first(last_row), run.end(first_row)}", "run.first(first_row), run.end(last_row)}"),
        ("first(run, last_row), end(run, block.first_row)", "first(run, block.first_row), end(run, last_row)"),
    ),
    *planted(
        "bwd-mma",
        "tile of rows left out that sees a tile's last keys alone",
        _PRODUCTS,
        "_mma_backward/numba_products.py",
        (
            (
                ("const int end_row = end_seen(first_key + keys - 1,", "const int end_row = end_seen(first_key,"),
                ("end_row = end_seen(int32(first_key + keys - 1),", "end_row = end_seen(first_key,"),
            ),
        ),
    ),
    *_on_tensor_cores(
        "a tile taken for unmasked whose last keys are seen later",
        ("(first_seen(key + keys - 1, kv_len,", "(first_seen(key, kv_len,"),
        ("first = first_seen(int32(key + keys - 1), kv_len,", "first = first_seen(key, kv_len,"),
    ),
    *_on_tensor_cores(
        "rows skipped that see a warp's last keys alone",
        ("row < end_seen(key + keys - 1,", "row < end_seen(key,"),
        ("end = end_seen(int32(key + keys - 1),", "end = end_seen(key,"),
    ),
)
_MASKING = (
    *_on_tensor_cores(
        "first row of a run off by one",
        (
            "first_seen(key + further, kv_len, q_len, ahead) - row,",
            "first_seen(key + further, kv_len, q_len, ahead) - row + 1,",
        ),
        ("kv_len, q_len, ahead) - row)", "kv_len, q_len, ahead) - row + 1)"),
    ),
    *_on_tensor_cores(
        "end of a run of rows off by one",
        ("kv_len, q_len, behind) - row};", "kv_len, q_len, behind) - row + 1};"),
        ("kv_len, q_len, behind) - row)", "kv_len, q_len, behind) - row + 1)"),
    ),
    *planted(
        "bwd-mma-ordered",
        "end of a row's run off by one",
        _ROWS,
        _SPANS_IN_NUMBA,
        (
            (
                ("after.of[row - after.first_row] - key}", "after.of[row - after.first_row] - key - 1}"),
                (
                    "int32(kept_of(after[0], row_of(i, h)) - place)",
                    "int32(kept_of(after[0], row_of(i, h)) - place - 1)",
                ),
            ),
        ),
    ),
    *_in_three_pass(
        "a row's first key not among those that it sees",
        ("run.first(row) <= key &&", "run.first(row) < key &&"),
        ("first_of(run, row) <= key and", "first_of(run, row) < key and"),
    ),
    *_in_three_pass(
        "weights of the key beside",
        ("key = min(first_key + c, block.last_row());", "key = min(first_key + c + 1, block.last_row());"),
        ("key = min(first_key + c, last_key)", "key = min(first_key + c + 1, last_key)"),
    ),
    *planted(
        "bwd-fa2",
        "dQ of keys that only the tile's first row sees",
        "_tiles/backward.cuh",
        "_tiles/numba_backward.py",
        (
            (
                ("first <= row_of(i) && row_of(i) < end)", "first <= 0 && 0 < end)"),
                ("(first <= row_of(i) and row_of(i) < end)", "(first <= 0 and 0 < end)"),
            ),
        ),
    ),
)
MUTANTS = (*_READING, *_VISITING, *_MASKING)
