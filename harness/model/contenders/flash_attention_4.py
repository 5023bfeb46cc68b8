"""Finds FlashAttention-4, the package `flash-attn-4`, whose functions `bench` calls on PyTorch's tensors."""

from __future__ import annotations

import functools
import warnings
from typing import Any

from harness.support.errors import UnsupportedProblem

NAME = "flash-attn-4"
"""Name of the package, and of the rows."""
NEEDED = {NAME: (NAME, "nvidia-cutlass-dsl")}
"""Packages without which there is no row."""
DTYPES = ("float16", "bfloat16")
LARGEST_HEAD_DIM = 256
"""Of the kernels for Hopper."""
ELEMENTS_PER_PIECE = 8
"""Rows of K, V, Q and O are copied in pieces of 16 bytes."""


@functools.cache
def interface() -> Any:
    """Its module of public functions. The import takes seconds, and each kernel is compiled at its first call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from flash_attn.cute import interface as module
    return module


def require_supported(dtype: str, head_dim: int, scale: float) -> None:
    """Raise `UnsupportedProblem` for what FlashAttention-4 has no kernel for on Hopper."""
    if dtype not in DTYPES:
        raise UnsupportedProblem(NAME, f"dtype is {dtype}; it supports float16 and bfloat16")
    if head_dim % ELEMENTS_PER_PIECE or head_dim > LARGEST_HEAD_DIM:
        raise UnsupportedProblem(NAME, f"head_dim is {head_dim}; it supports multiples of 8 up to {LARGEST_HEAD_DIM}")
    if scale <= 0:
        raise UnsupportedProblem(NAME, f"scale is {scale:g}; it finds the largest score before it scales: above 0")
