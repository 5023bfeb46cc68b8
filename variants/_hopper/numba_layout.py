"""Layouts: where tensor maps have a head. The CUDA twin is layout.cuh."""

from __future__ import annotations

from typing import Any

from numba import cuda, int32, uint32


# Of head `number` among those of all sequences, which have so many heads each. One axis of a map has all of them.
@cuda.jit(device=True, forceinline=True)
def dense_place(number, heads):
    return number


# Sequences are an axis of their own.
@cuda.jit(device=True, forceinline=True)
def strided_place(number, heads):
    number, heads = uint32(number), uint32(heads)
    return int32(number % heads), int32(number // heads)


def place_in(is_dense: bool) -> Any:
    """Return the device function that finds a head in the tensor maps of a dense layout, or of any strides."""
    return dense_place if is_dense else strided_place
