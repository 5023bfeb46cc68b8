"""The library's row of `bench` for attention over pages: cuDNN's, by its own front end.

cuDNN takes a pool of pages as it is here, (pages, kv_heads, page_size, head_dim), and a table of them. PyTorch's
`scaled_dot_product_attention` takes none, and `flex_attention` one whose keys are a single run per head, which a pool
with heads outside of rows is not: they would have to be copied first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from harness.model.cudnn_contender import CudnnContender
from harness.model.torch_contender import Tensors
from harness.operations.paged_attention.problem import PagedProblem

NAME = "cudnn"


class CudnnPaged(CudnnContender):
    """A graph of one node.

    It gets a table of its own, made once, in which entries behind a sequence's last page name page 0: it may look them
    up, if only to leave them out.
    """

    def __init__(self, stage: Any) -> None:
        """See `CudnnContender`."""
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
        p, lengths = self._problem, given["lengths"]
        used = self._torch.tensor(p.sequence_pages, device=lengths.device)[:, None]
        places = self._torch.arange(p.table_shape[1], device=lengths.device)[None, :]
        table = self._torch.where(places < used, given["table"], 0).to(lengths.dtype)[:, None, :, None].contiguous()
        rows = self._torch.full_like(lengths, p.q_len)
        return {
            **{name: given[name] for name in "QKV"},
            "k_table": table,
            "v_table": table.clone(),
            "rows": rows[:, None, None, None],
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


def _contender(stage: Any) -> CudnnPaged:
    return CudnnPaged(stage).tried()


def libraries() -> Mapping[str, Callable[[Any], CudnnPaged]]:
    """Name -> what makes a contender of a stage."""
    return {NAME: _contender}
