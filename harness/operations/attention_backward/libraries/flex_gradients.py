"""`flex_attention`'s gradients: the compiled backward kernel that belongs to its forward one, by `autograd`."""

from __future__ import annotations

from typing import Any

from harness.model.contenders.torch_contender import Tensors
from harness.operations.attention_backward.libraries.autograd import Autograd


class FlexGradients(Autograd):
    """Held to the problem's O.

    What is kept of the forward pass is its own O', from which the kernel has delta' = dO.O'. It takes a gradient of lse
    off that, dlse, since dlse / dS = P. So with

        dlse = dO.(O' - O)        delta' - dlse = dO.O        dS = P (dP - dO.O)

    it answers the question that everybody is asked. dlse is worked out once, outside of the clock, in float32.
    """

    def _results(self, given: Tensors) -> tuple[Any, ...]:
        O, lse = self._forward.attend_with_lse(given)
        return O, lse

    def _cotangents(self, results: tuple[Any, ...], given: Tensors) -> tuple[Any, ...]:
        dO, excess = given["dO"], results[0].detach().float() - given["O"].float()
        return dO, (dO.float() * excess).sum(dim=-1)
