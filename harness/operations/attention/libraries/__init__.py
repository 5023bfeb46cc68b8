"""The libraries' rows of `bench`: PyTorch's attention, with each of its back ends and as `flex_attention`, and cuDNN's.

They are somebody else's kernels: nothing here but handing over pointers. Without PyTorch there are none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from harness.model.contenders.torch_contender import TorchContender
from harness.operations.attention.libraries.cudnn_frontend import CudnnAttention
from harness.operations.attention.libraries.flex_attention import FlexAttention
from harness.operations.attention.libraries.scaled_dot_product import BACK_ENDS, ScaledDotProduct


def _contender(make: Callable[[Any], TorchContender], stage: Any, is_tried: bool = True) -> TorchContender:
    """A contender on a stage. `is_tried`: after a first run, which raises what the library refuses."""
    contender = make(stage)
    return contender.tried() if is_tried else contender


_MAKERS: dict[str, Callable[[Any], TorchContender]] = {
    **{name: functools.partial(ScaledDotProduct, name) for name in BACK_ENDS},
    "torch-flex": FlexAttention,
    "cudnn": CudnnAttention,
}
LIBRARIES: dict[str, Callable[..., TorchContender]] = {
    name: functools.partial(_contender, make) for name, make in _MAKERS.items()
}
"""Name -> what makes a contender of a stage."""


def libraries_in_words(torch: str) -> str:
    """What these rows are, with PyTorch of version `torch`."""
    return (
        f"torch-*: scaled_dot_product_attention of PyTorch {torch}, one row per back end; torch-flex is its "
        "compiled flex_attention, cudnn is cuDNN by its own front end."
    )
