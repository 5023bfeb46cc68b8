"""`torch.autograd.grad` alone, on a forward pass that ran once, outside of the clock, and whose graph is kept."""

from __future__ import annotations

import functools
from typing import Any

from harness.model.contenders.torch_contender import Tensors, TorchContender

GRADIENTS = {"Q": "dQ", "K": "dK", "V": "dV"}
"""Input -> the output that is its gradient."""


class Autograd(TorchContender):
    """Gradients of one of attention's rows, of the O that its own forward pass left.

    Where that is wanted there is no other way: `math` keeps P, from which its backward pass goes on. In 16 bits S, P
    and dP are stored in these, and what stands for dO.O is summed from them: where rows see few keys, and dP and dO.O
    all but cancel, that may be off by more than a kernel may be that has O, and then the row says so.
    """

    def __init__(self, name: str, forward: Any, stage: Any) -> None:
        """`forward`: the same library's row for attention, which has not run yet."""
        super().__init__(name, stage)
        self._forward = forward

    def _run(self, inputs: int) -> Tensors:
        results, leaves, cotangents = self._histories[inputs]
        gradients = self._torch.autograd.grad(results, list(leaves.values()), cotangents, retain_graph=True)
        return {GRADIENTS[name]: gradient for name, gradient in zip(leaves, gradients, strict=True)}

    @functools.cached_property
    def _histories(self) -> list[tuple[Any, Tensors, Any]]:
        """For each set of inputs: results, the inputs that they depend on, and the gradients of the results.

        Made in the first run, on the same stream.
        """
        made: list[tuple[Any, Tensors, Any]] = []
        for given in self._inputs:
            leaves = {name: given[name].detach().requires_grad_() for name in GRADIENTS}
            with self._torch.enable_grad():
                results = self._results({**given, **leaves})
            made.append((results, leaves, self._cotangents(results, given)))
        return made

    def _results(self, given: Tensors) -> tuple[Any, ...]:
        """What the gradients are of."""
        return (self._forward.attend(given),)

    def _cotangents(self, results: tuple[Any, ...], given: Tensors) -> tuple[Any, ...]:
        """The gradient of each."""
        return (given["dO"],)


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
