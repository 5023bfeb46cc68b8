"""The libraries' rows of `bench`: PyTorch's attention, with each of its back ends and as `flex_attention`, and cuDNN's.

They are somebody else's kernels: nothing here but handing over pointers. Without PyTorch there are none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from harness.operations.attention.libraries.cudnn_frontend import CudnnAttention
from harness.operations.attention.libraries.flex_attention import FlexAttention
from harness.operations.attention.libraries.scaled_dot_product import BACK_ENDS, ScaledDotProduct

LIBRARIES: dict[str, Callable[[Any], Any]] = {
    **{name: functools.partial(ScaledDotProduct, name) for name in BACK_ENDS},
    "torch-flex": FlexAttention,
    "cudnn": CudnnAttention,
}
"""Name -> what makes a contender of a stage."""
