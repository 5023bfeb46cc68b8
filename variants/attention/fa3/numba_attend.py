"""Algorithm 2 of FlashAttention-3, lines 3 to 19: what a consumer does for a tile of rows. The CUDA twin is `attend` in
kernel.cu: same names, same order of everything.

S, P and O have to be registers, for a product writes to them while this code runs on. They are local arrays, which stay
in registers while every index of them is a constant: what goes over all of one is `unrolled`. Numba computes in 64
bits: int32 and uint32 keep what lives long in one register instead of two.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, int32, uint32

from variants._hopper import WarpgroupTile, padded
from variants._hopper.numba_hopper import (
    WARPGROUP,
    arrive,
    arrive_threads,
    begin_products,
    commit_products,
    numba_hopper,
    sync_threads,
    uniform,
    wait,
    wait_for_products,
)
from variants._hopper.numba_limits import WarpgroupLimits
from variants._hopper.numba_products import numba_products
from variants._hopper.numba_softmax import numba_softmax
from variants._mma.numba_mma import unknown
from variants._mma.numba_unrolled import unrolled
from variants.attention.fa3.numba_block import numba_block
from variants.attention.fa3.numba_inspection import numba_inspection
from variants.attention.fa3.numba_not_finite import numba_not_finite
from variants.attention.fa3.numba_row_tiles import numba_row_tiles
from variants.attention.fa3.numba_scoring import AFTER, AROUND, BEFORE, NumbaChoices, numba_scoring

ONE = np.float32(1)
TURN = 5  # a named barrier, of the first consumer; the next ones are those of the others


class Consumer(NamedTuple):
    """A consumer warpgroup."""

    number: Any
    leads: Any
    """Whether this thread does, for its warpgroup."""
    Q_rows: Any
    """Address of its rows of Q_i."""


class Rows(NamedTuple):
    """What a thread has in registers: local arrays."""

    O: Any
    m: Any
    l: Any
    S: Any
    P: Any
    correction: Any


@functools.cache
def numba_attend(
    head_dim: int, tile: WarpgroupTile, limits: WarpgroupLimits, dtype: str, chosen: NumbaChoices
) -> SimpleNamespace:
    """The device functions `attend` and those of turns; see `numba_block`."""
    D = padded(head_dim)
    BR, BC, CONSUMERS, TURNS = tile.Br, tile.Bc, tile.consumers, bool(tile.turns)
    CORRECTS_BESIDE_S = D > 128
    HIDES_FIRST, HIDES_LAST = limits.HIDES_FIRST, limits.HIDES_LAST
    hopper, products = numba_hopper(D), numba_products(BC, head_dim, dtype)
    along_rows, across_rows = hopper.along_rows, hopper.across_rows
    steps_along, steps_across = hopper.steps_along, hopper.steps_across
    multiply, multiply_add_along = products.multiply, products.multiply_add_along
    multiply_add = products.multiply_add
    block, row_tiles = numba_block(D, tile, limits), numba_row_tiles(tile, limits, chosen.varlen)
    scores = numba_scoring(BC, row_tiles.head_rows, chosen)
    HAS_SIDES, end_before, first_after = scores.HAS_SIDES, scores.end_before, scores.first_after
    apply_around = scores.apply_on(AROUND)
    softmax = numba_softmax(head_dim, BC, limits, dtype, scores.maximum, scores.relative_to)
    mask, exponentiate = softmax.mask, softmax.exponentiate
    correct, round_weights = softmax.correct, softmax.round_weights
    O_APART, Q_EMPTY = block.O_APART, block.Q_EMPTY
    K_FULL, K_EMPTY, V_FULL, V_EMPTY = block.K_FULL, block.K_EMPTY, block.V_FULL, block.V_EMPTY
    phase, barrier_of, tile_of, whole_tiles = block.phase, block.barrier_of, block.tile_of, row_tiles.whole_tiles
    finds = numba_inspection(D, tile, limits, dtype).finds
    take_not_finite = numba_not_finite(head_dim, tile, limits, dtype)
    SUMS, OUTPUTS = BC // 2, head_dim // 2
    wait_for_S_beside_O, wait_for_S = wait_for_products(1, SUMS), wait_for_products(0, SUMS)
    wait_for_O = wait_for_products(0, OUTPUTS)

    @cuda.jit(device=True, forceinline=True)
    def multiply_further(k, S, Q, K):
        multiply_add_along(S, Q + steps_along(BR, k + 1), K + steps_along(BC, k + 1))

    multiply_all_further = unrolled((head_dim + 15) // 16 - 1, multiply_further)

    # S_next = Q_i K_j^T for the warpgroup's rows, under way.
    @cuda.jit(device=True, forceinline=True)
    def multiply_Q_Kt(S, Q_rows, K_tile):
        # Q's descriptors are the same for every tile of keys; kept, they would take registers that wide rows need.
        Q, K = along_rows(unknown(Q_rows) if D > 128 else Q_rows), along_rows(K_tile)
        begin_products()
        multiply(S, Q, K)
        multiply_all_further(S, Q, K)
        commit_products()

    @cuda.jit(device=True, forceinline=True)
    def add_step(k, O, P, V):
        multiply_add(O, (P[4 * k], P[4 * k + 1], P[4 * k + 2], P[4 * k + 3]), V + steps_across(k))

    add_all_steps = unrolled(BC // 16, add_step)

    # O_i += P_cur V_j, under way.
    @cuda.jit(device=True, forceinline=True)
    def add_P_V(O, P, V_tile):
        V = across_rows(V_tile, BC)
        begin_products()
        add_all_steps(O, P, V)
        commit_products()

    # With TURNS, products of one consumer are issued while others have their softmax.
    @cuda.jit(device=True, forceinline=True)
    def begin_turn(warpgroup):
        if TURNS:
            sync_threads(int32(TURN + warpgroup), 2 * WARPGROUP)

    @cuda.jit(device=True, forceinline=True)
    def end_turn(warpgroup):
        if TURNS:
            arrive_threads(int32(TURN + uint32(warpgroup + 1) % uint32(CONSUMERS)), 2 * WARPGROUP)

    @cuda.jit(device=True, forceinline=True)
    def release_Q(barriers, consumer):
        if consumer.leads:
            arrive(uint32(barriers + Q_EMPTY + uint32(consumer.number) * uint32(8)))

    # Lines 3 to 5: S_cur = Q_i K_j^T of the first tile, alone.
    @cuda.jit(device=True, forceinline=True)
    def begin(S, consumer, chip, step):
        wait(barrier_of(chip.barriers, K_FULL, step), phase(step))
        begin_turn(consumer.number)
        multiply_Q_Kt(S, consumer.Q_rows, tile_of(chip.K_tiles, step))
        end_turn(consumer.number)
        wait_for_S(S)
        if consumer.leads:
            arrive(barrier_of(chip.barriers, K_EMPTY, step))

    # Lines 8 to 16: S_next of this tile and P_cur V of the one before, which `step` is, are under way together, softmax
    # beside P_cur V.
    def visit_on(side: int) -> Any:
        apply = scores.apply_on(side)

        @cuda.jit(device=True, forceinline=True)
        def visit(is_masked, rows, consumer, chip, step, row, first_key, p, scoring):
            O, m, l, S, P, correction = rows
            step = uniform(step)
            newer = uint32(step + uint32(1))
            wait(barrier_of(chip.barriers, K_FULL, newer), phase(newer))  # line 8
            begin_turn(consumer.number)
            multiply_Q_Kt(S, consumer.Q_rows, tile_of(chip.K_tiles, newer))  # line 9
            if CORRECTS_BESIDE_S:
                correct(O, correction)
            wait(barrier_of(chip.barriers, V_FULL, step), phase(step))  # line 10
            add_P_V(O, P, tile_of(chip.V_tiles, step))  # line 11
            end_turn(consumer.number)
            wait_for_S_beside_O(S)  # line 12
            if consumer.leads:
                arrive(barrier_of(chip.barriers, K_EMPTY, newer))  # line 15, K
            factor = apply(S, scoring, first_key)
            if is_masked:
                mask(S, row, first_key, p)
            exponentiate(m, l, S, correction, factor, scoring.of_row)  # line 13
            wait_for_O(O)  # line 14
            if consumer.leads:
                arrive(barrier_of(chip.barriers, V_EMPTY, step))  # line 15, V
            if not CORRECTS_BESIDE_S:
                correct(O, correction)
            round_weights(P, S)  # line 16

        return visit

    visit_before, visit_after, visit_around = visit_on(BEFORE), visit_on(AFTER), visit_on(AROUND)

    # Rows must not meet what is not finite in V_j of a key that they do not see.
    @cuda.jit(device=True, forceinline=True)
    def take_V(rows, chip, step, row, first_key, p):
        if not finds(chip.barriers, step):
            return
        if CORRECTS_BESIDE_S:
            correct(rows.O, rows.correction)
            rows.correction[0] = rows.correction[1] = ONE
        wait(barrier_of(chip.barriers, V_FULL, step), phase(step))
        take_not_finite(rows.O, rows.P, tile_of(chip.V_tiles, step), row, first_key, p)

    # Lines 18 and 19: P V of the last tile.
    @cuda.jit(device=True, forceinline=True)
    def end(O, P, correction, consumer, chip, step):
        if CORRECTS_BESIDE_S:
            correct(O, correction)
        wait(barrier_of(chip.barriers, V_FULL, step), phase(step))
        add_P_V(O, P, tile_of(chip.V_tiles, step))
        wait_for_O(O)
        if consumer.leads:
            arrive(barrier_of(chip.barriers, V_EMPTY, step))

    # Lines 3 to 19, over the tiles of keys that the tile of rows visits, from the last to the first. The lane's rows
    # are row[0] and row[1]; `p` is of their sequence. Returns `step`, which counts the block's tiles of keys.
    @cuda.jit(device=True, forceinline=True)
    def attend(rows, step, consumer, chip, tile, row, p, scoring):
        O, m, l, S, P, correction = rows
        whole_from, whole_to = whole_tiles(tile, p)
        j = int32(tile.end - 1)
        begin(S, consumer, chip, step)
        factor = apply_around(S, scoring, int32(j * BC))
        mask(S, row, int32(j * BC), p)
        exponentiate(m, l, S, correction, factor, scoring.of_row)  # line 6
        round_weights(P, S)
        if HIDES_LAST and not whole_from <= j < whole_to:
            take_V(rows, chip, step, row, int32(j * BC), p)
        # Line 7. Tiles that all rows see whole are in loops of their own, where ALiBi asks for it one for each side of
        # the rows.
        j = int32(j - 1)
        if HIDES_LAST:
            while j >= max(whole_to, tile.first):
                first_key = int32(j * BC)
                visit_around(True, rows, consumer, chip, step, row, first_key, p, scoring)
                j, step = int32(j - 1), uint32(step + uint32(1))
                take_V(rows, chip, step, row, first_key, p)
        if HAS_SIDES:
            if not HIDES_LAST:
                first = int32(max(first_after(tile, p), max(whole_from, tile.first)))
                while j >= first:
                    visit_after(False, rows, consumer, chip, step, row, int32(j * BC), p, scoring)
                    j, step = int32(j - 1), uint32(step + uint32(1))
            end_of_before = int32(max(end_before(tile, p), max(whole_from, tile.first)))
            while j >= end_of_before:
                visit_around(False, rows, consumer, chip, step, row, int32(j * BC), p, scoring)
                j, step = int32(j - 1), uint32(step + uint32(1))
        while j >= max(whole_from, tile.first):
            visit_before(False, rows, consumer, chip, step, row, int32(j * BC), p, scoring)
            j, step = int32(j - 1), uint32(step + uint32(1))
        if HIDES_FIRST:
            while j >= tile.first:
                first_key = int32(j * BC)
                visit_around(True, rows, consumer, chip, step, row, first_key, p, scoring)
                j, step = int32(j - 1), uint32(step + uint32(1))
                take_V(rows, chip, step, row, first_key, p)
        if O_APART:
            release_Q(chip.barriers, consumer)
        end(O, P, correction, consumer, chip, step)
        return uint32(step + uint32(1))

    return SimpleNamespace(attend=attend, release_Q=release_Q, end_turn=end_turn)
