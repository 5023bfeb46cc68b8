"""cuDNN's attention by its own front end, the package `nvidia-cudnn-frontend`.

With masks that PyTorch does not hand on to it, which are sliding windows.
"""

from __future__ import annotations

import functools
from typing import Any

from harness.operations.attention.libraries.band_limits import band_limits
from harness.operations.attention.libraries.scaled_dot_product import OWN_MASKS
from harness.operations.attention.libraries.torch_attention import TorchAttention
from harness.operations.attention.problem import Problem
from harness.support.errors import UnsupportedProblem

NAME = "cudnn"
DTYPES = {"float16": "HALF", "bfloat16": "BFLOAT16"}
"""Ours -> cuDNN's (cudnn.data_type)."""


class CudnnAttention(TorchAttention):
    """A graph of one node, with tensors of PyTorch's."""

    def __init__(self, stage: Any) -> None:
        """See `TorchAttention`."""
        problem: Problem = stage.problem
        if problem.mask.text in OWN_MASKS:
            raise UnsupportedProblem(NAME, f"mask {problem.mask} is one that PyTorch hands on to it: see torch-cudnn")
        if problem.dtype not in DTYPES:
            raise UnsupportedProblem(NAME, f"dtype is {problem.dtype}; it takes float16 and bfloat16")
        self._band = band_limits(problem, NAME)
        super().__init__(NAME, stage)

    def _attend(self, Q: Any, K: Any, V: Any) -> Any:
        graph, (q, k, v, o), workspace, handle = self._graph
        O = self._torch.empty_like(Q)
        graph.execute({q: Q, k: K, v: V, o: O}, workspace, handle=handle)
        return O

    @functools.cached_property
    def _graph(self) -> tuple[Any, tuple[Any, ...], Any, Any]:
        """(graph, its tensors Q, K, V and O, its workspace, the handle that has the stream)."""
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
        Q, K, V = self._inputs[0]
        q, k, v = (graph.tensor_like(tensor) for tensor in (Q, K, V))
        before, after = self._band
        o, _ = graph.sdpa(
            q=q,
            k=k,
            v=v,
            generate_stats=False,
            attn_scale=self._problem.tau,
            diagonal_alignment=cudnn.diagonal_alignment.BOTTOM_RIGHT,
            # It counts the key on the diagonal, too.
            diagonal_band_left_bound=None if before is None else before + 1,
            diagonal_band_right_bound=after,
        )
        o.set_output(True).set_dim(list(Q.shape)).set_stride(list(Q.stride()))
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        workspace = self._torch.empty(graph.get_workspace_size(), device="cuda", dtype=self._torch.uint8)
        return graph, (q, k, v, o), workspace, handle
