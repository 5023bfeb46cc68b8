"""A kernel of PyTorch as a contender: on whose tensors it runs, what it refuses, where its answer is."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from harness.operations.attention.problem import Problem
from harness.support.errors import UnsupportedProblem


class TorchAttention(ABC):
    """One of PyTorch's ways to attention on a stage's inputs."""

    def __init__(self, name: str, stage: Any) -> None:
        """`stage`: inputs on a GPU and its stream (`gpu.stage.GpuStage`). Raises `UnsupportedProblem`."""
        problem: Problem = stage.problem
        if problem.compiled_features:
            raise UnsupportedProblem(name, f"{' and '.join(problem.compiled_features)} are not handed on to it")
        import torch

        self._torch = torch
        self._name = name
        self._stream = torch.cuda.ExternalStream(stage.context.stream.ptr)
        self._problem: Problem = stage.problem
        self._inputs = [[_tensor(torch, arrays[x], self._problem) for x in "QKV"] for arrays in stage.inputs]
        self._O: Any = None
        self._require_support()

    @abstractmethod
    def _attend(self, Q: Any, K: Any, V: Any) -> Any:
        """O, on PyTorch's current stream, without waiting."""

    def enqueue(self, inputs: int) -> None:
        """One forward pass on that set of inputs, without waiting."""
        with self._torch.no_grad(), self._torch.cuda.stream(self._stream):
            self._O = self._attend(*self._inputs[inputs])

    def outputs(self, inputs: int) -> dict[str, np.ndarray]:
        """Run once more and fetch O."""
        self._O = None
        self.enqueue(inputs)
        self._stream.synchronize()
        O = self._O.contiguous()
        if self._problem.dtype == "bfloat16":
            import ml_dtypes

            return {"O": O.view(self._torch.uint16).cpu().numpy().view(ml_dtypes.bfloat16)}
        return {"O": O.cpu().numpy()}

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


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _tensor(torch: Any, array: Any, problem: Problem) -> Any:
    tensor = torch.as_tensor(array, device="cuda")
    return tensor.view(torch.bfloat16) if problem.dtype == "bfloat16" else tensor
