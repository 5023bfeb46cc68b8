"""What becomes of a score between its scale and the mask, and sinks. The CUDA twin is scores.cuh.

Kernels have a parameter for each feature, the last ones: `softcap`, `slopes`, `sinks`. Where a feature is off it is an
empty tuple, which takes no room among a kernel's parameters, and the functions here do not look at it.
"""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import numpy as np
from numba import cuda, float32

MINUS_INFINITY = np.float32(-np.inf)
ZERO = np.float32(0)


@functools.cache
def numba_scores(features: tuple[str, ...]) -> SimpleNamespace:
    """Device functions and constants for these features of scores."""
    SOFTCAP, ALIBI, SINKS = (name in features for name in ("softcap", "alibi", "sinks"))
    # exp(sink - m) is 1 while the sink itself is the maximum. A head that has no sink is one whose sink is -infinity.
    SINK_WEIGHT = np.float32(1 if SINKS else 0)

    if SOFTCAP:
        # tau is divided by the cap already.
        @cuda.jit(device=True, forceinline=True)
        def capped(product, tau, softcap):
            return softcap * math.tanh(tau * product)

    else:

        @cuda.jit(device=True, forceinline=True)
        def capped(product, tau, softcap):
            return tau * product

    if ALIBI:

        @cuda.jit(device=True, forceinline=True)
        def slope_of(slopes, head):
            return slopes[head]

        # From a product q.k to a score. `ahead`: by how much the key's index is larger than the row's; `place`: of row
        # 0, counted from the same key.
        @cuda.jit(device=True, forceinline=True)
        def score(product, tau, softcap, slope, ahead, place):
            return capped(product, tau, softcap) - slope * float32(abs(ahead - place))

    else:

        @cuda.jit(device=True, forceinline=True)
        def slope_of(slopes, head):
            return ZERO

        @cuda.jit(device=True, forceinline=True)
        def score(product, tau, softcap, slope, ahead, place):
            return capped(product, tau, softcap)

    if SINKS:

        @cuda.jit(device=True, forceinline=True)
        def sink_of(sinks, head):
            return sinks[head]

    else:

        @cuda.jit(device=True, forceinline=True)
        def sink_of(sinks, head):
            return MINUS_INFINITY

    return SimpleNamespace(
        SOFTCAP=SOFTCAP,
        ALIBI=ALIBI,
        SINKS=SINKS,
        SINK_WEIGHT=SINK_WEIGHT,
        score=score,
        slope_of=slope_of,
        sink_of=sink_of,
    )
