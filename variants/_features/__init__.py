"""Features of a problem as types: what its mask, its scores, sinks, dropout and data type are in a kernel.

A kernel is written once. In CUDA it has a parameter for each feature, such as `Limits limits`, and the plan puts a
`using` line before its text that chooses the type, such as `using Limits = Band;`. A feature that is off is a type that
compiles to nothing. In Numba the kernel's maker gets device functions of the same names, from numba_limits.py,
numba_scores.py, numba_dropout.py and numba_tile_order.py. Both take the same arguments: each feature is a tuple, in
CUDA a struct by value, and a feature that is off is empty.

A new score term is a struct in scores.cuh, two functions in numba_scores.py (three if its derivative is not 1), and a
row of the operation.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness import PlanError, Problem
from variants._tiles.sectors import SECTOR_BYTES

CU_SEQLENS_Q, CU_SEQLENS_K = "cu_seqlens_q", "cu_seqlens_k"
"""Inputs of varlen: int32, (sequences + 1,)."""

FOLDER = "_features"
Files = tuple[tuple[str, str], ...]
"""Folders below variants/ and files there."""


@dataclass(frozen=True)
class Feature:
    """One feature of a problem, as a type of its kernels."""

    name: str
    """The type's name in kernels, such as `Limits`."""
    cuda_type: str
    """The type that this problem chooses, such as `Band`."""
    argument: tuple[Any, ...]
    """The kernel's argument, a tuple; empty if the feature is off."""
    files: Files
    """CUDA files that define the type, in their order."""


def declarations(features: tuple[Feature, ...]) -> tuple[Files, str]:
    """Return the CUDA files of the features, and the `using` lines that follow them."""
    files = dict.fromkeys(file for feature in features for file in feature.files)
    return tuple(files), "".join(f"using {each.name} = {each.cuda_type};\n" for each in features)


def arguments(features: tuple[Feature, ...]) -> tuple[tuple[Any, ...], ...]:
    """Return the kernel's arguments for its features."""
    return tuple(feature.argument for feature in features)


STORED = {
    "float32": "stored_float32.cuh",
    "float16": "stored_float16.cuh",
    "bfloat16": "stored_bfloat16.cuh",
}
"""For each data type the CUDA file that defines how elements are stored."""


def stored(dtype: str) -> Files:
    """Return the CUDA file that defines how elements are stored."""
    return ((FOLDER, STORED[dtype]),)


# --- Limits -----------------------------------------------------------------------------------------------------------

BAND_FEATURES = ("causal", "window")
"""Features in `takes` of a variant whose kernels take `Band`."""
SPAN_FEATURES = (*BAND_FEATURES, "documents", "prefix")
"""Features in `takes` of a variant whose kernels take `Band` and `Spans`."""


def has_spans(problem: Problem) -> bool:
    """Whether kernels read the run of each row from arrays."""
    return not problem.mask_within.runs.is_band


def band(problem: Problem) -> tuple[np.int32, np.int32]:
    """Return (before, after) of `Band`: row i, on key i + kv_len - q_len, sees the keys from `before` before that one
    to `after` after it.

    A missing limit is replaced by q_len + kv_len, which exceeds all distances. Several bands are intersected.
    """
    beyond = problem.q_len + problem.kv_len
    limits = [part.limits for part in problem.mask_within.runs.parts]
    before = min([beyond, *(left for left, _ in limits if left is not None)])
    after = min([beyond, *(right for _, right in limits if right is not None)])
    return np.int32(before), np.int32(after)


def limits(problem: Problem) -> Feature:
    """Return which keys a row sees."""
    files = ((FOLDER, "limits.cuh"),)
    if has_spans(problem):
        return Feature("Limits", "Spans", ("first_keys", "end_keys"), files)
    return Feature("Limits", "Band", band(problem), files)


def mirrored_limits(problem: Problem, name: str = "Limits") -> Feature:
    """Return which rows see a key, for kernels in which a block owns keys."""
    files = ((FOLDER, "limits.cuh"),)
    if has_spans(problem):
        return Feature(name, "Spans", ("first_rows", "end_rows"), files)
    before, after = band(problem)
    return Feature(name, "Band", (after, before), files)


# --- Scores and sinks -------------------------------------------------------------------------------------------------

SCORE_FEATURES = ("softcap", "alibi", "sinks")
"""Features in `takes` of a variant whose kernels take all of them."""
ALL_SCORE_FEATURES = (*SCORE_FEATURES, *(t.field for t in Problem.TERMS if t.field not in SCORE_FEATURES))
"""Features in `takes` of a variant whose kernels take any score term."""


def scores(problem: Problem, unit: float = 1.0) -> Feature:
    """Return what happens to a score before the softmax. Scores are multiples of `unit`."""
    argument: tuple[Any, ...] = ()
    for term in reversed(problem.score_terms):
        argument = (term.members(problem, unit), argument)
    names = ", ".join(type(term).__name__ for term in problem.score_terms)
    return Feature("Scores", f"Terms<{names}>", argument, ((FOLDER, "scores.cuh"),))


def sink(problem: Problem) -> Feature:
    """Return whether each head has a sink."""
    chosen = ("SinkPerHead", ("sinks",)) if problem.sinks else ("NoSink", ())
    return Feature("Sink", *chosen, ((FOLDER, "scores.cuh"),))


def factor(problem: Problem) -> float:
    """Return the factor on products q.k: tau, or tau / cap if tanh follows."""
    return problem.tau if problem.softcap is None else problem.tau / problem.softcap


def changes_scores(problem: Problem) -> bool:
    """Whether a problem has score terms. Sinks are none."""
    return bool(problem.score_terms)


def term_bytes(problem: Problem, readers: int) -> int:
    """Return bytes of score terms' inputs with an element per head if `readers` warps read one of each.

    At the `sectors` level.
    """
    inputs = [tensor for term in problem.score_terms for tensor in term.inputs(problem) if tensor.axes == ("head",)]
    return readers * SECTOR_BYTES * len(inputs)


def sink_bytes(problem: Problem, readers: int) -> int:
    """Return bytes of the sinks if `readers` warps read one each, at the `sectors` level; 0 without sinks."""
    return readers * SECTOR_BYTES if problem.sinks else 0


# --- Dropout ----------------------------------------------------------------------------------------------------------

DROPOUT_FEATURE = "dropout"
"""Feature in `takes` of a variant whose kernels take dropout."""
KEYS_TOGETHER = 8
"""Neighbouring keys whose numbers come from different calls of Philox."""


def dropout(problem: Problem, *, keys: int = KEYS_TOGETHER) -> Feature:
    """Return which weights become 0. Raises `PlanError` if tiles of so many `keys` divide such neighbours."""
    files = ((FOLDER, "dropout.cuh"),)
    if not problem.dropout:
        return Feature("Dropout", "NoDropout", (), files)
    if keys % KEYS_TOGETHER:
        raise PlanError(f"tiles have {keys} keys; under dropout they have a multiple of {KEYS_TOGETHER}")
    low, high = problem.dropout_seed & 0xFFFFFFFF, problem.dropout_seed >> 32
    words = tuple(np.uint32(word) for word in (problem.dropout_threshold, low, high))
    return Feature("Dropout", "PhiloxDropout", (*words, np.float32(problem.kept_factor)), files)


# --- Layout -----------------------------------------------------------------------------------------------------------

LAYOUT_FEATURE = "layout"
"""Feature in `takes` of a variant whose kernels take any strides of Q, K, V, O and their gradients."""
LAYOUT_FILES = ((FOLDER, "layout.cuh"),)


def layout(problem: Problem) -> Feature:
    """Return where the rows of Q, K, V and O lie."""
    if problem.layout.is_dense:
        return Feature("Layout", "DenseLayout", (), LAYOUT_FILES)
    return strided_layout(problem)


def strided_layout(problem: Problem) -> Feature:
    """Return where the rows of Q, K, V and O lie by their strides, even if the layout is dense."""
    aligned = problem.row_alignment_bytes // problem.itemsize_bytes
    return Feature("Layout", f"StridedLayout<{aligned}>", _strides(problem, "Q", "K", "V", "O"), LAYOUT_FILES)


def gradient_layout(problem: Problem) -> Feature:
    """Return where the rows of dQ, dK, dV and dO lie."""
    own = layout(problem)
    strides = () if problem.layout.is_dense else _strides(problem, "dQ", "dK", "dV", "dO")
    return dataclasses.replace(own, name="GradientLayout", argument=strides)


def _strides(problem: Problem, *tensors: str) -> tuple[Any, ...]:
    """Return the strides of (batch, head, row) of each tensor, in elements."""
    return tuple(tuple(map(np.int64, problem.tensor(name).strides[:-1])) for name in tensors)


def rows_aligned_to(problem: Problem) -> int | None:
    """Return the number of elements, at most 16 bytes, at whose multiples rows begin; None if a head's are one run."""
    return None if problem.layout.is_dense else problem.row_alignment_bytes // problem.itemsize_bytes


# --- Sequences --------------------------------------------------------------------------------------------------------

VARLEN_FEATURE = "varlen"
"""Feature in `takes` of a variant whose kernels take unpadded sequences."""


def has_varlen(problem: Problem) -> bool:
    """Whether sequences are unpadded, so that kernels read where they begin from arrays."""
    return problem.sequences is not None


def sequences(problem: Problem) -> Feature:
    """Return where the rows and keys of a sequence begin."""
    files = ((FOLDER, "sequences.cuh"),)
    if problem.sequences is None:
        return Feature("Sequences", "OneLength", (), files)
    return Feature("Sequences", "Varlen", (CU_SEQLENS_Q, CU_SEQLENS_K), files)


def mirrored_sequences(problem: Problem) -> Feature:
    """Return where the keys and rows of a sequence begin, for kernels in which a block owns keys."""
    feature = sequences(problem)
    return dataclasses.replace(feature, argument=feature.argument[::-1])


def sequence_extents(problem: Problem) -> tuple[int, int]:
    """Return (sequences, rows of the longest one), which a grid has blocks for: the batch and q_len, or of varlen."""
    if problem.sequences is None:
        return problem.batch, problem.q_len
    return problem.sequences.sequence_count, problem.sequences.longest


def mirrored_sequence_extents(problem: Problem) -> tuple[int, int]:
    """Return (sequences, keys of the one that has the most), for kernels in which a block owns keys."""
    if problem.sequences is None:
        return problem.batch, problem.kv_len
    return problem.sequences.sequence_count, max(problem.sequences.kv_lengths)


def start_bytes(problem: Problem, warps: int, blocks: int, blocks_with_rows: int) -> int:
    """Return bytes of reading where sequences begin, at the `sectors` level; 0 if all are equally long.

    Each warp of `blocks` reads where the rows begin and end; those of `blocks_with_rows`, where the keys do, too. In
    kernels in which a block owns keys, rows and keys are exchanged.
    """
    return SECTOR_BYTES * warps * 2 * (blocks + blocks_with_rows) if has_varlen(problem) else 0


# --- Rows of V --------------------------------------------------------------------------------------------------------

V_WIDTH_FEATURE = "v_head_dim"
"""Feature in `takes` of a variant whose kernels take rows of V and O that are not as long as those of Q and K."""


# --- Numba ------------------------------------------------------------------------------------------------------------


def in_numba(problem: Problem, rows: int, keys: int, *, rule: Any = None, threads: int = 128) -> Any:
    """Return the device functions of the features, a `NumbaFeatures`; arguments as for `numba_features`."""
    from variants._features.numba_features import numba_features

    terms = tuple(term.field for term in problem.score_terms)
    dropout, sinks = problem.dropout > 0, "sinks" in problem.score_features
    return numba_features(has_spans(problem), rule, terms, sinks, dropout, rows, keys, threads, has_varlen(problem))
