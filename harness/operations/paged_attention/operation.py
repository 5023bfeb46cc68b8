"""Paged attention as an operation: which module has which part of it, and its smaller parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.model.operation import (
    ROWS_PER_PART,
    WHOLE,
    FurtherInput,
    Operation,
    Part,
    cases_of,
    count_of_parts,
    field_in_words,
    operation_named,
    oracle_flops,
    part_flops,
)
from harness.model.spread import in_powers
from harness.operations.attention.cases.build import TILE_NAMES
from harness.operations.attention.masks import CU_SEQLENS_Q
from harness.operations.attention.mistakes.known_mistakes import forward_hints
from harness.operations.attention.problem import LAYOUT
from harness.operations.paged_attention.axes import PagedAxes
from harness.operations.paged_attention.build import FEATURES, builds_of
from harness.operations.paged_attention.chunks import Q_LENGTHS, rows_in_words, rows_of_starts
from harness.operations.paged_attention.eight_bits import E4M3, KV_DTYPE, SCALES, kv_dtype_of_scales
from harness.operations.paged_attention.inputs import REGIMES, derived_inputs
from harness.operations.paged_attention.invariance import changes
from harness.operations.paged_attention.libraries import LIBRARIES
from harness.operations.paged_attention.mistakes import known_mistakes, trivial_answers
from harness.operations.paged_attention.oracle import answer, needed_read_bytes, tolerance
from harness.operations.paged_attention.problem import PagedProblem
from harness.operations.paged_attention.properties import PROPERTIES
from harness.operations.paged_attention.sequences import lengths_in_words, require_page_size
from harness.operations.paged_attention.simplification import (
    enlarged,
    peculiarities,
    probed_axes,
    shorter,
    simpler,
    size,
)
from harness.support.errors import UsageError


def problem_of_arrays(arrays: Mapping[str, np.ndarray], dtype: str, fields: Mapping[str, Any]) -> PagedProblem:
    """The problem that these arrays pose. Raises `UsageError` or `ProblemError` where they do not fit together."""
    Q, K, V, table, lengths = (arrays[name] for name in ("Q", "K", "V", "table", "lengths"))
    rows = _rows_of_arrays(Q, lengths, fields.get(Q_LENGTHS))
    if K.shape != V.shape:
        raise UsageError(f"K has shape {K.shape} and V {V.shape}; they have to be the same")
    if Q.shape[3] != K.shape[3]:
        raise UsageError(f"the rows of Q have {Q.shape[3]} elements and those of K and V {K.shape[3]}")
    if not len(rows) == len(table) == len(lengths):
        raise UsageError(f"Q has {len(rows)} sequences, the table {len(table)} and lengths {len(lengths)}")
    pages, page_size = K.shape[0], K.shape[2]
    require_page_size(page_size)
    window = fields.get("window")
    seen = [(length if window is None else own + window) if own else 0 for own, length in zip(rows, lengths.tolist())]
    fill = fill_of_pages(table, lengths, pages, page_size, seen)
    return PagedProblem(
        heads=Q.shape[1], kv_heads=K.shape[1], q_len=max(rows), lengths=tuple(lengths.tolist()), head_dim=Q.shape[3],
        dtype=dtype, page_size=page_size, pages=pages, table_len=table.shape[1],
        prefix=common_prefix(table, lengths, page_size) if window is None else 0,  # entries before it may be invalid
        in_use=(int(np.count_nonzero(fill)), int(fill.sum())), **fields,
    )  # fmt: skip


def _rows_of_arrays(Q: np.ndarray, lengths: np.ndarray, packed: tuple[int, ...] | None) -> tuple[int, ...]:
    """The rows of each sequence, of which those that are `packed` are all in one. Raises `UsageError`."""
    if packed is None:
        return (Q.shape[2],) * len(Q)
    if len(Q) != 1 or Q.shape[2] != sum(packed):
        raise UsageError(f"Q has {len(Q)} sequences of {Q.shape[2]} rows; cu_seqlens_q says 1 of {sum(packed)}")
    return packed


def fill_of_pages(
    table: np.ndarray, lengths: np.ndarray, pages: int, page_size: int, last_keys: Sequence[int] | None = None
) -> np.ndarray:
    """Return how many rows of each page are keys of some sequence that a row of Q sees.

    These are so many last keys of each sequence, or all if `last_keys` is None; entries before them are not looked at.
    Raises `UsageError` for an invalid table, with its first invalid entry.
    """
    is_key = np.zeros((pages, page_size), np.bool_)
    room = table.shape[1] * page_size
    for sequence, length in enumerate(lengths.tolist()):
        if length < 0:
            raise UsageError(f"sequence {sequence} has length {length}; it has to be at least 0")
        if length > room:
            raise UsageError(
                f"sequence {sequence} has length {length}; its row of the table has {table.shape[1]} places for pages "
                f"of {page_size} rows, which is {room}"
            )
        keys = np.arange(0 if last_keys is None else max(0, length - last_keys[sequence]), length)
        used = table[sequence, keys // page_size]
        bad = np.flatnonzero((used < 0) | (used >= pages))
        if len(bad):
            place, page = int(keys[bad[0]]) // page_size, int(used[bad[0]])
            raise UsageError(
                f"sequence {sequence} has page {page} at position {place} of the table; the pool has {pages}, "
                f"0 to {pages - 1}"
            )
        is_key[used, keys % page_size] = True
    fill: np.ndarray = np.count_nonzero(is_key, axis=1)
    return fill


def common_prefix(table: np.ndarray, lengths: np.ndarray, page_size: int) -> int:
    """Return how many first keys lie in whole pages that are the same for all sequences that fill them.

    Pages that a single sequence fills do not count. The table has to be valid.
    """
    full = lengths // page_size
    places = np.arange(np.sort(full)[-2] if len(full) > 1 else 0)
    entries = table[:, : len(places)]
    differs = (full[:, None] > places) & (entries != entries[np.argmax(full)])
    return page_size * int(np.argmax(np.append(differs.any(axis=0), True)))


def choose_parts(problem: PagedProblem, whole_flops: float) -> tuple[Part, ...]:
    """The whole of a problem of up to `whole_flops`; of a larger one the last rows of single heads of some sequences.

    The shortest, the longest and some between, the first and the last head among those looked at.
    """
    p = problem
    if oracle_flops(p.flops, p.q_len) <= whole_flops:
        return (WHOLE,)
    with_rows = [sequence for sequence in range(p.sequences) if p.rows[sequence]]
    ordered = sorted(with_rows, key=lambda sequence: p.lengths[sequence])
    count = count_of_parts(len(ordered), part_flops(max(p.lengths), p.head_dim), whole_flops)
    starts = p.row_starts
    parts = {}
    for number in range(count):
        sequence = ordered[number * (len(ordered) - 1) // (count - 1)]
        head = number * (p.heads - 1) // (count - 1)
        end = p.q_len if p.q_lengths is None else starts[sequence + 1]
        rows = slice(end - min(p.rows[sequence], ROWS_PER_PART), end)
        batch = slice(sequence, sequence + 1) if p.q_lengths is None else slice(0, 1)
        where = (batch, slice(head, head + 1), rows)
        parts[sequence, head] = Part(where, f"sequence {sequence}, head {head}")
    return tuple(parts.values())


LARGEST_SWEPT = 2**20
"""Keys of a sequence, sequences, or rows of all heads. Beyond, even the closed forms would take minutes."""


def _field_in_words(problem: PagedProblem, name: str) -> list[str]:
    if name == "lengths":
        return [lengths_in_words(problem.lengths)]
    if name == "window":
        return [] if problem.window is None else [f"window {problem.window}"]
    if name == LAYOUT:
        return [] if problem.layout.is_dense else [f"layout {problem.layout}"]
    if name in FEATURES:
        return [term.in_words(problem) for term in problem.terms if term.field == name]
    if name == KV_DTYPE:
        return [] if problem.kv_dtype is None else [f"K and V in {problem.kv_dtype}"]
    if name in ("q_len", Q_LENGTHS) and problem.q_lengths is not None:
        return [rows_in_words(problem.q_lengths)] if name == Q_LENGTHS else []
    if name == "far":
        return [f"far {in_powers(problem.far)}"] if problem.far else []
    silent = name in ("batch", "pages", "table_len", "scale", "in_use", Q_LENGTHS)
    silent |= name == "prefix" and not problem.prefix
    return [] if silent else field_in_words(problem, name)


def _require_sweepable(problem: PagedProblem) -> None:
    rows = problem.heads * sum(problem.rows)
    if max(*problem.lengths, rows) > LARGEST_SWEPT:
        raise UsageError(
            f"--sweep reaches {max(problem.lengths):,} keys in a sequence and {rows:,} rows over all heads; the "
            f"most is {LARGEST_SWEPT:,} either way"
        )


OPERATION = Operation(
    name="paged-attention",
    idea="the last rows of sequences of any lengths, their K and V in pages",
    problem=PagedProblem,
    regimes=REGIMES,
    # The lengths among them: those that a user gives to `run` have become the problem's.
    derived_inputs=derived_inputs,
    answer=answer,
    tolerance=tolerance,
    numerics_used=operation_named("attention").numerics_used,
    trivial_answers=trivial_answers,
    shorter=shorter,
    needed_read_bytes=needed_read_bytes,
    parts=choose_parts,
    builds_of=builds_of,
    cases=cases_of("harness.operations.paged_attention.strategies"),
    axes=PagedAxes,
    properties=PROPERTIES,
    changes=changes,
    simpler=simpler,
    size=size,
    enlarged=enlarged,
    probed_axes=probed_axes,
    peculiarities=peculiarities,
    tile_names=TILE_NAMES,
    known_mistakes=known_mistakes,
    hints=lambda problem, output: forward_hints(problem.tau, output),
    settings=("window", "scale", LAYOUT, *(term.field for term in PagedProblem.TERMS if term.inputs_follow)),
    further_inputs=dict.fromkeys(SCALES.values(), FurtherInput(KV_DTYPE, E4M3, kv_dtype_of_scales, decides_dtypes=True))
    | {CU_SEQLENS_Q: FurtherInput(Q_LENGTHS, (1,), rows_of_starts)}
    | {
        name: further
        for name, further in operation_named("attention").further_inputs.items()
        if further.field in PagedProblem.__dataclass_fields__
    },
    problem_of_arrays=problem_of_arrays,
    field_in_words=_field_in_words,
    require_sweepable=_require_sweepable,
    libraries=LIBRARIES,
    libraries_in_words=lambda torch: (
        f"cudnn: cuDNN's attention over pages through its own frontend, on tensors of PyTorch {torch}; flash-attn-4 is "
        "FlashAttention-4's own function."
    ),
    flops_in_words=operation_named("attention").flops_in_words,
)
"""Attention of a few last rows of each sequence to all its keys, which a table finds in a pool of pages."""
