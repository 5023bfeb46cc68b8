"""The libraries' rows of `bench` for attention over pages: cuDNN's, by its own frontend, and FlashAttention-4's.

cuDNN takes a pool of pages as it is here, (pages, kv_heads, page_size, head_dim), and a table of them. PyTorch's
`scaled_dot_product_attention` takes no table. Its experimental paged attention upon `flex_attention` takes a cache of
shape (1, kv_heads, keys, head_dim), of which a pool with several key/value heads is no view: it would have to
be copied.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from harness.model.contenders.flash_attention_4 import NAME as FLASH_ATTENTION_4
from harness.model.contenders.flash_attention_4 import NEEDED
from harness.model.contenders.library_versions import where_installed
from harness.model.contenders.torch_contender import TorchContender
from harness.operations.paged_attention.libraries import cudnn_frontend
from harness.operations.paged_attention.libraries.cudnn_frontend import CudnnPaged
from harness.operations.paged_attention.libraries.flash_attention_4 import FlashAttention4Paged

_ROWS: Mapping[str, Callable[[Any], TorchContender]] = {
    cudnn_frontend.NAME: CudnnPaged,
    FLASH_ATTENTION_4: FlashAttention4Paged,
}


def _contender(make: Callable[[Any], TorchContender], stage: Any) -> TorchContender:
    return make(stage).tried()


LIBRARIES: Mapping[str, Callable[[Any], TorchContender]] = {
    name: functools.partial(_contender, make) for name, make in where_installed(_ROWS, NEEDED).items()
}
"""Name -> what makes a contender of a stage."""
