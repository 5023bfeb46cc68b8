"""cuDNN's attention over pages, by its own frontend."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from harness.model.contenders.cudnn_contender import CudnnContender
from harness.model.contenders.torch_contender import Tensors
from harness.operations.paged_attention.libraries.pages import pool_of_keys, require_plain, table_of_keys
from harness.operations.paged_attention.problem import PagedProblem

NAME = "cudnn"


class CudnnPaged(CudnnContender):
    """A graph of one node.

    It gets a table of its own, made once, in which entries behind a sequence's last page name page 0: it may look them
    up, if only to leave them out. Where there are more rows than one it multiplies V behind a sequence's last key by
    weights of 0, which leave the NaN there what they are: so it gets a pool of its own then, too, with 0 there.
    """

    def __init__(self, stage: Any) -> None:
        """Raise `UnsupportedProblem` for what is not passed to it."""
        require_plain(NAME, stage.problem)
        super().__init__(NAME, stage)
        self._problem: PagedProblem = stage.problem

    def _given(self, inputs: int) -> Tensors:
        return self._sets[inputs]

    @functools.cached_property
    def _sets(self) -> list[Tensors]:
        """Made in the first run, on the same stream."""
        return [self._laid_out(given) for given in self._inputs]

    def _laid_out(self, given: Tensors) -> Tensors:
        """Table and lengths with the axes that cuDNN gives them."""
        p, torch, lengths = self._problem, self._torch, given["lengths"]
        pool = pool_of_keys(torch, p, given) if p.q_len > 1 else {name: given[name] for name in "KV"}
        of_pages = table_of_keys(torch, p, given).to(lengths.dtype)[:, None, :, None].contiguous()
        return {
            "Q": given["Q"],
            **pool,
            "k_table": of_pages,
            "v_table": of_pages.clone(),
            "rows": torch.full_like(lengths, p.q_len)[:, None, None, None],
            "lengths": lengths[:, None, None, None],
        }

    def _describe(self, cudnn: Any, graph: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        p = self._problem
        causal: dict[str, Any] = {
            "diagonal_alignment": cudnn.diagonal_alignment.BOTTOM_RIGHT,
            "diagonal_band_right_bound": 0,
        }
        O, _ = graph.sdpa(
            q=inputs["Q"],
            k=inputs["K"],
            v=inputs["V"],
            generate_stats=False,
            attn_scale=p.tau,
            use_padding_mask=True,
            seq_len_q=inputs["rows"],
            seq_len_kv=inputs["lengths"],
            paged_attention_k_table=inputs["k_table"],
            paged_attention_v_table=inputs["v_table"],
            paged_attention_max_seq_len_kv=p.table_shape[1] * p.page_size,
            **(causal if p.q_len > 1 else {}),
        )
        return {"O": O}
