"""FlashAttention-4's own functions (Dao et al., the package `flash-attn-4`), called on PyTorch's tensors."""

from __future__ import annotations

from typing import Any

from harness.model.contenders.flash_attention_4 import NAME, interface, require_supported
from harness.model.contenders.torch_contender import Tensors
from harness.operations.attention.libraries.packed_attention import PackedAttention, mask_of_each
from harness.operations.attention.masks import band_limits
from harness.operations.attention.problem import Problem
from harness.operations.attention.score_terms import SINKS
from harness.support.errors import UnsupportedProblem
from harness.support.override import override

FEATURES = ("softcap", SINKS)


class FlashAttention4(PackedAttention):
    """Its forward pass: causal masks and windows, a cap, sinks, and sequences or documents of different lengths."""

    def __init__(self, stage: Any) -> None:
        """Raise `UnsupportedProblem` for what it does not take."""
        problem: Problem = stage.problem
        within = mask_of_each(problem)
        if not within.is_band:
            raise UnsupportedProblem(
                NAME, f"mask {problem.mask} is not passed to it; causal, window, documents and varlen are"
            )
        self.window = band_limits(within)
        """How many keys a row sees (before, after) its own; None for no limit."""
        require_supported(problem.dtype, problem.head_dim, problem.tau)
        super().__init__(NAME, stage, takes=FEATURES)

    @override
    def attend(self, given: Tensors) -> Any:
        """O of Q, K and V that are laid out by `rows`."""
        p, functions = self._problem, interface()
        function = functions.flash_attn_varlen_func if self.is_packed else functions.flash_attn_func
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
