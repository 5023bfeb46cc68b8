"""FlashAttention-4's backward kernels (Dao et al., the package `flash-attn-4`), with the problem's O and lse.

Its public function has gradients only of its own forward pass, so the function behind them is called, as PyTorch calls
it.
"""

from __future__ import annotations

import functools
from typing import Any

from harness.model.contenders.flash_attention_4 import interface
from harness.model.contenders.torch_contender import Tensors, TorchContender
from harness.operations.attention_backward.libraries.autograd import GRADIENTS
from harness.operations.attention_backward.problem import BackwardProblem
from harness.support.override import override

OF_ROWS = ("Q", "K", "V", "O", "dO")
"""Inputs that have rows of head_dim elements."""


class FlashAttention4Kernels(TorchContender):
    """A launch for dO.O, one for the products, one that rounds dQ, and more where heads share K and V or have sinks."""

    def __init__(self, name: str, forward: Any, stage: Any) -> None:
        """`forward`: FlashAttention-4's row for attention, which knows how it takes masks."""
        super().__init__(name, stage)
        self._problem: BackwardProblem = stage.problem
        self._forward = forward

    @override
    def _run(self, inputs: int) -> Tensors:
        p, given = self._problem, self._sets[inputs]
        before, after = self._forward.window
        dQ, dK, dV, *dsinks = interface()._flash_attn_bwd(
            *(given[name] for name in (*OF_ROWS, "lse")),
            softmax_scale=p.tau,
            softcap=p.softcap or 0.0,
            window_size_left=before,
            window_size_right=after,
            learnable_sink=given.get("sinks"),
            **self._forward.lengths,
        )
        gradients = zip(GRADIENTS.values(), (dQ, dK, dV), strict=True)
        found = {name: self._forward.placed_back(gradient) for name, gradient in gradients}
        return {**found, **dict(zip(["dsinks"], dsinks))}

    @functools.cached_property
    def _sets(self) -> list[Tensors]:
        """Inputs as it takes them. Made in the first run, on the same stream."""
        return [self._laid_out(given) for given in self._inputs]

    def _laid_out(self, given: Tensors) -> Tensors:
        lse = given["lse"]
        if self._forward.lengths:
            lse = lse.transpose(0, 1).reshape(lse.shape[1], -1)
        return {**given, **{name: self._forward.rows(given[name]) for name in OF_ROWS}, "lse": lse}
