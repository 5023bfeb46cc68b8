"""Packed documents as FlashAttention takes them: sequences of different lengths behind one another."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness import Problem

KIND = "documents"


@dataclass(frozen=True)
class Part:
    """What one call of the interface computes: all sequences of a problem, or the documents of one sequence."""

    of: Callable[[Any], Any] = lambda tensor: tensor
    """Returns the part's view of a tensor whose first dimension is the batch."""
    lengths: dict[str, Any] = field(default_factory=dict)
    """Arguments of the interface that say where the documents begin."""


def has_documents(problem: Problem) -> bool:
    """Whether the problem's mask separates documents."""
    return any(mask.kind == KIND for mask in problem.mask.parts)


def parts(problem: Problem, recording: Any) -> Iterator[Part]:
    """Yield the parts of a problem. Rows of different sequences are not equally far apart, so each is a part."""
    if not has_documents(problem):
        yield Part()
        return
    for sequence in range(problem.batch):
        first_rows, first_keys = document_starts(problem, sequence)
        named = f"-{sequence}" if problem.batch > 1 else ""
        lengths = {
            "cu_seqlens_q": recording.integers(f"cu_seqlens_q{named}", first_rows),
            "cu_seqlens_k": recording.integers(f"cu_seqlens_k{named}", first_keys),
            "max_seqlen_q": int(np.diff(first_rows).max()),
            "max_seqlen_k": int(np.diff(first_keys).max()),
        }
        yield Part(operator.methodcaller("select", 0, sequence), lengths)


def document_starts(problem: Problem, sequence: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return first row and first key of each document of a sequence, and then q_len and kv_len.

    Rows before the first key are a document without keys.
    """
    q_len, kv_len = problem.q_len, problem.kv_len
    starts = {0, kv_len}
    for mask in problem.mask.of_sequence(sequence).parts:
        if mask.kind == KIND:
            (lengths,) = mask.lengths
            starts |= {min(int(start), kv_len) for start in np.cumsum(lengths[:-1])}
    first_keys = sorted(starts)
    first_rows = [min(max(key + q_len - kv_len, 0), q_len) for key in first_keys]
    if first_rows[0] > 0:
        first_rows, first_keys = [0, *first_rows], [0, *first_keys]
    return tuple(first_rows), tuple(first_keys)
