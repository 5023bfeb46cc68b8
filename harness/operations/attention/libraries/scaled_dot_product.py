"""PyTorch's `scaled_dot_product_attention`, with each of its backends."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from harness.model.contenders.torch_contender import Tensors
from harness.operations.attention.libraries.torch_attention import TorchAttention
from harness.operations.attention.masks import rule_of_arrays
from harness.operations.attention.problem import Problem
from harness.support.errors import UnsupportedProblem
from harness.support.override import override

MOST_BYTES = 2 * 2**30
ALIGNED_ELEMENTS = 16
"""Rows of it begin at multiples of so many: PyTorch copies a mask whose rows do not, in every run."""
MOST_AT_ONCE = 2**24
"""Pairs of a row and a key that are looked at together."""


def mask_tensor(torch: Any, name: str, problem: Problem, given: Tensors) -> Any:
    """(1 or batch, 1 or heads, q_len, kv_len), in the dtype of Q. Raises `UnsupportedProblem` where it is too large."""
    padded = -(-problem.kv_len // ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS
    heads = problem.heads if problem.mask.tells_heads_apart else 1
    shape = (problem.mask.sequences, heads, problem.q_len, padded)
    size_bytes = shape[0] * shape[1] * shape[2] * shape[3] * problem.itemsize_bytes
    if size_bytes > MOST_BYTES:
        raise UnsupportedProblem(
            name,
            f"mask {problem.mask} would be a tensor of {size_bytes / 2**30:.1f} GiB; the most is "
            f"{MOST_BYTES / 2**30:.0f}",
        )
    like = given["Q"]
    mask = torch.full(shape, float("-inf"), dtype=like.dtype, device=like.device)[..., : problem.kv_len]
    sees = rule_of_arrays(problem, given)
    assert sees is not None
    keys = torch.arange(problem.kv_len, device=like.device)[None, :]
    rows_at_once = max(1, MOST_AT_ONCE // problem.kv_len)
    for batch, head in itertools.product(range(shape[0]), range(heads)):
        for start in range(0, problem.q_len, rows_at_once):
            rows = torch.arange(start, min(start + rows_at_once, problem.q_len), device=like.device)[:, None]
            mask[batch, head, start : start + rows_at_once].masked_fill_(sees(batch, head, rows, keys), 0.0)
    return mask


EFFICIENT, FLASH = "torch-efficient", "torch-flash"
BACK_ENDS = {
    "torch-math": "MATH",
    EFFICIENT: "EFFICIENT_ATTENTION",
    FLASH: "FLASH_ATTENTION",
    "torch-cudnn": "CUDNN_ATTENTION",
}
"""Our name -> PyTorch's (torch.nn.attention.SDPBackend)."""
LOWER_RIGHT = (EFFICIENT, FLASH)
"""Those that have a causal mask which is aligned bottom-right; PyTorch's own flag means top-left."""
OWN_MASKS = ("none", "causal")
"""Those that some of its backends have without a tensor of q_len x kv_len, whatever the lengths."""


def sees_all(problem: Problem) -> bool:
    """Whether each row sees each key: no mask, or the causal one of a single row, which is the last."""
    return problem.mask.text == "none" or (problem.mask.text == "causal" and problem.q_len == 1)


class ScaledDotProduct(TorchAttention):
    """One backend. Masks that it has not are a tensor, which is made once, outside of the clock."""

    def __init__(self, name: str, stage: Any) -> None:
        """`name`: one of `BACK_ENDS`."""
        super().__init__(name, stage)
        if name == FLASH and self._problem.mask.text not in OWN_MASKS:
            raise UnsupportedProblem(name, f"it does not support mask {self._problem.mask}, and takes no tensor")

    @property
    def is_causal(self) -> bool:
        """Whether the mask is a causal one that the backend has itself."""
        p = self._problem
        if p.mask.text != "causal" or sees_all(p):
            return False
        if p.q_len > p.kv_len and self._name == EFFICIENT:
            return False  # it leaves NaN in rows that see nothing, but where a tensor says so
        return p.q_len == p.kv_len or self._name in LOWER_RIGHT

    @functools.cached_property
    def mask_tensor(self) -> Any:
        """The mask as a tensor; None where none is needed. Made on PyTorch's current stream at its first use."""
        if sees_all(self._problem) or self.is_causal:
            return None
        return mask_tensor(self._torch, self._name, self._problem, self._inputs[0])

    @override
    def attend(self, given: Tensors) -> Any:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        p = self._problem
        options: dict[str, Any] = {"scale": p.tau, "attn_mask": self.mask_tensor}
        if p.group > 1:
            options["enable_gqa"] = True
        if self.is_causal and p.q_len == p.kv_len:
            options["is_causal"] = True
        elif self.is_causal:
            from torch.nn.attention.bias import causal_lower_right

            options["attn_mask"] = causal_lower_right(p.q_len, p.kv_len)
        with sdpa_kernel(getattr(SDPBackend, BACK_ENDS[self._name])):
            return scaled_dot_product_attention(given["Q"], given["K"], given["V"], **options)
