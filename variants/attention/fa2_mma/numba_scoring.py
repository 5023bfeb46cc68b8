"""What S becomes before the mask, in the layout of a product on tensor cores. The CUDA twin is scoring.cuh."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
from numba import cuda, float32, int32
from numba.cuda import libdevice

from variants._mma.numba_mma import lane_index, tanh_approx
from variants._scores.numba_scores import numba_scores

ONE = np.float32(1)


@functools.cache
def numba_scoring(
    TM: int, TN: int, key_of_row: Callable, features: tuple[str, ...]
) -> tuple[Callable, SimpleNamespace]:
    """`finish_scores` for TM tiles of 16 rows and TN of 8 keys, and what kernels have in common for these features.

    `key_of_row`: the key on which row g of half h of tile i lies, from where the tile of keys begins.
    """
    scores = numba_scores(features)

    if scores.SOFTCAP:

        @cuda.jit(device=True, forceinline=True)
        def cap(S, tau2, softcap):
            for i in range(TM):
                for j in range(TN):
                    for c in range(4):
                        S[i, j, c] = softcap * tanh_approx(tau2 * S[i, j, c])
            return ONE

    else:

        @cuda.jit(device=True, forceinline=True)
        def cap(S, tau2, softcap):
            return tau2

    if scores.ALIBI:

        @cuda.jit(device=True, forceinline=True)
        def penalize(S, unit, slope, place):
            column = int32((lane_index() & 3) * 2)
            for i in range(TM):
                for h in range(2):
                    own = float32(int32(key_of_row(place, i, h) - column))  # counted from the lane's first column
                    for j in range(TN):
                        for c in range(2):
                            distance = math.fabs(own - float32(8 * j + c))
                            S[i, j, 2 * h + c] = libdevice.fmaf(unit, S[i, j, 2 * h + c], -slope * distance)
            return ONE

    else:

        @cuda.jit(device=True, forceinline=True)
        def penalize(S, unit, slope, place):
            return unit

    # S in powers of two, and what it is still to be multiplied by. tau2, which is positive, has log2 e in it, or, where
    # tanh comes next, is divided by the cap; that has log2 e in it then, as slopes have.
    @cuda.jit(device=True, forceinline=True)
    def finish_scores(S, tau2, softcap, slope, place):
        return penalize(S, cap(S, tau2, softcap), slope, place)

    return finish_scores, scores
