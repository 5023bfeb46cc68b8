"""cuDNN's attention by its own frontend, with masks that PyTorch does not hand on to it as such.

Those are sliding windows, and causal masks of other lengths than square ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.model.contenders.cudnn_contender import CudnnContender
from harness.model.contenders.torch_contender import Tensors
from harness.operations.attention.libraries.scaled_dot_product import sees_all
from harness.operations.attention.libraries.torch_attention import require_features
from harness.operations.attention.masks import band_limits
from harness.operations.attention.problem import Problem
from harness.support.errors import UnsupportedProblem

NAME = "cudnn"


class CudnnAttention(CudnnContender):
    """A graph of one node."""

    def __init__(self, stage: Any) -> None:
        problem: Problem = stage.problem
        require_features(NAME, problem)
        if sees_all(problem) or (problem.mask.text == "causal" and problem.q_len == problem.kv_len):
            raise UnsupportedProblem(NAME, f"PyTorch passes mask {problem.mask} on to cuDNN: see torch-cudnn")
        if not problem.mask.is_band:
            raise UnsupportedProblem(NAME, f"mask {problem.mask} is not passed to it; causal and window are")
        super().__init__(NAME, stage)

    def _given(self, inputs: int) -> Tensors:
        return {name: self._inputs[inputs][name] for name in "QKV"}

    def _describe(self, cudnn: Any, graph: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        before, after = band_limits(self._problem.mask)
        O, _ = graph.sdpa(
            q=inputs["Q"],
            k=inputs["K"],
            v=inputs["V"],
            generate_stats=False,
            attn_scale=self._problem.tau,
            diagonal_alignment=cudnn.diagonal_alignment.BOTTOM_RIGHT,
            # It counts the key on the diagonal, too.
            diagonal_band_left_bound=None if before is None else before + 1,
            diagonal_band_right_bound=after,
        )
        return {"O": O}
