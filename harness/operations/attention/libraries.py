"""The libraries' rows: PyTorch's `scaled_dot_product_attention` with each of its back ends.

They are somebody else's kernels: nothing here but handing over pointers. Without PyTorch there are none.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np

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


class TorchAttention:
    """One back end on a stage's inputs."""

    def __init__(self, name: str, stage: Any) -> None:
        """`stage`: inputs on a GPU and its stream (`gpu.stage.GpuStage`). Raises `UnsupportedProblem`."""
        import torch
        from torch.nn.attention import SDPBackend

        self._torch = torch
        self._name = name
        self._backend = getattr(SDPBackend, BACK_ENDS[name])
        self._stream = torch.cuda.ExternalStream(stage.context.stream.ptr)
        problem: Problem = stage.problem
        self._inputs = [[_tensor(torch, arrays[x], problem) for x in "QKV"] for arrays in stage.inputs]
        self._options = _options(problem)
        self._dtype = problem.dtype
        self._O: Any = None
        self._require_support()

    def enqueue(self, inputs: int) -> None:
        """One forward pass on that set of inputs, without waiting."""
        from torch.nn.attention import sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        with self._torch.no_grad(), self._torch.cuda.stream(self._stream), sdpa_kernel(self._backend):
            self._O = scaled_dot_product_attention(*self._inputs[inputs], **self._options)

    def _require_support(self) -> None:
        """Run once. Raises `UnsupportedProblem` with PyTorch's own reasons, which it gives as warnings."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                self.enqueue(0)
                self._stream.synchronize()
            except Exception as error:
                reasons = [" ".join(str(w.message).split("(Triggered")[0].split()) for w in told]
                # That the other back ends are off is our doing.
                reasons = [r for r in reasons if "runtime disabled" not in r and not r.endswith("because:")]
                raise UnsupportedProblem(self._name, "; ".join(reasons) or _one_line(error)) from error

    def outputs(self, inputs: int) -> dict[str, np.ndarray]:
        """Run once more and fetch O."""
        self._O = None
        self.enqueue(inputs)
        self._stream.synchronize()
        O = self._O.contiguous()
        if self._dtype == "bfloat16":
            import ml_dtypes

            return {"O": O.view(self._torch.uint16).cpu().numpy().view(ml_dtypes.bfloat16)}
        return {"O": O.cpu().numpy()}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _tensor(torch: Any, array: Any, problem: Problem) -> Any:
    tensor = torch.as_tensor(array, device="cuda")
    return tensor.view(torch.bfloat16) if problem.dtype == "bfloat16" else tensor


def _options(problem: Problem) -> dict[str, Any]:
    options: dict[str, Any] = {"scale": problem.tau}
    if problem.kv_heads != problem.heads:
        options["enable_gqa"] = True
    if problem.mask == NO_MASK:
        return options
    if problem.mask.text != "causal":
        raise UnsupportedProblem("torch", f"scaled_dot_product_attention has no mask {problem.mask} of its own")
    if problem.q_len == problem.kv_len:
        options["is_causal"] = True
    else:
        # PyTorch's own flag aligns the diagonal at the top left.
        from torch.nn.attention.bias import causal_lower_right

        options["attn_mask"] = causal_lower_right(problem.q_len, problem.kv_len)
    return options


LIBRARIES = {name: functools.partial(TorchAttention, name) for name in BACK_ENDS}
"""Name -> what makes a contender of a stage."""
