"""Loops that are unrolled whatever their size: what #pragma unroll is to CUDA.

A local array stays in registers only while every index of it is a constant. libNVVM unrolls loops of constant length by
itself, but not beyond a size that it chooses; one loop left, and the arrays that it indexes are in memory.
"""

from __future__ import annotations

from typing import Any

from numba import cuda


def unrolled(count: int, body: Any) -> Any:
    """A device function of some arguments that calls body(0, *arguments) to body(count - 1, *arguments)."""
    if count == 0:

        @cuda.jit(device=True, forceinline=True)
        def steps(*arguments):
            pass

    else:
        before, last = unrolled(count - 1, body), count - 1

        @cuda.jit(device=True, forceinline=True)
        def steps(*arguments):
            before(*arguments)
            body(last, *arguments)

    return steps
