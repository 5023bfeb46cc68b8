"""Gradients under masks that are no band: the run of rows that see a key, read from arrays, and what follows of it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.patching import Mutant
from tests.mutants.planting import Replacement, in_feature, in_kernel, in_plan, planted

_SEEN, _SEEN_IN_NUMBA = "_mma_backward/seen.cuh", "_mma_backward/numba_seen.py"


def _on_tensor_cores(bug: str, cuda: Replacement, numba: Replacement) -> Iterator[Mutant]:
    return planted("bwd-mma", bug, _SEEN, _SEEN_IN_NUMBA, ((cuda, numba),))


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
    *planted(
        "bwd-mma",
        "runs of the first sequence's keys for all",
        "_features/limits.cuh",
        "_mma_backward/numba_limits.py",
        (
            (
                ("(size_t)block.batch * q_len + block.first_row", "block.first_row"),
                (
                    "limits[0][batch, first_row + t], limits[1][batch, first_row + t]",
                    "limits[0][0, first_row + t], limits[1][0, first_row + t]",
                ),
            ),
        ),
    ),
    *in_plan(
        "bwd-fa2-ordered",
        "runs of rows where those of keys belong",
        "of_mask = features.mirrored_limits(p), tile_order(",
        "of_mask = features.limits(p), tile_order(",
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
        "return features.limits(problem),",
        "return features.mirrored_limits(problem),",
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
        "_mma_backward/keys.cu",
        "_mma_backward/numba_keys.py",
        (
            (
                ("seeing.end_key, q_len, group)", "seeing.end_by_all, q_len, group)"),
                ("end_seeing(seeing, last_key), group,", "end_seeing(seeing, first_key), group,"),
            ),
        ),
    ),
    *_on_tensor_cores(
        "a tile taken for unmasked whose last keys are seen later",
        ("(seeing.first(of.key + of.keys - 1) <= of.row)", "(seeing.first(of.key) <= of.row)"),
        ("first_row(seeing, last_key) <= of.row", "first_row(seeing, of.key) <= of.row"),
    ),
    *_on_tensor_cores(
        "rows skipped that see a warp's last keys alone",
        ("of.row < seeing.end(of.key + of.keys - 1)", "of.row < seeing.end(of.key)"),
        ("of.row < end_row(seeing, last_key)", "of.row < end_row(seeing, of.key)"),
    ),
)
_MASKING = (
    *_on_tensor_cores(
        "first row of a run off by one",
        ("{seeing.first(key + further) - row,", "{seeing.first(key + further) - row + 1,"),
        ("first_row(seeing, at) - row)", "first_row(seeing, at) - row + 1)"),
    ),
    *_on_tensor_cores(
        "end of a run of rows off by one",
        ("seeing.end(key + further) - row}", "seeing.end(key + further) - row + 1}"),
        ("end_row(seeing, at) - row)", "end_row(seeing, at) - row + 1)"),
    ),
    *in_kernel(
        "bwd-mma-ordered",
        "end of a row's run off by one",
        ("seen.end(row) - key}", "seen.end(row) - key - 1}"),
        ("int32(end(seen, row) - key)", "int32(end(seen, row) - key - 1)"),
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
