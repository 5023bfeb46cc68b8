"""PyTorch's `flex_attention`, compiled for the mask: the rival where `scaled_dot_product_attention` has no such mask.

Its kernel is written for the mask by `torch.compile` (Dong et al. 2024, arXiv 2412.05496), which takes seconds; a block
mask tells it which tiles of keys it may leave out.
"""

from __future__ import annotations

import functools
from typing import Any

from harness.operations.attention.libraries.band_limits import band_limits
from harness.operations.attention.libraries.scaled_dot_product import OWN_MASKS
from harness.operations.attention.libraries.torch_attention import TorchAttention
from harness.operations.attention.problem import Problem
from harness.support.errors import UnsupportedProblem

NAME = "torch-flex"


class FlexAttention(TorchAttention):
    """A sliding window, and what windows and causal masks have in common."""

    def __init__(self, stage: Any) -> None:
        """See `TorchAttention`."""
        problem: Problem = stage.problem
        if problem.mask.text in OWN_MASKS:
            raise UnsupportedProblem(NAME, f"mask {problem.mask} is one that PyTorch's other rows have")
        self._sees = _sees(problem)
        super().__init__(NAME, stage)

    def _attend(self, Q: Any, K: Any, V: Any) -> Any:
        compiled, block_mask = self._for_the_mask
        grouped = self._problem.group > 1
        return compiled(Q, K, V, block_mask=block_mask, scale=self._problem.tau, enable_gqa=grouped)

    @functools.cached_property
    def _for_the_mask(self) -> tuple[Any, Any]:
        """(what is compiled when it is first called, which tiles of keys have to be read)."""
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        p = self._problem
        block_mask = create_block_mask(self._sees, None, None, p.q_len, p.kv_len, "cuda", _compile=True)
        return self._torch.compile(flex_attention, dynamic=False), block_mask


def _sees(problem: Problem) -> Any:
    """Whether a row sees a key, as `flex_attention` asks: batch, head, row and key are tensors."""
    diagonal = problem.kv_len - problem.q_len
    before, after = band_limits(problem, NAME)
    all_keys = problem.q_len + problem.kv_len
    first = -all_keys if before is None else -before
    last = all_keys if after is None else after

    def sees(batch: Any, head: Any, row: Any, key: Any) -> Any:
        distance = key - row - diagonal
        return (distance >= first) & (distance <= last)

    return sees
