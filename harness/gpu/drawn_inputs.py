"""Launches that draw large inputs on the GPU, bit for bit as on the host, and that check that they are unchanged."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from harness.model.drawn_tensor import ELEMENTS_PER_COUNTER, ONE_OVER_DEVIATION, DrawnTensor
from harness.model.plan import Launch

THREADS = 256


def drawing(tensor: DrawnTensor, buffer: str) -> Launch:
    """A launch that fills the buffer with this name, which has the tensor's shape and dtype."""
    return _launch(_kernel("draw", tensor.dtype.name), tensor, buffer)


def counting_changes(tensor: DrawnTensor, buffer: str, count: str) -> Launch:
    """A launch that counts the elements of `buffer` that differ from the tensor's.

    It adds the number to the int32 in the buffer `count`.
    """
    return _launch(_kernel("count_changed", tensor.dtype.name), tensor, buffer, count)


def _launch(kernel: Any, tensor: DrawnTensor, *buffers: str) -> Launch:
    elements = int(np.prod(tensor.shape, dtype=np.int64))
    blocks = -(-elements // (ELEMENTS_PER_COUNTER * THREADS))
    numbers = (np.uint64(n) for n in (elements, tensor.seed, tensor.number))
    return Launch(kernel, (blocks,), (THREADS,), (*buffers, *numbers, ONE_OVER_DEVIATION))


@functools.cache
def _kernel(name: str, dtype: str) -> Any:
    import cupy

    text = Path(__file__).with_name("drawing.cu").read_text()
    return cupy.RawKernel(text, name, options=(f"-DSTORED_AS_{dtype}",))
