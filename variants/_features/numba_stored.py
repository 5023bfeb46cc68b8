"""How elements of Q, K, V and O are stored. The CUDA twins are stored_float32.cuh, stored_float16.cuh and
stored_bfloat16.cuh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint16, uint32
from numba.cuda import libdevice


def conversions(dtype: str) -> tuple[Any, Callable, Callable]:
    """What is stored, and device functions from that to float32 and back, rounding to nearest even."""
    if dtype == "bfloat16":
        stored = np.uint16

        @cuda.jit(device=True, forceinline=True)
        def widen(bits):
            return libdevice.int_as_float(int32(uint32(bits) << 16))

        @cuda.jit(device=True, forceinline=True)
        def narrow(x):
            bits = uint32(libdevice.float_as_int(x))
            rounded = uint16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
            return rounded if x == x else uint16(0x7FFF)  # rounding a NaN's bits up could make an infinity of it

    elif dtype == "float16":
        stored = np.float16

        @cuda.jit(device=True, forceinline=True)
        def widen(x):
            return float32(x)

        @cuda.jit(device=True, forceinline=True)
        def narrow(x):
            return np.float16(x)

    else:
        stored = np.float32

        @cuda.jit(device=True, forceinline=True)
        def widen(x):
            return x

        @cuda.jit(device=True, forceinline=True)
        def narrow(x):
            return x

    return stored, widen, narrow
