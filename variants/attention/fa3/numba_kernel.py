"""FlashAttention-3, forward pass: Shah et al. 2024, arXiv 2407.08608, algorithms 1 (who does what) and 2 (a consumer:
softmax of one tile of keys beside the products of the tile before). Q_i, K_j, V_j, S_next, P_cur, m, l are the paper's.

The CUDA twin is kernel.cu: same names, same order of everything. Hopper's instructions are intrinsics, see
_hopper/numba_hopper.py.

S, P and O have to be registers, for a product writes to them while this code runs on. They are local arrays, which stay
in registers while every index of them is a constant: what goes over all of one is `unrolled`. Loops that are to stay
loops end at a number that is `unknown` to the compiler, and so are addresses which it would else work out before a loop
and keep. Numba computes in 64 bits: int32 and uint32 keep what lives long in one register instead of two.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from variants._hopper import WARPGROUP_ROWS, WarpgroupTile
from variants._hopper.numba_hopper import (
    WARPGROUP,
    arrive,
    arrive_threads,
    begin_products,
    commit_products,
    numba_hopper,
    publish_to_async,
    set_registers,
    store_matrices,
    sync_threads,
    wait,
    wait_for_products,
    wait_until_read,
)
from variants._hopper.numba_softmax import numba_softmax
from variants._mma.numba_mma import (
    LN_2,
    MINUS_INFINITY,
    global_address,
    lane_index,
    load_shared,
    numba_mma,
    quad_sum,
    shared_address,
    store_global,
    store_shared,
    thread_index,
    unknown,
)
from variants._mma.numba_unrolled import unrolled
from variants.attention.fa3.numba_block import numba_block
from variants.attention.fa3.numba_not_finite import numba_not_finite
from variants.attention.fa3.numba_producer import numba_producer

ZERO = np.float32(0)
ONE = np.float32(1)
SIGNS = 0x80008000  # of two elements
load_word, store_word, store_result = load_shared(4), store_shared(4), store_global(4)

# Registers per thread, of 65536 on a multiprocessor, by the number of consumers: addresses for the producer, S, P and O
# for consumers.
PRODUCER_REGISTERS = {2: 40, 3: 56}
CONSUMER_REGISTERS = {2: 232, 3: 152}

# Named barriers. 0 is syncthreads(), 1 that of all consumers.
TURN = 2  # and the next: of the first consumer and of the second
OWN = 4  # and the next ones: of one warpgroup


@functools.cache
def fa3_kernel(D: int, tile: WarpgroupTile, masked: bool, windowed: bool, dtype: str) -> Any:
    """The kernel for these compile-time parameters: elements of a padded row, a tile's sizes, see `numba_softmax`."""
    BR, BC, CONSUMERS, TURNS = tile.Br, tile.Bc, tile.consumers, bool(tile.turns)
    MASKED, WINDOWED = masked, windowed
    hopper = numba_hopper(D, BC, dtype)
    COLUMNS, ROW_BYTES, BOXES = hopper.COLUMNS, hopper.ROW_BYTES, hopper.BOXES
    store_rows, piece_of_row = hopper.store_rows, hopper.piece_of_row
    along_rows, across_rows = hopper.along_rows, hopper.across_rows
    steps_along, steps_across = hopper.steps_along, hopper.steps_across
    multiply, multiply_add_along, multiply_add = hopper.multiply, hopper.multiply_add_along, hopper.multiply_add
    softmax = numba_softmax(D, BC, MASKED, WINDOWED, dtype)
    mask, exponentiate = softmax.mask, softmax.exponentiate
    correct, round_weights = softmax.correct, softmax.round_weights
    packed, unpacked = numba_mma(dtype).packed, numba_mma(dtype).unpacked
    block = numba_block(D, tile, MASKED, WINDOWED)
    CONSUMER_THREADS, BARRIERS = block.CONSUMER_THREADS, block.BARRIERS
    K_FULL, K_EMPTY, V_FULL, V_EMPTY = block.K_FULL, block.K_EMPTY, block.V_FULL, block.V_EMPTY
    Q_FULL, Q_EMPTY, O_APART, O_PLACE = block.Q_FULL, block.Q_EMPTY, block.O_APART, block.O_PLACE
    WORK_TOLD, WORK_HEARD, TOLD = block.WORK_TOLD, block.WORK_HEARD, block.TOLD
    chip_at, init_barriers, phase = block.chip_at, block.init_barriers, block.phase
    barrier_of, tile_of = block.barrier_of, block.tile_of
    work_of, whole_tiles = block.work_of, block.whole_tiles
    produce = numba_producer(D, tile, MASKED, WINDOWED, dtype)
    take_not_finite = numba_not_finite(D, tile, MASKED, WINDOWED, dtype)

    SUMS, OUTPUTS, WEIGHTS = BC // 2, D // 2, BC // 4  # of S, O and P, per thread
    THREADS = WARPGROUP + CONSUMER_THREADS
    wait_for_S_beside_O, wait_for_S = wait_for_products(1, SUMS), wait_for_products(0, SUMS)
    wait_for_O = wait_for_products(0, OUTPUTS)
    keep_few_registers = set_registers("dec", PRODUCER_REGISTERS[CONSUMERS])
    take_registers = set_registers("inc", CONSUMER_REGISTERS[CONSUMERS])

    # --- Products ----------------------------------------------------------------------------------------------------

    @cuda.jit(device=True, forceinline=True)
    def multiply_further(k, S, Q, K):
        multiply_add_along(S, Q + steps_along(BR, k + 1), K + steps_along(BC, k + 1))

    multiply_all_further = unrolled(D // 16 - 1, multiply_further)

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

    # Of the warpgroup, and of the warp.
    @cuda.jit(device=True, forceinline=True)
    def warp_and_lane():
        return uint32(uint32(thread_index()) % uint32(WARPGROUP) // uint32(32)), lane_index()

    # The lane's rows.
    @cuda.jit(device=True, forceinline=True)
    def row_of_64(h):
        warp, lane = warp_and_lane()
        return int32(int32(warp * uint32(16) + (lane >> uint32(2))) + 8 * h)

    @cuda.jit(device=True, forceinline=True)
    def give_Q_back(barriers, warpgroup, speaks):
        if speaks:
            arrive(uint32(barriers + Q_EMPTY + uint32(warpgroup) * uint32(8)))

    @cuda.jit(device=True, forceinline=True)
    def sync_warpgroup():
        sync_threads(int32(OWN - 1 + uint32(thread_index()) // uint32(WARPGROUP)), WARPGROUP)

    # tau2 is positive: the warpgroup's rows of Q_i take the sign of tau, or become 0.
    @cuda.jit(device=True, forceinline=True)
    def give_sign(Q_rows, sign):
        WORDS = WARPGROUP_ROWS * ROW_BYTES // 4
        e = uint32(thread_index()) % uint32(WARPGROUP)
        while e < uint32(BOXES * WORDS):
            at = uint32(Q_rows + e // uint32(WORDS) * uint32(BR * ROW_BYTES) + e % uint32(WORDS) * uint32(4))
            both = load_word(at)
            low, high = unpacked(both)
            store_word(at, both ^ uint32(SIGNS) if sign < 0 else packed(ZERO * low, ZERO * high))
            e = uint32(e + uint32(WARPGROUP))
        publish_to_async()
        sync_warpgroup()

    # --- A consumer --------------------------------------------------------------------------------------------------

    # `sums` are O, m, l, S, P and the correction, `who` the number of the warpgroup, whether this thread speaks for it,
    # and where its rows of Q lie; `chip` and `band` are those of numba_block.py.

    # With TURNS, products of one consumer are issued while the other has its softmax.
    @cuda.jit(device=True, forceinline=True)
    def begin_turn(warpgroup):
        if TURNS:
            sync_threads(int32(TURN + warpgroup), CONSUMER_THREADS)

    @cuda.jit(device=True, forceinline=True)
    def end_turn(warpgroup):
        if TURNS:
            arrive_threads(int32(TURN + 1 - warpgroup), CONSUMER_THREADS)

    @cuda.jit(device=True, forceinline=True)
    def clear(e, O):
        O[e] = ZERO

    clear_outputs = unrolled(OUTPUTS, clear)

    # Before algorithm 2's loop: S of the first tile, alone.
    @cuda.jit(device=True, forceinline=True)
    def begin(S, who, chip, step):
        (warpgroup, speaks, Q_rows), (_, K_tiles, _, barriers) = who, chip
        wait(barrier_of(barriers, K_FULL, step), phase(step))
        begin_turn(warpgroup)
        multiply_Q_Kt(S, Q_rows, tile_of(K_tiles, step))
        end_turn(warpgroup)
        wait_for_S(S)
        if speaks:
            arrive(barrier_of(barriers, K_EMPTY, step))

    # In the loop: S of this tile and P V of the one before, which `step` is, are under way together, softmax beside
    # P V.
    @cuda.jit(device=True, forceinline=True)
    def visit(masked, sums, who, chip, step, row, first_key, band, tau2):
        O, m, l, S, P, correction = sums
        (warpgroup, speaks, Q_rows), (_, K_tiles, V_tiles, barriers) = who, chip
        newer = uint32(step + uint32(1))
        wait(barrier_of(barriers, K_FULL, newer), phase(newer))
        begin_turn(warpgroup)
        multiply_Q_Kt(S, Q_rows, tile_of(K_tiles, newer))
        wait(barrier_of(barriers, V_FULL, step), phase(step))
        add_P_V(O, P, tile_of(V_tiles, step))
        end_turn(warpgroup)
        wait_for_S_beside_O(S)
        if speaks:
            arrive(barrier_of(barriers, K_EMPTY, newer))
        if masked:
            mask(S, row, first_key, band)
        exponentiate(m, l, S, correction, tau2)
        wait_for_O(O)
        if speaks:
            arrive(barrier_of(barriers, V_EMPTY, step))
        correct(O, correction)
        round_weights(P, S)

    # From a tile that some row does not see all of to P V of it.
    @cuda.jit(device=True, forceinline=True)
    def take(O, P, chip, step, row, first_key, band):
        _, _, V_tiles, barriers = chip
        wait(barrier_of(barriers, V_FULL, step), phase(step))
        take_not_finite(O, P, tile_of(V_tiles, step), row, first_key, band)

    # Behind the loop: P V of the last tile.
    @cuda.jit(device=True, forceinline=True)
    def end(O, P, chip, step, speaks):
        _, _, V_tiles, barriers = chip
        wait(barrier_of(barriers, V_FULL, step), phase(step))
        add_P_V(O, P, tile_of(V_tiles, step))
        wait_for_O(O)
        if speaks:
            arrive(barrier_of(barriers, V_EMPTY, step))

    @cuda.jit(device=True, forceinline=True)
    def round_and_store(i, O, inverse, O_rows, warp_lane):
        j, (warp, lane) = 2 * i, warp_lane
        o = (
            packed(O[4 * j] * inverse[0], O[4 * j + 1] * inverse[0]),
            packed(O[4 * j + 2] * inverse[1], O[4 * j + 3] * inverse[1]),
            packed(O[4 * j + 4] * inverse[0], O[4 * j + 5] * inverse[0]),
            packed(O[4 * j + 6] * inverse[1], O[4 * j + 7] * inverse[1]),
        )
        box, piece = 8 * j // COLUMNS, uint32(j % (COLUMNS // 8)) + (lane >> uint32(4))
        row = uint32(warp * uint32(16) + (lane & uint32(15)))
        store_matrices(uint32(O_rows + uint32(box * BR * ROW_BYTES) + piece_of_row(row, piece)), o)

    store_outputs = unrolled(D // 16, round_and_store)

    @cuda.jit(device=True, forceinline=True)
    def consume(chip, O_map, lse, band, shares, tau2, sign):
        Q_tile, _, _, barriers = chip
        warpgroup = int32(uint32(thread_index()) // uint32(WARPGROUP) - 1)
        speaks = uint32(thread_index()) % uint32(WARPGROUP) == 0  # for its warpgroup
        Q_rows = uint32(Q_tile + uint32(warpgroup) * uint32(WARPGROUP_ROWS * ROW_BYTES))
        if TURNS and warpgroup == 1:
            end_turn(warpgroup)  # the first one begins
        O = cuda.local.array(OUTPUTS, float32)
        S = cuda.local.array(SUMS, float32)
        P = cuda.local.array(WEIGHTS, uint32)
        m, l = cuda.local.array(2, float32), cuda.local.array(2, float32)
        correction, inverse = cuda.local.array(2, float32), cuda.local.array(2, float32)
        row = cuda.local.array(2, int32)  # the lane's rows of the warpgroup's 64, as they are in their heads
        packs, _, head_shift, row_tiles, _ = shares
        sums, who = (O, m, l, S, P, correction), (warpgroup, speaks, Q_rows)
        parity, step = uint32(0), uint32(0)
        while True:
            wait(uint32(barriers + WORK_TOLD), parity)
            index = int32(load_word(uint32(barriers + TOLD)))
            arrive(uint32(barriers + WORK_HEARD))
            if index >= int32(packs * row_tiles):
                break
            pack, first_row, first_tile, end_tile = work_of(index, band, shares)
            own_row = int32(first_row + int32(warpgroup << head_shift))
            for h in range(2):
                row[h] = int32(own_row + (row_of_64(h) & int32((int32(1) << head_shift) - 1)))

            # O_i = 0, l = 0, m = -inf, in registers.
            clear_outputs(O)
            for h in range(2):
                m[h] = MINUS_INFINITY
                l[h] = ZERO
            wait(uint32(barriers + Q_FULL + uint32(warpgroup) * uint32(8)), parity)
            if sign != 1:
                give_sign(unknown(Q_rows), sign)

            if first_tile < end_tile:
                whole_from, whole_to = whole_tiles(first_row, end_tile, band, shares)
                j = int32(end_tile - 1)
                begin(S, who, chip, step)
                mask(S, row, int32(j * BC), band)
                exponentiate(m, l, S, correction, tau2)
                round_weights(P, S)
                if MASKED and not whole_from <= j < whole_to:
                    take(O, P, chip, step, row, int32(j * BC), band)
                j = int32(j - 1)
                if MASKED:
                    while j >= max(whole_to, first_tile):
                        first = int32(j * BC)
                        visit(True, sums, who, chip, step, row, first, band, tau2)
                        j, step = int32(j - 1), uint32(step + uint32(1))
                        take(O, P, chip, step, row, first, band)
                while j >= max(whole_from, first_tile):
                    visit(False, sums, who, chip, step, row, j, band, tau2)
                    j, step = int32(j - 1), uint32(step + uint32(1))
                if WINDOWED:
                    while j >= first_tile:
                        first = int32(j * BC)
                        visit(True, sums, who, chip, step, row, first, band, tau2)
                        j, step = int32(j - 1), uint32(step + uint32(1))
                        take(O, P, chip, step, row, first, band)
                if O_APART:
                    give_Q_back(barriers, warpgroup, speaks)
                end(O, P, chip, step, speaks)
                step = uint32(step + uint32(1))
            elif O_APART:
                give_Q_back(barriers, warpgroup, speaks)

            # O_i = diag(l)^-1 O_i, L_i = m + log(l). A row that saw nothing has l = 0: its O stays 0, its L is -inf.
            for h in range(2):
                total = quad_sum(l[h])
                inverse[h] = ZERO if total == ZERO else ONE / total
                if lane_index() & uint32(3) == 0 and row[h] < band[0]:
                    L = m[h] * LN_2 + libdevice.logf(total)
                    head = int32(int32(pack << int32(6 - head_shift)) + int32(row_of_64(h) >> head_shift))
                    place = uint64(head) * uint64(band[0]) + uint64(row[h])
                    store_result(global_address(lse) + place * uint64(4), uint32(libdevice.float_as_int(L)))
            # Write O_i, by way of a place on chip: once the last one has gone, where it is O's own.
            if O_APART:
                if speaks:
                    wait_until_read()
                sync_warpgroup()
            O_rows = uint32(unknown(Q_rows) + uint32(O_PLACE))
            store_outputs(O, inverse, O_rows, warp_and_lane())
            publish_to_async()
            sync_warpgroup()
            if speaks:
                store_rows(O_rows, BR, O_map, own_row, pack)
            if not O_APART:
                if speaks:
                    wait_until_read()
                give_Q_back(barriers, warpgroup, speaks)
            parity = uint32(parity ^ uint32(1))
        if O_APART and speaks:
            wait_until_read()

    # --- The kernel --------------------------------------------------------------------------------------------------

    @cuda.jit(launch_bounds=(THREADS, 1), arch="sm_90a")
    def fa3(Q, K, V, O, lse, q_len, kv_len, packs, tau2, sign, limits, order):
        dynamic, barriers = cuda.shared.array(0, uint32, alignment=128), cuda.shared.array(BARRIERS, uint64)
        chip = chip_at(shared_address(dynamic), shared_address(barriers))
        band = q_len, kv_len, limits[0], limits[1]
        shares = packs[0], packs[1], packs[3], packs[4], packs[5]
        if thread_index() == 0:
            init_barriers(chip[3])
        cuda.syncthreads()
        # setmaxnreg counts where each role is one branch.
        if thread_index() < WARPGROUP:
            keep_few_registers()
            if thread_index() == 0:
                produce(chip, Q, K, V, band, shares)
        else:
            take_registers()
            consume(chip, O, lse, band, shares, tau2, sign)

    return fa3
