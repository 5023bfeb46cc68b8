"""The libraries' rows of `bench` for softmax: PyTorch's own, and that of QuACK, written in CuTe DSL for Hopper."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from harness.model.contenders.library_versions import where_installed
from harness.model.contenders.torch_contender import Tensors, TorchContender
from harness.support.override import override

TORCH, QUACK = "torch-softmax", "quack"
NEEDED = {QUACK: ("quack-kernels", "nvidia-cutlass-dsl")}


class TorchSoftmax(TorchContender):
    """`torch.softmax` of each row."""

    @override
    def _run(self, inputs: int) -> Tensors:
        return {"Y": self._torch.softmax(self._inputs[inputs]["X"], dim=1)}


class QuackSoftmax(TorchContender):
    """`quack.softmax.softmax_fwd`, which keeps a row on chip, in the shared memory of several blocks if it is long."""

    @override
    def _run(self, inputs: int) -> Tensors:
        return {"Y": self._function(self._inputs[inputs]["X"])}

    @functools.cached_property
    def _function(self) -> Callable[[Any], Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from quack.softmax import softmax_fwd
        function: Callable[[Any], Any] = softmax_fwd
        return function


def _contender(name: str, make: type[TorchContender], stage: Any) -> TorchContender:
    return make(name, stage).tried()


_ROWS: Mapping[str, type[TorchContender]] = {TORCH: TorchSoftmax, QUACK: QuackSoftmax}
LIBRARIES: Mapping[str, Callable[[Any], TorchContender]] = {
    name: functools.partial(_contender, name, make) for name, make in where_installed(_ROWS, NEEDED).items()
}
"""Name -> what makes a contender of a stage."""


def libraries_in_words(torch: str) -> str:
    """What these rows are, with PyTorch of version `torch`."""
    return f"torch-softmax: torch.softmax of PyTorch {torch}; quack is the package quack-kernels."
