"""Latent attention as an operation: paged attention's, with one compressed row per key for all heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.operations.mla_decode.cases import MlaCases, builds_of
from harness.operations.mla_decode.inputs import REGIMES
from harness.operations.mla_decode.oracle import answer, known_mistakes, needed_read_bytes, tolerance, trivial_answers
from harness.operations.mla_decode.problem import MlaProblem
from harness.operations.paged_attention.operation import OPERATION as PAGED
from harness.operations.paged_attention.operation import fill_of_pages
from harness.operations.paged_attention.sequences import require_page_size
from harness.support.errors import UsageError

CASES = MlaCases()


def problem_of_arrays(arrays: Mapping[str, np.ndarray], dtype: str, fields: Mapping[str, Any]) -> MlaProblem:
    """Return the problem that these arrays pose. Raises `UsageError` or `ProblemError` if they do not fit together.

    How many columns of C are values does not follow from them: `rope_dim` of `fields` are not.
    """
    Q, C, table, lengths = (arrays[name] for name in ("Q", "C", "table", "lengths"))
    if Q.shape[3] != C.shape[2]:
        raise UsageError(f"the rows of Q have {Q.shape[3]} elements and those of C {C.shape[2]}")
    if not len(Q) == len(table) == len(lengths):
        raise UsageError(f"Q has {len(Q)} sequences, the table {len(table)} and lengths {len(lengths)}")
    pages, page_size = C.shape[:2]
    require_page_size(page_size)
    fill = fill_of_pages(table, lengths, pages, page_size)
    rope_dim = fields.get("rope_dim", MlaProblem.rope_dim)
    if rope_dim >= C.shape[2]:
        raise UsageError(f"the rows of C have {C.shape[2]} elements; --rope-dim {rope_dim} leaves none for values")
    return MlaProblem(
        heads=Q.shape[1], q_len=Q.shape[2], lengths=tuple(lengths.tolist()), latent_dim=C.shape[2] - rope_dim,
        dtype=dtype, page_size=page_size, pages=pages, table_len=table.shape[1],
        in_use=(int(np.count_nonzero(fill)), int(fill.sum())), **{**fields, "rope_dim": rope_dim},
    )  # fmt: skip


OPERATION = dataclasses.replace(
    PAGED,
    name="mla-decode",
    idea="DeepSeek's latent attention, decoding: all heads read one compressed row per key, in pages",
    problem=MlaProblem,
    regimes=REGIMES,
    answer=answer,
    tolerance=tolerance,
    trivial_answers=trivial_answers,
    needed_read_bytes=needed_read_bytes,
    builds_of=builds_of,
    cases=CASES.cases,
    axes=CASES.axes,
    simpler=CASES.simpler,
    size=CASES.size,
    enlarged=CASES.enlarged,
    probed_axes=CASES.probed_axes,
    peculiarities=CASES.peculiarities,
    known_mistakes=known_mistakes,
    settings=("rope_dim", "scale"),
    further_inputs={},
    problem_of_arrays=problem_of_arrays,
    libraries={},
    libraries_in_words=None,
)
"""Absorbed multi-head latent attention of a few last rows, DeepSeek-AI 2024, arXiv 2405.04434."""
