"""FlashAttention-3, forward pass: Shah et al. 2024, arXiv 2407.08608, algorithms 1 (roles) and 2 (a consumer, in
numba_attend.py). Line numbers are the paper's. The CUDA twin is kernel.cu: same names, same order of everything.

Hopper's instructions are intrinsics, see _hopper/numba_hopper.py. Loops that are to stay loops end at a number that is
`unknown` to the compiler, and so are addresses which it would else compute before a loop and keep.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from variants._hopper import WARPGROUP_ROWS, WarpgroupTile, padded
from variants._hopper.numba_hopper import (
    WARPGROUP,
    arrive,
    numba_hopper,
    publish_to_async,
    set_registers,
    store_matrices,
    sync_threads,
    uniform,
    wait,
    wait_until_read,
)
from variants._hopper.numba_layout import place_in
from variants._hopper.numba_limits import WarpgroupLimits
from variants._hopper.numba_sequences import store_rows_of_sequence
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
from variants.attention.fa3.numba_attend import Consumer, Rows, numba_attend
from variants.attention.fa3.numba_block import numba_block
from variants.attention.fa3.numba_inspection import numba_inspection
from variants.attention.fa3.numba_producer import numba_producer
from variants.attention.fa3.numba_row_tiles import Packs, Problem, numba_row_tiles, of_sequence
from variants.attention.fa3.numba_scoring import NumbaChoices, Scoring, numba_scoring

ZERO = np.float32(0)
ONE = np.float32(1)
NO_CHOICES = NumbaChoices()
SIGNS = 0x80008000  # of two elements
load_word, store_word, store_result = load_shared(4), store_shared(4), store_global(4)

# Registers per thread, of 65536 on a multiprocessor, by the number of consumers: addresses for the producer, S, P and O
# for consumers.
PRODUCER_REGISTERS = {2: 40, 3: 32}
CONSUMER_REGISTERS = {2: 232, 3: 160}

OWN = 2  # a named barrier, of one warpgroup; the next ones are those of the others


@functools.cache
def fa3_kernel(
    head_dim: int,
    tile: WarpgroupTile,
    limits: WarpgroupLimits,
    dtype: str,
    chosen: NumbaChoices = NO_CHOICES,
    is_dense: bool = True,
) -> Any:
    """The kernel for rows of `head_dim` elements and a tile's sizes; `is_dense` as of `place_in`."""
    D = padded(head_dim)
    BR, BC, CONSUMERS, TURNS = tile.Br, tile.Bc, tile.consumers, bool(tile.turns)
    hopper = numba_hopper(D)
    COLUMNS, ROW_BYTES, BOXES = hopper.COLUMNS, hopper.ROW_BYTES, hopper.BOXES
    store_rows, piece_of_row, place_of = hopper.store_rows, hopper.piece_of_row, place_in(is_dense)
    packed, unpacked = numba_mma(dtype).packed, numba_mma(dtype).unpacked
    block = numba_block(D, tile, limits)
    CONSUMER_THREADS, BARRIERS = block.CONSUMER_THREADS, block.BARRIERS
    Q_FULL, O_APART, O_PLACE = block.Q_FULL, block.O_APART, block.O_PLACE
    WORK_FULL, WORK_EMPTY, INDEX = block.WORK_FULL, block.WORK_EMPTY, block.INDEX
    chip_at, init_barriers = block.chip_at, block.init_barriers
    row_tiles = numba_row_tiles(tile, limits, chosen.varlen)
    row_tile, row_in_Q, VARLEN = row_tiles.row_tile, row_tiles.row, chosen.varlen
    store_rows_alone = store_rows_of_sequence(head_dim, BR)
    attending = numba_attend(head_dim, tile, limits, dtype, chosen)
    scores = numba_scoring(BC, row_tiles.head_rows, chosen)
    cap_of, start_scoring, head_of, add_sink = scores.cap_of, scores.start, scores.head_of, scores.add_sink
    HAS_SIDES, SINKS = scores.HAS_SIDES, chosen.sinks
    attend, release_Q, end_turn = attending.attend, attending.release_Q, attending.end_turn
    produce = numba_producer(D, tile, limits, dtype, is_dense, VARLEN)
    inspect = numba_inspection(D, tile, limits, dtype).inspect

    SUMS, OUTPUTS, WEIGHTS = BC // 2, head_dim // 2, BC // 4  # of S, O and P, per thread
    THREADS = WARPGROUP + CONSUMER_THREADS
    keep_registers = set_registers("dec", PRODUCER_REGISTERS[CONSUMERS])
    take_registers = set_registers("inc", CONSUMER_REGISTERS[CONSUMERS])

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
    def sync_warpgroup():
        sync_threads(int32(OWN - 1 + uint32(thread_index()) // uint32(WARPGROUP)), WARPGROUP)

    # tau2 is positive: the warpgroup's rows of Q_i take the sign of tau, or become 0.
    @cuda.jit(device=True, forceinline=True)
    def apply_sign(Q_rows, sign):
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

    @cuda.jit(device=True, forceinline=True)
    def clear(e, O):
        O[e] = ZERO

    clear_outputs = unrolled(OUTPUTS, clear)

    @cuda.jit(device=True, forceinline=True)
    def round_and_store(i, O, inverse, O_rows, warp_lane):
        j, (warp, lane) = 2 * i, warp_lane
        o = (
            packed(O[4 * j] * inverse[0], O[4 * j + 1] * inverse[0]),
            packed(O[4 * j + 2] * inverse[1], O[4 * j + 3] * inverse[1]),
            # A row may end in the pair of pieces.
            packed(O[4 * j + 4] * inverse[0], O[4 * j + 5] * inverse[0]) if 8 * j + 8 < head_dim else uint32(0),
            packed(O[4 * j + 6] * inverse[1], O[4 * j + 7] * inverse[1]) if 8 * j + 8 < head_dim else uint32(0),
        )
        box, piece = 8 * j // COLUMNS, uint32(j % (COLUMNS // 8)) + (lane >> uint32(4))
        row = uint32(warp * uint32(16) + (lane & uint32(15)))
        store_matrices(uint32(O_rows + uint32(box * BR * ROW_BYTES) + piece_of_row(row, piece)), o)

    store_outputs = unrolled((head_dim + 15) // 16, round_and_store)

    # The warpgroup's rows of O_i, from their place on chip, from row `first_row` of the sequence on.
    @cuda.jit(device=True, forceinline=True)
    def store_output(O_rows, O_map, tile, first_row, leads, p):
        if VARLEN and int32(first_row + (int32(1) << p.packs.head_shift)) > tile.own.q_len:
            store_rows_alone(p.sequences, O_rows, tile.own, head_of(tile, int32(0), p), first_row, p.packs.head_shift)
            sync_warpgroup()
        elif leads:
            row = row_in_Q(tile.own, first_row)
            store_rows(O_rows, BR, O_map, row, place_of(tile.pack, tile.own.batch, tile.head))

    # Algorithm 1, lines 13 to 25, for one tile of rows after the other.
    @cuda.jit(device=True, forceinline=True)
    def consume(chip, O_map, lse, p, tau2, sign, choices):
        Q_tile, _, _, barriers = chip
        number = int32(uniform(uint32(thread_index()) // uint32(WARPGROUP)) - 1)
        leads = uint32(thread_index()) % uint32(WARPGROUP) == 0  # for its warpgroup
        Q_rows = uint32(Q_tile + uint32(number) * uint32(WARPGROUP_ROWS * ROW_BYTES))
        if TURNS and number == CONSUMERS - 1:
            end_turn(number)  # the first one begins
        O = cuda.local.array(OUTPUTS, float32)
        S = cuda.local.array(SUMS, float32)
        P = cuda.local.array(WEIGHTS, uint32)
        m, l = cuda.local.array(2, float32), cuda.local.array(2, float32)
        correction, inverse = cuda.local.array(2, float32), cuda.local.array(2, float32)
        row = cuda.local.array(2, int32)  # the lane's rows of the warpgroup's 64, as they are in their heads
        shift = p.packs.head_shift
        per_key, of_row = cuda.local.array(2, float32), cuda.local.array(2, float32)
        mine, place = cuda.local.array(2, int32), cuda.local.array(2, int32)
        scoring = Scoring(tau2, cap_of(choices), per_key, place, of_row)
        rows, consumer = Rows(O, m, l, S, P, correction), Consumer(number, leads, Q_rows)
        parity, step = uint32(0), uint32(0)
        while True:
            wait(uint32(barriers + WORK_FULL), parity)
            index = int32(load_word(uint32(barriers + INDEX)))
            arrive(uint32(barriers + WORK_EMPTY))
            if index >= int32(p.packs.count * p.packs.row_tiles):
                break
            tile = row_tile(index, p)
            s = of_sequence(p, tile.own)
            own_row = int32(tile.first_row + int32(number << shift))
            for h in range(2):
                row[h] = int32(own_row + (row_of_64(h) & int32((int32(1) << shift) - 1)))

            # Line 13: O_i = 0, l = 0, m = -inf, in registers. Line 14: wait for Q_i. Lines 15 to 23: algorithm 2.
            clear_outputs(O)
            for h in range(2):
                m[h] = MINUS_INFINITY
                l[h] = ZERO
            wait(uint32(barriers + Q_FULL + uint32(number) * uint32(8)), parity)
            if sign != 1:
                apply_sign(unknown(Q_rows), sign)
            if tile.first < tile.end:
                if HAS_SIDES:
                    for h in range(2):
                        mine[h] = row_of_64(h)
                    start_scoring(scoring, choices, row, mine, tile, s)
                step = attend(rows, step, consumer, chip, tile, row, s, scoring)
            elif O_APART:
                release_Q(barriers, consumer)

            # Line 24: O_i = diag(l)^-1 O_i, L_i = m + log(l), with the head's sink. A row that saw nothing has l = 0
            # without one: its O stays 0, its L is -inf.
            for h in range(2):
                total, growth = quad_sum(l[h]), ONE
                if SINKS:
                    m[h], total, growth = add_sink(m[h], total, choices, head_of(tile, row_of_64(h), p))
                inverse[h] = ZERO if total == ZERO else growth / total
                if lane_index() & uint32(3) == 0 and row[h] < s.q_len:
                    L = m[h] * LN_2 + libdevice.logf(total)
                    head = int32(int32(tile.pack << int32(6 - shift)) + int32(row_of_64(h) >> shift))
                    place = uint64(head) * uint64(p.q_len) + uint64(row_in_Q(tile.own, row[h]))
                    store_result(global_address(lse) + place * uint64(4), uint32(libdevice.float_as_int(L)))
            # Line 25: write O_i, by way of its place on chip, once the O_i before has left that.
            if O_APART:
                if leads:
                    wait_until_read()
                sync_warpgroup()
            O_rows = uint32(unknown(Q_rows) + uint32(O_PLACE))
            store_outputs(O, inverse, O_rows, warp_and_lane())
            publish_to_async()
            sync_warpgroup()
            store_output(O_rows, O_map, tile, own_row, leads, p)
            if not O_APART:
                if leads:
                    wait_until_read()
                release_Q(barriers, consumer)
            parity = uint32(parity ^ uint32(1))
        if O_APART and leads:
            wait_until_read()

    @cuda.jit(device=True, forceinline=True)
    def sequences_in(choices):
        return choices[-1] if VARLEN else ()

    @cuda.jit(launch_bounds=(THREADS, 1), arch="sm_90a")
    def fa3(Q, K, V, O, lse, q_len, kv_len, packs, tau2, sign, limits, choices):
        dynamic, barriers = cuda.shared.array(0, uint32, alignment=128), cuda.shared.array(BARRIERS, uint64)
        chip = chip_at(shared_address(dynamic), shared_address(barriers))
        p = Problem(
            q_len,
            kv_len,
            Packs(packs[0], packs[1], packs[2], packs[3], packs[4], packs[5]),
            limits,
            sequences_in(choices),
        )
        # Line 1.
        if thread_index() == 0:
            init_barriers(chip.barriers)
        cuda.syncthreads()
        # setmaxnreg counts where each role is one branch.
        if thread_index() < WARPGROUP:
            # Lines 2 to 10.
            keep_registers()
            if thread_index() == 0:
                produce(chip, Q, K, V, p)
            elif thread_index() >= 32:
                inspect(chip)
        else:
            # Lines 11 to 26.
            take_registers()
            consume(chip, O, lse, p, tau2, sign, choices)

    return fa3
