"""The libraries' rows of `bench`: several ways to attention of PyTorch, cuDNN's, FlashAttention-4.

They are somebody else's kernels: nothing here but handing over pointers. Without PyTorch there are none, and without
its package there is no row of FlashAttention-4.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from harness.model.contenders.flash_attention_4 import NAME as FLASH_ATTENTION_4
from harness.model.contenders.flash_attention_4 import NEEDED
from harness.model.contenders.library_versions import where_installed
from harness.model.contenders.torch_contender import TorchContender
from harness.operations.attention.libraries.cudnn_frontend import CudnnAttention
from harness.operations.attention.libraries.flash_attention_4 import FlashAttention4
from harness.operations.attention.libraries.flex_attention import FlexAttention
from harness.operations.attention.libraries.scaled_dot_product import BACK_ENDS, ScaledDotProduct
from harness.operations.attention.libraries.varlen_attention import NAME as TORCH_VARLEN
from harness.operations.attention.libraries.varlen_attention import VarlenAttention


def _contender(make: Callable[[Any], TorchContender], stage: Any, is_tried: bool = True) -> TorchContender:
    """A contender on a stage. `is_tried`: after a first run, which raises what the library refuses."""
    contender = make(stage)
    return contender.tried() if is_tried else contender


_MAKERS: dict[str, Callable[[Any], TorchContender]] = {
    **{name: functools.partial(ScaledDotProduct, name) for name in BACK_ENDS},
    "torch-flex": FlexAttention,
    TORCH_VARLEN: VarlenAttention,
    "cudnn": CudnnAttention,
    FLASH_ATTENTION_4: FlashAttention4,
}
LIBRARIES: dict[str, Callable[..., TorchContender]] = {
    name: functools.partial(_contender, make) for name, make in where_installed(_MAKERS, NEEDED).items()
}
"""Name -> what makes a contender of a stage."""


def libraries_in_words(torch: str) -> str:
    """What these rows are, with PyTorch of version `torch`."""
    return (
        f"torch-*: scaled_dot_product_attention of PyTorch {torch}, one row per backend; torch-flex is its "
        "compiled flex_attention, torch-varlen its varlen_attn. cudnn is cuDNN through its own "
        "frontend, flash-attn-4 is FlashAttention-4's own function."
    )
