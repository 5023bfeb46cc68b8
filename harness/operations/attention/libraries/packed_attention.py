"""Sequences of different lengths as libraries take them: rows behind one another, and where each sequence begins."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.model.contenders.torch_contender import Tensors
from harness.operations.attention.libraries.torch_attention import TorchAttention
from harness.operations.attention.masks.documents import Documents
from harness.operations.attention.masks.mask import Mask
from harness.operations.attention.problem import Problem
from harness.support.override import override


@dataclass(frozen=True)
class Packing:
    """Where sequences begin, or documents of all sequences, behind one another."""

    first_rows: tuple[int, ...]
    """First row of each, and then the number of rows."""
    first_keys: tuple[int, ...]
    """First key of each, and then the number of keys."""


class PackedAttention(TorchAttention):
    """Q, K and V with rows outside heads. Unpadded sequences, and documents, have their rows behind one another."""

    @override
    def _run(self, inputs: int) -> Tensors:
        return {"O": self.attend(self._sets[inputs])}

    @functools.cached_property
    def _sets(self) -> list[Tensors]:
        """Inputs as it takes them. Made in the first run, on the same stream."""
        return [{**given, **{name: self.rows(given[name]) for name in "QKV"}} for given in self._inputs]

    @property
    def is_packed(self) -> bool:
        """Whether the problem has sequences or documents that have to be packed."""
        return is_packed(self._problem)

    def rows(self, tensor: Any) -> Any:
        """A tensor (batch, heads, length, head_dim) with rows outside heads, those of sequences behind one another.

        That is a view, except for documents in a batch of several sequences.
        """
        rows_outside = tensor.transpose(1, 2)
        return rows_outside.reshape(-1, *rows_outside.shape[2:]) if self.is_packed else rows_outside

    def placed_back(self, rows: Any) -> Any:
        """The tensor of which `rows` are: (batch, heads, length, head_dim)."""
        if self.is_packed:
            rows = rows.reshape(self._problem.batch, -1, *rows.shape[1:])
        return rows.transpose(1, 2)

    @functools.cached_property
    def lengths(self) -> Mapping[str, Any]:
        """Arguments that say where sequences begin, named as FlashAttention's; none unless they are packed."""
        if not self.is_packed:
            return {}
        packing = packing_of(self._problem)
        device = self._inputs[0]["Q"].device
        arguments: dict[str, Any] = {}
        for name, starts in (("q", packing.first_rows), ("k", packing.first_keys)):
            arguments[f"cu_seqlens_{name}"] = self._torch.as_tensor(starts, device=device).to(self._torch.int32)
            arguments[f"max_seqlen_{name}"] = max(end - start for start, end in itertools.pairwise(starts))
        return arguments


def is_packed(problem: Problem) -> bool:
    """Whether a problem has unpadded sequences or documents."""
    return problem.sequences is not None or any(isinstance(part, Documents) for part in problem.mask.parts)


def mask_of_each(problem: Problem) -> Mask:
    """The mask within each sequence or document."""
    return problem.mask_within.without(Documents.kind)


def packing_of(problem: Problem) -> Packing:
    """Where sequences or documents begin. Rows before a sequence's first key are a document without keys."""
    if problem.sequences is not None:
        return Packing(problem.sequences.q_starts, problem.sequences.kv_starts)
    ahead = problem.q_len - problem.kv_len
    first_rows: list[int] = []
    first_keys: list[int] = []
    for sequence in range(problem.batch):
        starts = {0}
        for part in problem.mask.of_sequence(sequence).parts:
            if isinstance(part, Documents):
                starts |= part.first_keys(problem.kv_len)
        rows = [(min(max(key + ahead, 0), problem.q_len), key) for key in sorted(starts)]
        if ahead > 0:
            rows.insert(0, (0, 0))
        first_rows += [sequence * problem.q_len + row for row, _ in rows]
        first_keys += [sequence * problem.kv_len + key for _, key in rows]
    ends = problem.batch * problem.q_len, problem.batch * problem.kv_len
    return Packing((*first_rows, ends[0]), (*first_keys, ends[1]))
