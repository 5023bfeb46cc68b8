"""FlashAttention-4's own functions (Dao et al., the package `flash-attn-4`), called on PyTorch's tensors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.model.contenders.flash_attention_4 import NAME, interface, require_supported
from harness.model.contenders.torch_contender import Tensors
from harness.operations.attention.libraries.torch_attention import TorchAttention
from harness.operations.attention.masks import band_limits
from harness.operations.attention.masks.documents import Documents
from harness.operations.attention.problem import Problem
from harness.operations.attention.score_terms import SINKS
from harness.support.errors import UnsupportedProblem
from harness.support.override import override

FEATURES = ("softcap", SINKS)


@dataclass(frozen=True)
class Packing:
    """Where documents of all sequences begin, behind one another."""

    first_rows: tuple[int, ...]
    """First row of each document, and then the number of rows."""
    first_keys: tuple[int, ...]
    """First key of each document, and then the number of keys."""


class FlashAttention4(TorchAttention):
    """Its forward pass: causal masks and windows, a cap, sinks, and documents as sequences of different lengths."""

    def __init__(self, stage: Any) -> None:
        """Raise `UnsupportedProblem` for what it does not take."""
        problem: Problem = stage.problem
        others = problem.mask.without(Documents.kind)
        if not others.is_band:
            raise UnsupportedProblem(NAME, f"mask {problem.mask} is not passed to it; causal, window and documents are")
        self.window = band_limits(others)
        """How many keys a row sees (before, after) its own; None for no limit."""
        require_supported(problem.dtype, problem.head_dim, problem.tau)
        super().__init__(NAME, stage, takes=FEATURES)
        self._is_packed = any(isinstance(part, Documents) for part in problem.mask.parts)

    @override
    def attend(self, given: Tensors) -> Any:
        """O of Q, K and V that are laid out by `rows`."""
        p, functions = self._problem, interface()
        function = functions.flash_attn_varlen_func if self._is_packed else functions.flash_attn_func
        O, _ = function(
            given["Q"],
            given["K"],
            given["V"],
            softmax_scale=p.tau,
            window_size=self.window,
            softcap=p.softcap or 0.0,
            learnable_sink=given.get(SINKS),
            **self.lengths,
        )
        return self.placed_back(O)

    @override
    def _run(self, inputs: int) -> Tensors:
        return {"O": self.attend(self._sets[inputs])}

    @functools.cached_property
    def _sets(self) -> list[Tensors]:
        """Inputs as it takes them. Made in the first run, on the same stream."""
        return [{**given, **{name: self.rows(given[name]) for name in "QKV"}} for given in self._inputs]

    def rows(self, tensor: Any) -> Any:
        """A tensor (batch, heads, length, head_dim) with rows outside heads: documents' rows behind one another.

        That is a view, except for documents in a batch of several sequences.
        """
        rows_outside = tensor.transpose(1, 2)
        return rows_outside.reshape(-1, *rows_outside.shape[2:]) if self._is_packed else rows_outside

    def placed_back(self, rows: Any) -> Any:
        """The tensor of which `rows` are: (batch, heads, length, head_dim)."""
        if self._is_packed:
            rows = rows.reshape(self._problem.batch, -1, *rows.shape[1:])
        return rows.transpose(1, 2)

    @functools.cached_property
    def lengths(self) -> Mapping[str, Any]:
        """Arguments that say where documents begin; none without documents."""
        if not self._is_packed:
            return {}
        packing = packing_of(self._problem)
        device = self._inputs[0]["Q"].device
        arguments: dict[str, Any] = {}
        for name, starts in (("q", packing.first_rows), ("k", packing.first_keys)):
            arguments[f"cu_seqlens_{name}"] = self._torch.as_tensor(starts, device=device).to(self._torch.int32)
            arguments[f"max_seqlen_{name}"] = max(end - start for start, end in itertools.pairwise(starts))
        return arguments


def packing_of(problem: Problem) -> Packing:
    """Where the documents of a problem begin. Rows before a sequence's first key are a document without keys."""
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
