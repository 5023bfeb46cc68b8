"""What S becomes before the mask, how powers of two are made of it, and sinks. The CUDA twin is scoring.cuh.

A kernel's last parameter is a tuple of those features besides limits that are on: the score terms, sinks, sequences.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32

from variants._features.numba_scores import numba_sink
from variants._mma.numba_mma import LOG2_E, MINUS_INFINITY, exp2_approx, lane_index, quad_max, tanh_approx
from variants._mma.numba_unrolled import unrolled

ZERO = np.float32(0)
BEFORE, AFTER, AROUND = range(3)
"""Where a tile's keys lie: all on the rows' places or before, all on them or after, or anywhere. A row's place is the
key that it lies on."""


@dataclass(frozen=True)
class NumbaChoices:
    """Which features besides limits are on, in the order of the kernel's last parameter."""

    terms: tuple[str, ...] = ()
    """Names of the score terms, the first one first."""
    sinks: bool = False
    varlen: bool = False


class Scoring(NamedTuple):
    """What S becomes, for the lane's rows. What is not needed is not set."""

    tau: Any
    cap: Any
    per_key: Any
    """Of S, by how much it falls per key of distance: an array of two."""
    place: Any
    """Of the rows, less the lane's first column: an array of two."""
    of_row: Any
    """What is added to S, multiplied by its factor, for powers of two: an array of two, set for each tile of keys."""


@functools.cache
def numba_scoring(keys: int, head_rows: Any, chosen: NumbaChoices) -> SimpleNamespace:
    """Device functions for tiles of so many `keys`; `head_rows`: of each head in a tile of rows."""
    TN, BC, LAST = keys // 8, keys, keys - 7  # LAST: of a lane's columns, counted from its first
    CAPS, SLOPES = "softcap" in chosen.terms, "alibi" in chosen.terms
    HAS_TERMS = bool(chosen.terms)

    # The head of its sequence that row `mine` of a warpgroup's 64 is of.
    @cuda.jit(device=True, forceinline=True)
    def head_of(tile, mine, p):
        first = int32(uint32(tile.pack) % uint32(p.packs.per_sequence)) << int32(6 - p.packs.head_shift)
        return uint32(int32(first) + int32(mine >> p.packs.head_shift))

    @cuda.jit(device=True, forceinline=True)
    def cap_of(choices):
        return choices[0][0][0] if CAPS else ZERO

    if SLOPES:

        @cuda.jit(device=True, forceinline=True)
        def slope_of(choices, head):
            return choices[0][1][0][0][head] if CAPS else choices[0][0][0][head]

    else:

        @cuda.jit(device=True, forceinline=True)
        def slope_of(choices, head):
            return ZERO

    # With ALiBi: of rows of the warpgroup numbered mine[0] and mine[1], which are row[0] and row[1] in their heads.
    @cuda.jit(device=True, forceinline=True)
    def start(scoring, choices, row, mine, tile, p):
        unit = LOG2_E / (scoring.cap if CAPS else scoring.tau)
        for h in range(2):
            scoring.per_key[h] = unit * slope_of(choices, head_of(tile, mine[h], p))
            scoring.place[h] = int32(row[h] + p.kv_len - p.q_len - int32(lane_index() & 3) * 2)

    # Before all of these tiles, and from these on, tiles of keys are on one side of all rows.
    @cuda.jit(device=True, forceinline=True)
    def end_before(tile, p):
        return int32(uint32(max(int32(tile.first_row + p.kv_len - p.q_len + 1), int32(0))) // uint32(BC))

    @cuda.jit(device=True, forceinline=True)
    def first_after(tile, p):
        last_row = int32(min(int32(tile.first_row + head_rows(p.packs)), p.q_len) - 1)
        return int32(uint32(max(int32(last_row + p.kv_len - p.q_len), int32(0)) + BC - 1) // uint32(BC))

    @cuda.jit(device=True, forceinline=True)
    def cap_columns(j, S, tau):
        for c in range(4):
            S[4 * j + c] = tanh_approx(tau * S[4 * j + c])

    cap_all_columns = unrolled(TN, cap_columns)

    # On one side, a penalty is that of the tile's nearest key, a row's, and that from there on, a column's: what is
    # added to S is never more than the whole penalty.
    def apply_on(side: int) -> Any:
        IS_BEFORE, IS_AROUND = side == BEFORE, side == AROUND

        @cuda.jit(device=True, forceinline=True)
        def subtract_penalty(j, S, scoring, first_key):
            for h in range(2):
                for c in range(2):
                    column = float32(8 * j + c)
                    if IS_AROUND:
                        distance = math.fabs(float32(int32(scoring.place[h] - first_key)) - column)
                    else:
                        distance = float32(LAST) - column if IS_BEFORE else column
                    S[4 * j + 2 * h + c] = cuda.fma(-scoring.per_key[h], distance, S[4 * j + 2 * h + c])

        subtract_all_penalties = unrolled(TN, subtract_penalty)

        # Returns the factor of S for powers of two.
        @cuda.jit(device=True, forceinline=True)
        def apply(S, scoring, first_key):
            if CAPS:
                cap_all_columns(S, scoring.tau)
            factor = scoring.cap if CAPS else scoring.tau
            if SLOPES:
                subtract_all_penalties(S, scoring, int32(first_key))
                for h in range(2):
                    from_first = int32(scoring.place[h] - int32(first_key))
                    nearest = float32(int32(from_first - LAST) if IS_BEFORE else int32(-from_first))
                    scoring.of_row[h] = ZERO if IS_AROUND else -factor * (scoring.per_key[h] * nearest)
            return factor

        return apply

    # m of row h, whose largest S, of the lane's, is x.
    @cuda.jit(device=True, forceinline=True)
    def maximum(factor, x, of_row, h):
        return quad_max(cuda.fma(factor, x, of_row[h])) if SLOPES else factor * quad_max(x)

    # What is added to factor S for powers of two relative to m.
    @cuda.jit(device=True, forceinline=True)
    def relative_to(minus_m, of_row, h):
        return of_row[h] + minus_m if SLOPES else minus_m

    logit, SINKS = numba_sink(chosen.sinks).logit, chosen.sinks

    if SINKS:

        @cuda.jit(device=True, forceinline=True)
        def sink_of(choices, head):
            return logit(choices[1 if HAS_TERMS else 0], head)

    else:

        @cuda.jit(device=True, forceinline=True)
        def sink_of(choices, head):
            return MINUS_INFINITY

    # A sink is a key more, without a value: m, l = exp(m_old - m) l + exp(sink - m). O_i is to be multiplied by
    # the last number returned, exp(m_old - m). It comes last, since P is rounded relative to the largest score.
    @cuda.jit(device=True, forceinline=True)
    def add_sink(m_old, l, choices, head):
        sink = LOG2_E * sink_of(choices, head)
        m = max(m_old, sink)
        minus_m = ZERO if m == MINUS_INFINITY else -m
        growth = exp2_approx(m_old + minus_m)
        return m, growth * l + exp2_approx(sink + minus_m), growth

    return SimpleNamespace(
        HAS_SIDES=SLOPES,
        cap_of=cap_of,
        head_of=head_of,
        start=start,
        end_before=end_before,
        first_after=first_after,
        apply_on=functools.cache(apply_on),
        maximum=maximum,
        relative_to=relative_to,
        add_sink=add_sink,
    )
