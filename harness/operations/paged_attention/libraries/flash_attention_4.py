"""FlashAttention-4's attention over pages (Dao et al., the package `flash-attn-4`)."""

from __future__ import annotations

import functools
from typing import Any

from harness.model.contenders.flash_attention_4 import NAME, interface, require_supported
from harness.model.contenders.torch_contender import Tensors, TorchContender
from harness.operations.paged_attention.libraries.pages import pool_of_keys, require_plain, table_of_keys
from harness.operations.paged_attention.problem import PagedProblem
from harness.support.override import override


class FlashAttention4Paged(TorchContender):
    """It takes a pool (pages, page_size, kv_heads, head_dim), of which the problem's is a view.

    It may multiply V behind a sequence's last key by weights of 0, so it gets a pool of its own with 0 there.
    """

    def __init__(self, stage: Any) -> None:
        """Raise `UnsupportedProblem` for what it does not take."""
        problem: PagedProblem = stage.problem
        require_plain(NAME, problem)
        require_supported(problem.dtype, problem.head_dim, problem.tau)
        super().__init__(NAME, stage)
        self._problem: PagedProblem = problem

    @override
    def _run(self, inputs: int) -> Tensors:
        p, given = self._problem, self._sets[inputs]
        O, _ = interface().flash_attn_varlen_func(
            given["Q"],
            given["K"],
            given["V"],
            seqused_k=given["lengths"],
            page_table=given["table"],
            max_seqlen_k=p.table_shape[1] * p.page_size,
            softmax_scale=p.tau,
            causal=p.q_len > 1,
        )
        return {"O": O.transpose(1, 2)}

    @functools.cached_property
    def _sets(self) -> list[Tensors]:
        """Made in the first run, on the same stream."""
        return [self._laid_out(given) for given in self._inputs]

    def _laid_out(self, given: Tensors) -> Tensors:
        tensors = {"Q": given["Q"], **pool_of_keys(self._torch, self._problem, given)}
        int32 = self._torch.int32
        return {
            **{name: tensor.transpose(1, 2) for name, tensor in tensors.items()},
            "lengths": given["lengths"].to(int32),
            "table": table_of_keys(self._torch, self._problem, given).to(int32).contiguous(),
        }
