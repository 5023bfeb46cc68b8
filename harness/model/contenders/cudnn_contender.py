"""Runs a graph of cuDNN's Python frontend, the package `nvidia-cudnn-frontend`, as a contender of `bench`."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.model.contenders.torch_contender import Tensors, TorchContender
from harness.support.errors import UnsupportedProblem

DTYPES = {"float16": "HALF", "bfloat16": "BFLOAT16"}
"""cuDNN's name (cudnn.data_type) of each dtype."""


@dataclass(frozen=True)
class BuiltGraph:
    """A graph that is ready to run."""

    graph: Any
    inputs: Mapping[str, Any]
    """Tensors of the graph, by the problem's names."""
    outputs: Mapping[str, Any]
    handle: Any
    """cuDNN's handle, which holds the stream."""
    workspace: Any


class CudnnContender(TorchContender):
    """A contender that runs a cuDNN graph on PyTorch's tensors."""

    def __init__(self, name: str, stage: Any) -> None:
        """Create a contender for a stage's inputs. Raises `UnsupportedProblem` for dtypes that cuDNN lacks."""
        if stage.problem.dtype not in DTYPES:
            raise UnsupportedProblem(name, f"dtype is {stage.problem.dtype}; it supports float16 and bfloat16")
        super().__init__(name, stage)

    @abstractmethod
    def _describe(self, cudnn: Any, graph: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the operation's node to `graph`. Returns its outputs by the problem's names.

        `inputs` are the graph's tensors for the names in `_given`.
        """

    def _given(self, inputs: int) -> Tensors:
        """Return the graph's inputs for this set of inputs."""
        return self._inputs[inputs]

    def _run(self, inputs: int) -> Tensors:
        built, given = self._built, self._given(inputs)
        left = {name: self._empty(name) for name in built.outputs}
        tensors = {tensor: given[name] for name, tensor in built.inputs.items()}
        tensors |= {tensor: left[name] for name, tensor in built.outputs.items()}
        built.graph.execute(tensors, built.workspace, handle=built.handle)
        return left

    @functools.cached_property
    def _built(self) -> BuiltGraph:
        try:
            import cudnn
        except ImportError as missing:
            raise RuntimeError("needs the package nvidia-cudnn-frontend, which is not installed") from missing
        handle = cudnn.create_handle()
        cudnn.set_stream(handle=handle, stream=self._stream.cuda_stream)
        graph = cudnn.pygraph(
            io_data_type=getattr(cudnn.data_type, DTYPES[self._problem.dtype]),
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
            handle=handle,
        )
        inputs = {name: graph.tensor_like(tensor) for name, tensor in self._given(0).items()}
        outputs = self._describe(cudnn, graph, inputs)
        for name, tensor in outputs.items():
            like = self._empty(name)
            tensor.set_output(True).set_dim(list(like.shape)).set_stride(list(like.stride()))
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        Q = self._inputs[0]["Q"]
        workspace = self._torch.empty(graph.get_workspace_size(), device=Q.device, dtype=self._torch.uint8)
        return BuiltGraph(graph, inputs, outputs, handle, workspace)

    def _empty(self, output: str) -> Any:
        (shape,) = (tensor.shape for tensor in self._problem.tensors if tensor.name == output)
        Q = self._inputs[0]["Q"]
        return self._torch.empty(shape, device=Q.device, dtype=Q.dtype)
