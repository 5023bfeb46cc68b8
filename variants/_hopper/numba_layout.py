"""Layouts: where tensor maps have a head. The CUDA twin is layout.cuh."""

from __future__ import annotations

from typing import Any

from numba import cuda, int32


# Of a head, or of a pack of heads: one axis of a map has those of all sequences, of which this is `number`.
@cuda.jit(device=True, forceinline=True)
def dense_place(number, sequence, head):
    return number


# Sequences are an axis of their own.
@cuda.jit(device=True, forceinline=True)
def strided_place(number, sequence, head):
    return int32(head), int32(sequence)


def place_in(is_dense: bool) -> Any:
    """Return the device function that finds a head in the tensor maps of a dense layout, or of any strides."""
    return dense_place if is_dense else strided_place
