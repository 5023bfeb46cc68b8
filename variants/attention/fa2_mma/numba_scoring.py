"""What S becomes before the mask, in the layout of a product on tensor cores. The CUDA twin is scoring.cuh.

A cap and ALiBi, which are known here, are computed in powers of two: tau, the cap and slopes have a factor of log2 e.
All other terms, and these two beside others, map each score; their results are multiplied by log2 e at last.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, float32, int32
from numba.cuda import libdevice

from variants._features.numba_scores import numba_scores
from variants._mma.numba_mma import LOG2_E, lane_index, tanh_approx

ZERO, ONE = np.float32(0), np.float32(1)
KNOWN = {"softcap", "alibi"}
"""Terms that are computed in powers of two."""


@functools.cache
def numba_scoring(TM: int, TN: int, key_of_row: Callable, terms: tuple[str, ...]) -> tuple[Any, Any]:
    """`scoring_of_head` and `finish_scores` for TM tiles of 16 rows and TN of 8 keys.

    `key_of_row`: the key on which row g of half h of tile i lies, counted from the first key of the tile.
    """
    return _known_terms(TM, TN, key_of_row, terms) if KNOWN.issuperset(terms) else _any_terms(TM, TN, key_of_row, terms)


def _known_terms(TM: int, TN: int, key_of_row: Callable, terms: tuple[str, ...]) -> tuple[Any, Any]:
    CAPS, SLOPES = "softcap" in terms, "alibi" in terms

    @cuda.jit(device=True, forceinline=True)
    def cap_of(scores):
        return scores[0][0] if CAPS else ZERO

    if SLOPES:

        @cuda.jit(device=True, forceinline=True)
        def slope_of(scores, head):
            return LOG2_E * (scores[1][0][0][head] if CAPS else scores[0][0][head])

    else:

        @cuda.jit(device=True, forceinline=True)
        def slope_of(scores, head):
            return ZERO

    # The cap and the slope.
    @cuda.jit(device=True, forceinline=True)
    def scoring_of_head(scores, head, q_len, kv_len):
        return cap_of(scores), slope_of(scores, head)

    @cuda.jit(device=True, forceinline=True)
    def apply_cap(S, tau2, cap):
        for i in range(TM):
            for j in range(TN):
                for c in range(4):
                    S[i, j, c] = cap * tanh_approx(tau2 * S[i, j, c])

    @cuda.jit(device=True, forceinline=True)
    def add_penalty(S, unit, slope, place):
        column = int32((lane_index() & 3) * 2)
        for i in range(TM):
            for h in range(2):
                own = float32(int32(key_of_row(place, i, h) - column))  # counted from the lane's first column
                for j in range(TN):
                    for c in range(2):
                        distance = math.fabs(own - float32(8 * j + c))
                        S[i, j, 2 * h + c] = libdevice.fmaf(unit, S[i, j, 2 * h + c], -slope * distance)

    # S in powers of two, and what it is still to be multiplied by. tau2, which is positive, has log2 e in it, or, where
    # tanh comes next, is divided by the cap; that has log2 e in it then, as slopes have.
    @cuda.jit(device=True, forceinline=True)
    def finish_scores(S, tau2, scoring, warp_row, first_key, place):
        unit = tau2
        if CAPS:
            apply_cap(S, tau2, scoring[0])
            unit = ONE
        if SLOPES:
            add_penalty(S, unit, scoring[1], place)
            unit = ONE
        return unit

    return scoring_of_head, finish_scores


def _any_terms(TM: int, TN: int, key_of_row: Callable, terms: tuple[str, ...]) -> tuple[Any, Any]:
    of_head, apply = numba_scores(terms).of_head, numba_scores(terms).apply

    # The terms, and the last key of the sequence, which keys after it repeat.
    @cuda.jit(device=True, forceinline=True)
    def scoring_of_head(scores, head, q_len, kv_len):
        return of_head(scores, head, q_len, kv_len), int32(kv_len - 1)

    # Each score through all terms.
    @cuda.jit(device=True, forceinline=True)
    def finish_scores(S, tau, scoring, warp_row, first_key, place):
        column = int32((lane_index() & 3) * 2)
        for i in range(TM):
            for h in range(2):
                row = key_of_row(warp_row, i, h)
                for j in range(TN):
                    for c in range(2):
                        key = min(int32(first_key + column + (8 * j + c)), scoring[1])
                        S[i, j, 2 * h + c] = apply(scoring[0], tau * S[i, j, 2 * h + c], row, key)
        return LOG2_E

    return scoring_of_head, finish_scores
