"""Sequences with different numbers of query rows: chunks of prompts beside decoded tokens, packed without padding.

Serving engines run both in one launch (Agrawal et al. 2024, "Taming Throughput-Latency Tradeoff in LLM Inference with
Sarathi-Serve", arXiv 2403.02310). Q is (tokens, heads, head_dim) in memory, as vLLM and FlashInfer pass it. Tensors
have the axes of other problems, (1, heads, tokens, head_dim), with strides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from harness.model.problem import LARGEST_EXTENT, Placement
from harness.support.errors import ProblemError, UsageError
from harness.support.numbers import whole_number

Q_LENGTHS = "q_lengths"
"""The problem's field, which is also the feature that a variant may list in `takes`."""
PLAIN_ROWS = (3, 1)
"""Rows of each sequence of the plainest problem with two sequences."""
MOST_SHOWN = 6
"""Maximum number of sequences whose rows a headline lists individually."""


def parse_rows(text: str) -> tuple[int, ...]:
    """Convert `1+0+300` to (1, 0, 300). Raises `ValueError` with a one-line message."""
    return tuple(whole_number(part) for part in text.split("+"))


def checked_rows(rows: object, sequences: int) -> tuple[int, ...]:
    """Return the rows of each of so many sequences; a single number applies to all. Raises `ProblemError`."""
    if not isinstance(rows, Sequence) or isinstance(rows, str) or len(rows) not in (1, sequences):
        raise ProblemError(f"q_lengths is {rows!r}; name the rows of {sequences} sequences, such as 1+0+300")
    for count in rows:
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= LARGEST_EXTENT:
            raise ProblemError(f"q_lengths has {count!r}; each has to be a whole number from 0 to {LARGEST_EXTENT}")
    found = tuple(rows) * (sequences // len(rows))
    if not 1 <= sum(found) <= LARGEST_EXTENT:
        raise ProblemError(f"q_lengths has {sum(found)} rows in all; they have to be from 1 to {LARGEST_EXTENT}")
    return found


def rows_in_words(rows: Sequence[int]) -> str:
    """Describe the rows of sequences, e.g. `1+0+300 rows`; those of many by the fewest, the most and their sum."""
    if len(rows) <= MOST_SHOWN:
        return f"{'+'.join(map(str, rows))} rows"
    return f"{min(rows)} to {max(rows)} rows, {sum(rows):,} in all"


def starts(rows: Sequence[int]) -> tuple[int, ...]:
    """Return `cu_seqlens_q`: the first row of each sequence, and the number of all rows."""
    return tuple(itertools.accumulate(rows, initial=0))


def placed_by_token(buffer: str, shape: tuple[int, int, int, int]) -> Placement:
    """Return where the elements of (1, heads, tokens, columns) lie if memory has (tokens, heads, columns)."""
    _, heads, tokens, columns = shape
    return Placement(buffer, math.prod(shape), 0, (tokens * heads * columns, columns, heads * columns, 1))


def rows_of_starts(array: np.ndarray) -> tuple[int, ...]:
    """Return the rows of each sequence, given `cu_seqlens_q`. Raises `UsageError` if it is no running sum."""
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UsageError(f"cu_seqlens_q is {array.dtype}{array.shape}; it has to be (sequences + 1,) whole numbers")
    steps = array[1:].astype(np.int64) - array[:-1]
    if len(steps) < 1 or array[0] != 0 or (steps < 0).any():
        raise UsageError("cu_seqlens_q has to be 0 and the running sum of the rows of each sequence, (sequences + 1,)")
    return tuple(map(int, steps))
