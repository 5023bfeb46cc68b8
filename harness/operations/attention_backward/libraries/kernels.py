"""PyTorch's backward kernels, called by themselves with the problem's O and lse.

`torch.autograd.grad` would run them with O and lse of PyTorch's own forward pass, in which the O of 16 bits is off by
about as much as dP - dO.O is large where rows see few keys: that would be another question. They are operators that
nobody promises to keep (`torch.ops.aten`). Where a kernel wants O and dO in another layout they are laid out so once,
outside of the clock; its gradients stay as it leaves them.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from typing import Any

from harness.model.contenders.torch_contender import Tensors, TorchContender
from harness.operations.attention_backward.libraries.autograd import GRADIENTS
from harness.operations.attention_backward.problem import BackwardProblem
from harness.support.errors import UnsupportedProblem

LSE_ROWS = 32
"""Rows of lse come in multiples of so many to `torch-efficient`."""
NO_CAUSAL_MASK, CAUSAL_LOWER_RIGHT = 0, 2
"""PyTorch's numbers for these masks (`sdp::CustomMaskType`)."""


class BackwardKernel(TorchContender):
    """A backward kernel of PyTorch."""

    def __init__(self, name: str, forward: Any, stage: Any) -> None:
        """`forward`: the same library's row for attention, which knows how the library expects the mask."""
        super().__init__(name, stage)
        self._problem: BackwardProblem = stage.problem
        self._forward = forward

    @abstractmethod
    def _gradients(self, given: Tensors) -> tuple[Any, Any, Any]:
        """dQ, dK and dV of inputs that are laid out."""

    def _laid_out(self, given: Tensors) -> Tensors:
        """Inputs as the kernel takes them. A row that sees nothing has an lse of +infinity in PyTorch: no weights."""
        lse = given["lse"]
        lse = self._torch.where(self._torch.isneginf(lse), float("inf"), lse)
        return {**given, "lse": lse, "seed": self._torch.zeros(2, dtype=self._torch.int64, device=lse.device)}

    @functools.cached_property
    def _sets(self) -> list[Tensors]:
        """Made in the first run, on the same stream."""
        return [self._laid_out(given) for given in self._inputs]

    def _run(self, inputs: int) -> Tensors:
        return dict(zip(GRADIENTS.values(), self._gradients(self._sets[inputs]), strict=True))


def _rows_outside(tensor: Any) -> Any:
    """A copy in which the heads of a row lie side by side."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


class FlashKernel(BackwardKernel):
    """FlashAttention-2's. Its causal mask is aligned bottom-right."""

    def _laid_out(self, given: Tensors) -> Tensors:
        return {**super()._laid_out(given), **{name: _rows_outside(given[name]) for name in ("O", "dO")}}

    def _gradients(self, given: Tensors) -> tuple[Any, Any, Any]:
        p, x = self._problem, given
        dQ, dK, dV = self._torch.ops.aten._scaled_dot_product_flash_attention_backward(
            x["dO"], x["Q"], x["K"], x["V"], x["O"], x["lse"], None, None, p.q_len, p.kv_len, 0.0,
            self._forward.is_causal, x["seed"], x["seed"], scale=p.tau,
        )  # fmt: skip
        return dQ, dK, dV


class EfficientKernel(BackwardKernel):
    """That of xFormers, which takes any mask as a tensor."""

    def __init__(self, name: str, forward: Any, stage: Any) -> None:
        super().__init__(name, forward, stage)
        if self._problem.group > 1:
            raise UnsupportedProblem(name, "it supports only as many heads of K and V as of Q")

    def _laid_out(self, given: Tensors) -> Tensors:
        laid_out = super()._laid_out(given)
        padding = -self._problem.q_len % LSE_ROWS
        lse = self._torch.nn.functional.pad(laid_out["lse"], (0, padding), value=float("inf"))
        return {**laid_out, "lse": lse, **{name: _rows_outside(given[name]) for name in ("O", "dO")}}

    def _gradients(self, given: Tensors) -> tuple[Any, Any, Any]:
        p = self._problem
        dO, Q, K, V, O = (given[name].transpose(1, 2) for name in ("dO", "Q", "K", "V", "O"))
        mask = self._forward.mask_tensor
        if mask is not None:
            mask = mask.expand(p.batch, p.heads, p.q_len, p.kv_len)
        causal = CAUSAL_LOWER_RIGHT if self._forward.is_causal else NO_CAUSAL_MASK
        dQ, dK, dV, _ = self._torch.ops.aten._efficient_attention_backward(
            dO, Q, K, V, mask, O, None, None, p.q_len, p.kv_len, given["lse"], 0.0, given["seed"], given["seed"],
            causal, False, scale=p.tau,
        )  # fmt: skip
        return dQ.transpose(1, 2), dK.transpose(1, 2), dV.transpose(1, 2)


class CudnnKernel(BackwardKernel):
    """cuDNN's, which takes O and dO as they lie."""

    def _laid_out(self, given: Tensors) -> Tensors:
        """The inputs, lse with as many axes as the forward operator gives it: three or four, so that is run once."""
        laid_out = super()._laid_out(given)
        forward = self._torch.ops.aten._scaled_dot_product_cudnn_attention
        _, lse, *_ = forward(given["Q"], given["K"], given["V"], None, True, scale=self._problem.tau)
        return {**laid_out, "lse": laid_out["lse"].reshape(lse.shape)}

    def _gradients(self, given: Tensors) -> tuple[Any, Any, Any]:
        p, x = self._problem, given
        dQ, dK, dV = self._torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            x["dO"], x["Q"], x["K"], x["V"], x["O"], x["lse"], x["seed"], x["seed"], self._forward.mask_tensor,
            None, None, p.q_len, p.kv_len, 0.0, self._forward.is_causal, scale=p.tau,
        )  # fmt: skip
        return dQ, dK, dV
