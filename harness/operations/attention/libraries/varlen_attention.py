"""PyTorch's `varlen_attn`, its FlashAttention-2 for sequences of different lengths (torch.nn.attention.varlen)."""

from __future__ import annotations

from typing import Any

from harness.model.contenders.torch_contender import Tensors
from harness.operations.attention.libraries.packed_attention import PackedAttention, is_packed, mask_of_each
from harness.operations.attention.libraries.torch_attention import require_features
from harness.operations.attention.masks import band_limits
from harness.operations.attention.problem import Problem
from harness.support.errors import UnsupportedProblem
from harness.support.override import override

NAME = "torch-varlen"


class VarlenAttention(PackedAttention):
    """Unpadded sequences or documents, with causal masks and windows."""

    def __init__(self, stage: Any) -> None:
        """Raise `UnsupportedProblem` for what it does not take."""
        problem: Problem = stage.problem
        require_features(NAME, problem)
        if not is_packed(problem):
            raise UnsupportedProblem(NAME, "sequences have one length: see PyTorch's other rows")
        within = mask_of_each(problem)
        if not within.is_band:
            raise UnsupportedProblem(NAME, f"mask {within} within sequences is not passed to it; causal and window are")
        before, after = band_limits(within)
        self._window = -1 if before is None else before, -1 if after is None else after
        super().__init__(NAME, stage)

    @override
    def attend(self, given: Tensors) -> Any:
        """O of Q, K and V that are laid out by `rows`."""
        from torch.nn.attention.varlen import varlen_attn

        p, lengths = self._problem, self.lengths
        options = {"enable_gqa": True} if p.group > 1 else {}
        O = varlen_attn(
            given["Q"],
            given["K"],
            given["V"],
            lengths["cu_seqlens_q"],
            lengths["cu_seqlens_k"],
            lengths["max_seqlen_q"],
            lengths["max_seqlen_k"],
            scale=p.tau,
            window_size=self._window,
            **options,
        )
        return self.placed_back(O)
