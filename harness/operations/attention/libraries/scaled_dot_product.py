"""PyTorch's `scaled_dot_product_attention`, with each of its back ends."""

from __future__ import annotations

from typing import Any

from harness.operations.attention.libraries.torch_attention import TorchAttention
from harness.operations.attention.masks import NO_MASK
from harness.operations.attention.problem import Problem
from harness.support.errors import UnsupportedProblem

BACK_ENDS = {
    "torch-math": "MATH",
    "torch-efficient": "EFFICIENT_ATTENTION",
    "torch-flash": "FLASH_ATTENTION",
    "torch-cudnn": "CUDNN_ATTENTION",
}
"""Our name -> PyTorch's (torch.nn.attention.SDPBackend)."""
OWN_MASKS = ("none", "causal")
"""Those that it has without a tensor of q_len x kv_len."""


class ScaledDotProduct(TorchAttention):
    """One back end."""

    def __init__(self, name: str, stage: Any) -> None:
        """See `TorchAttention`; `name` is one of `BACK_ENDS`."""
        from torch.nn.attention import SDPBackend

        self._backend = getattr(SDPBackend, BACK_ENDS[name])
        self._options = _options(stage.problem)
        super().__init__(name, stage)

    def _attend(self, Q: Any, K: Any, V: Any) -> Any:
        from torch.nn.attention import sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        with sdpa_kernel(self._backend):
            return scaled_dot_product_attention(Q, K, V, **self._options)


def _options(problem: Problem) -> dict[str, Any]:
    options: dict[str, Any] = {"scale": problem.tau}
    if problem.kv_heads != problem.heads:
        options["enable_gqa"] = True
    if problem.mask == NO_MASK:
        return options
    if problem.mask.text not in OWN_MASKS:
        raise UnsupportedProblem("torch", f"scaled_dot_product_attention has no mask {problem.mask} of its own")
    if problem.q_len == problem.kv_len:
        options["is_causal"] = True
    else:
        # PyTorch's own flag aligns the diagonal at the top left.
        from torch.nn.attention.bias import causal_lower_right

        options["attn_mask"] = causal_lower_right(problem.q_len, problem.kv_len)
    return options
