"""Runs another library's kernel on PyTorch's tensors as a contender of `bench`."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from harness.support.errors import UnsupportedProblem

C = TypeVar("C", bound="TorchContender")
Tensors = Mapping[str, Any]

NO_KERNEL = "No available kernel"
"""PyTorch's message if a backend does not support a problem. Warnings before it give the reasons."""


class TorchContender(ABC):
    """Runs on a stage's inputs, which it shares with other contenders, and on the stage's stream."""

    def __init__(self, name: str, stage: Any) -> None:
        """Create a contender called `name`. `stage` holds inputs on a GPU and its stream (`gpu.stage.GpuStage`)."""
        import torch

        self._torch = torch
        self._name = name
        self._problem = stage.problem
        self._stream = torch.cuda.ExternalStream(stage.context.stream.ptr)
        dtypes = {tensor.name: tensor.dtype for tensor in stage.problem.inputs}
        self._inputs: list[Tensors] = [
            {name: _tensor(torch, arrays[name], dtype) for name, dtype in dtypes.items()} for arrays in stage.inputs
        ]
        self._outputs: Tensors = {}

    @abstractmethod
    def _run(self, inputs: int) -> Tensors:
        """Enqueue a run on PyTorch's current stream. Returns outputs by name. Raises if the problem is unsupported."""

    def enqueue(self, inputs: int) -> None:
        """Enqueue one run on this set of inputs, without waiting."""
        with self._torch.no_grad(), self._torch.cuda.stream(self._stream):
            self._outputs = self._run(inputs)

    def outputs(self, inputs: int) -> dict[str, np.ndarray]:
        """Run once and copy the outputs to the host."""
        self._outputs = {}
        self.enqueue(inputs)
        self._stream.synchronize()
        dtypes = {tensor.name: tensor.dtype for tensor in self._problem.tensors}
        return {name: self._fetched(tensor, dtypes[name]) for name, tensor in self._outputs.items()}

    def tried(self: C) -> C:
        """Run once and return this object. Raises `UnsupportedProblem` with the library's own reasons."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                self.enqueue(0)
                self._stream.synchronize()
            except UnsupportedProblem:
                raise
            except Exception as error:
                reason = _one_line(error)
                if NO_KERNEL in reason:
                    reason = "; ".join(_reasons(caught)) or reason
                raise UnsupportedProblem(self._name, reason) from error
        return self

    def _fetched(self, tensor: Any, dtype: str) -> np.ndarray:
        whole = tensor.contiguous()
        if dtype == "bfloat16":
            import ml_dtypes

            bits: np.ndarray = whole.view(self._torch.uint16).cpu().numpy()
            return bits.view(ml_dtypes.bfloat16)
        fetched: np.ndarray = whole.cpu().numpy()
        return fetched


def _reasons(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    """Extract from PyTorch's warnings why a backend has no kernel."""
    reasons = [" ".join(str(w.message).split("(Triggered")[0].split()) for w in caught]
    # The other backends are disabled on purpose.
    return [r for r in reasons if "runtime disabled" not in r and not r.endswith("because:")]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _tensor(torch: Any, array: Any, dtype: str) -> Any:
    tensor = torch.as_tensor(array, device="cuda")
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
