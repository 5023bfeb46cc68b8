"""The softmax of standard attention: Dao et al. 2022, arXiv 2205.14135, algorithm 0, line 2.

It is the safe one, Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 2, whose line numbers these are. A row of S
and of P is the keys that it sees: what lies before and after them is neither written nor read. The CUDA twin is
softmax.cu.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda

from variants._features.numba_features import NumbaFeatures
from variants._features.numba_stored import conversions
from variants._tiles.numba_lanes import WARPS, lane_index, warp_index
from variants._tiles.numba_tiles import (
    MASK,
    MINUS_INFINITY,
    ONE,
    ZERO,
    batch_index,
    block_index,
    exp_below,
    head_index,
    lanes_max,
    lanes_sum,
)

KEYS_AT_ONCE = 16
STEP_KEYS = 32 * KEYS_AT_ONCE


@functools.cache
def three_pass_softmax_kernel(dtype: str, on_chip: int, features: NumbaFeatures) -> Any:
    """The kernel `three_pass_softmax` for these compile-time parameters.

    `on_chip`: how many elements of a row of S stay on chip.
    """
    ON_CHIP = on_chip
    stored, widen, narrow = conversions(dtype)
    limits_of_sequence, first_of, end_of = features.limits.of_sequence, features.limits.first, features.limits.end
    logit, SINK_WEIGHT = features.sink.logit, features.sink.WEIGHT
    dropout_of_head, keeps = features.dropout.of_head, features.dropout.keeps

    # S_j for the j of a step of the softmax, KEYS_AT_ONCE per lane, all under way before the first is waited for; -inf
    # beyond what the row sees, which changes neither maximum nor sum.
    @cuda.jit(device=True, forceinline=True)
    def load_scores(s, S_head, first, start, seen):
        j = start + lane_index()
        unseen = narrow(MINUS_INFINITY)
        for c in range(KEYS_AT_ONCE):
            s[c] = S_head.flat[first + j + c * 32] if j + c * 32 < seen else unseen

    # The same once more: from the chip as far as the row is kept there.
    @cuda.jit(device=True, forceinline=True)
    def load_scores_again(s, S_kept, S_head, first, start, seen):
        if start >= ON_CHIP:
            load_scores(s, S_head, first, start, seen)
        else:
            for c in range(KEYS_AT_ONCE):
                s[c] = S_kept[(start & MASK) + c * 32 + lane_index()]

    # Algorithm 0, line 2: read S, compute P = softmax(S), write P. Each warp takes a row.
    @cuda.jit
    def three_pass_softmax(S, P, q_len, kv_len, limits, sink, dropout):
        # As much of the row as fits stays on chip; only the rest is read from memory again.
        S_on_chip = cuda.shared.array((WARPS, ON_CHIP), stored)

        row = block_index() * WARPS + warp_index()
        if row >= q_len:
            return
        run = limits_of_sequence(limits, batch_index(), q_len, kv_len)
        first_key = first_of(run, row)
        seen = end_of(run, row) - first_key
        first = row * kv_len + first_key
        S_head = S[batch_index(), head_index()]
        P_head = P[batch_index(), head_index()]
        S_kept = S_on_chip[warp_index()]
        s = cuda.local.array(KEYS_AT_ONCE, stored)

        # Lines 1 to 4: m = max_j S_j. A sink is one of them, which is not written as P.
        sink_logit = logit(sink, head_index())
        m = sink_logit
        for start in range(0, seen, STEP_KEYS):
            load_scores(s, S_head, first, start, seen)
            if start < ON_CHIP:
                for c in range(KEYS_AT_ONCE):
                    S_kept[(start & MASK) + c * 32 + lane_index()] = s[c]
            for c in range(KEYS_AT_ONCE):
                m = max(m, widen(s[c]))
        m = lanes_max(m, 32)

        # Lines 5 to 8: l = sum_j exp(S_j - m).
        l = SINK_WEIGHT * exp_below(sink_logit, m) if lane_index() == 0 else ZERO
        for start in range(0, seen, STEP_KEYS):
            load_scores_again(s, S_kept, S_head, first, start, seen)
            for c in range(KEYS_AT_ONCE):
                l += exp_below(widen(s[c]), m)
        inverse = ONE / lanes_sum(l, 32)

        # Lines 9 to 11: P_j = exp(S_j - m) / l, 0 where it drops out.
        drawn = dropout_of_head(dropout, head_index(), batch_index())
        for start in range(0, seen, STEP_KEYS):
            load_scores_again(s, S_kept, S_head, first, start, seen)
            j = start + lane_index()
            for c in range(KEYS_AT_ONCE):
                p = exp_below(widen(s[c]), m) * inverse
                kept = keeps(drawn, row, first_key + j + c * 32)
                if j + c * 32 < seen:
                    P_head.flat[first + j + c * 32] = narrow(p if kept else ZERO)

    return three_pass_softmax
