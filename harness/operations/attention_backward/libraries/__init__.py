"""The libraries' rows of `bench` for gradients: PyTorch's own, of each of its ways to attention.

They take the problem's O and lse, as every variant does, so that all of them are asked the same question: `kernels`
calls PyTorch's backward kernels by themselves, `flex_gradients` says how its own O comes to the same. That of
`torch-math` alone is the gradient of its own forward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from harness.model.contenders.flash_attention_4 import NAME as FLASH_ATTENTION_4
from harness.model.contenders.flash_attention_4 import NEEDED
from harness.model.contenders.library_versions import where_installed
from harness.model.contenders.torch_contender import TorchContender
from harness.model.operation import operation_named
from harness.operations.attention_backward.libraries.autograd import Autograd, FlexGradients
from harness.operations.attention_backward.libraries.flash_attention_4 import FlashAttention4Kernels
from harness.operations.attention_backward.libraries.kernels import CudnnKernel, EfficientKernel, FlashKernel

_ROWS: Mapping[str, Callable[..., TorchContender]] = {
    "torch-math": Autograd,
    "torch-efficient": EfficientKernel,
    "torch-flash": FlashKernel,
    "torch-cudnn": CudnnKernel,
    "torch-flex": FlexGradients,
    FLASH_ATTENTION_4: FlashAttention4Kernels,
}
"""Those of attention's that have gradients. cuDNN's own frontend is left out: it is asked by `torch-cudnn`."""


def _contender(name: str, stage: Any) -> TorchContender:
    forward: Callable[..., Any] = operation_named("attention").libraries[name]
    return _ROWS[name](name, forward(stage, is_tried=False), stage).tried()


LIBRARIES: Mapping[str, Callable[[Any], TorchContender]] = {
    name: functools.partial(_contender, name) for name in where_installed(_ROWS, NEEDED)
}
"""Name -> what makes a contender of a stage."""


def libraries_in_words(torch: str) -> str:
    """What these rows are, with PyTorch of version `torch`."""
    return (
        f"torch-*: the backward kernels of PyTorch {torch}, alone, one row per backend, with the O and lse of the "
        "problem; torch-flex is compiled flex_attention's, flash-attn-4 is FlashAttention-4's. torch-math is the "
        "gradient of a forward pass of its own."
    )
