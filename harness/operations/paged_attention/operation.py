"""Paged attention as an operation: which module has which part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.model.operation import Hints, Operation, field_in_words, operation_named
from harness.operations.attention.cases.build import TILE_NAMES
from harness.operations.attention.mistakes.hints import forward_hints
from harness.operations.paged_attention.axes import PagedAxes
from harness.operations.paged_attention.build import builds_of
from harness.operations.paged_attention.inputs import REGIMES, lengths_of
from harness.operations.paged_attention.libraries import LIBRARIES
from harness.operations.paged_attention.mistakes import known_mistakes, trivial_answers
from harness.operations.paged_attention.oracle import answer, needed_read_bytes, tolerance
from harness.operations.paged_attention.parts import choose_parts
from harness.operations.paged_attention.problem import PagedProblem, lengths_in_words
from harness.operations.paged_attention.properties import PROPERTIES
from harness.operations.paged_attention.simplification import (
    enlarged,
    peculiarities,
    probed_axes,
    shorter,
    simpler,
    size,
)
from harness.operations.paged_attention.table import problem_of_arrays
from harness.support.errors import UsageError

if TYPE_CHECKING:
    from hypothesis import strategies as st

    from harness.model.cases.case import Case

LARGEST_SWEPT = 2**20
"""Keys of a sequence, sequences, or rows of all heads. Beyond, even the closed forms would take minutes."""
NUMERICS_USED = ("scores", "weights", "functions", "sums", "one_score", "divides_last", "scaled_q", "factors")
"""The fields of `Numerics` that errors depend on: attention's without a cap."""


def _cases(
    builds: Sequence[Any], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
) -> st.SearchStrategy[Case]:
    from harness.operations.paged_attention.strategies import MOST_TILES, cases  # imports Hypothesis

    return cases(builds, MOST_TILES if most_tiles is None else most_tiles, checks, takes=takes)


def _hints(problem: PagedProblem, output: str) -> Hints:
    return forward_hints(problem.tau, output)


def _field_in_words(problem: PagedProblem, name: str) -> list[str]:
    if name == "lengths":
        return [lengths_in_words(problem.lengths)]
    silent = name in ("batch", "pages", "table_len", "scale", "in_use") or (name == "prefix" and not problem.prefix)
    return [] if silent else field_in_words(problem, name)


def _require_sweepable(problem: PagedProblem) -> None:
    rows = problem.sequences * problem.heads * problem.q_len
    if max(*problem.lengths, rows) > LARGEST_SWEPT:
        raise UsageError(
            f"--sweep reaches {max(problem.lengths):,} keys in a sequence and {rows:,} rows over all heads; the "
            f"most is {LARGEST_SWEPT:,} either way"
        )


def _libraries_in_words(torch: str) -> str:
    return f"cudnn: cuDNN's attention over pages by its own front end, on tensors of PyTorch {torch}."


OPERATION = Operation(
    name="paged-attention",
    idea="the last rows of sequences of any lengths, their K and V in pages",
    problem=PagedProblem,
    regimes=REGIMES,
    # The lengths: those that a user gives to `run` have become the problem's.
    derived_inputs=lengths_of,
    answer=answer,
    tolerance=tolerance,
    numerics_used=lambda problem: NUMERICS_USED,
    trivial_answers=trivial_answers,
    shorter=shorter,
    needed_read_bytes=needed_read_bytes,
    parts=choose_parts,
    builds_of=builds_of,
    cases=_cases,
    axes=PagedAxes,
    properties=PROPERTIES,
    simpler=simpler,
    size=size,
    enlarged=enlarged,
    probed_axes=probed_axes,
    peculiarities=peculiarities,
    tile_names=TILE_NAMES,
    known_mistakes=known_mistakes,
    hints=_hints,
    settings=("scale",),
    problem_of_arrays=problem_of_arrays,
    field_in_words=_field_in_words,
    require_sweepable=_require_sweepable,
    libraries=LIBRARIES,
    libraries_in_words=_libraries_in_words,
    flops_in_words=operation_named("attention").flops_in_words,
)
"""Attention of a few last rows of each sequence to all its keys, which a table finds in a pool of pages."""
