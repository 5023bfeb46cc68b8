"""FlashAttention-3, backward pass: Shah et al. 2024, arXiv 2407.08608, algorithm 3 (roles), whose loop is lines 8 to 16
of Dao 2023, arXiv 2307.08691, algorithm 2; line numbers below are those. What surrounds it is in
_mma_backward/numba_ends.py, what a tile of rows takes in numba_scoring.py and numba_products.py.

The CUDA twin is kernel.cu: same names, same order.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from harness import Problem
from variants._features import has_spans
from variants._features.numba_limits import numba_limits as limits_in_memory
from variants._hopper.numba_hopper import (
    WARPGROUP,
    load_run,
    numba_hopper,
    publish_to_async,
    set_registers,
    sync_threads,
    wait_for_products,
    wait_until_read,
)
from variants._mma.numba_mma import ALL_LANES, global_address, lane_index, shared_address, thread_index, unknown
from variants._mma.numba_unrolled import unrolled
from variants._mma_backward.numba_limits import numba_limits
from variants._mma_backward.numba_order import pass_turn, turn_of, wait_for_turn
from variants._mma_backward.numba_seen import Pairs, numba_seen
from variants._mma_backward.numba_stats import numba_stats
from variants._tiles.numba_grids import head_index_across
from variants.attention_backward.fa3 import BackwardWarpgroupTile
from variants.attention_backward.fa3.numba_chip import (
    ADDER,
    ALL_CONSUMERS,
    CONSUMER_THREADS,
    FLOAT_BYTES,
    THREADS,
    after,
    first_visit,
    numba_chip,
)
from variants.attention_backward.fa3.numba_not_finite import numba_not_finite
from variants.attention_backward.fa3.numba_products import numba_products
from variants.attention_backward.fa3.numba_scoring import numba_scoring

ZERO, ONE = np.float32(0), np.float32(1)


class KeyBlock(NamedTuple):
    """What the roles of a block need, K_j and V_j of one head."""

    chip: Any
    """Where K_j lies."""
    barriers: Any
    seeing: Any
    visits: Any
    first_head: Any
    """Of the query heads that share the keys, counted through the batch."""
    first_key: Any
    q_len: Any
    tau2: Any
    """tau times log2 e."""


def keys_kernel(problem: Problem, tile: BackwardWarpgroupTile, in_order: bool) -> Any:
    """The kernel `bwd_fa3`. `in_order`: see `order`."""
    return _keys_kernel(problem.head_dim, tile, problem.dtype, has_spans(problem), in_order)


@functools.cache
def _keys_kernel(head_dim: int, tile: BackwardWarpgroupTile, dtype: str, spans: bool, in_order: bool) -> Any:
    BR, BC = tile.Br, tile.Bc
    places = numba_chip(head_dim, tile, in_order)
    D, BARRIERS = places.D, places.BARRIERS
    ROWS_BYTES, KEYS_BYTES, STAT_BYTES = places.ROWS_BYTES, places.KEYS_BYTES, places.STAT_BYTES
    V_tile, Q_tile, dO_tile, dS_tile = places.V_tile, places.Q_tile, places.dO_tile, places.dS_tile
    L_of, delta_of, init_barriers, visits_of = places.L_of, places.delta_of, places.init_barriers, places.visits_of
    K_slot, V_slot, Q_slots, dO_slots = places.K, places.V, places.Q, places.dO
    K_full, expect_K, wait_for_K = K_slot.full, K_slot.expect, K_slot.wait_until_full
    V_full, expect_V, wait_for_V = V_slot.full, V_slot.expect, V_slot.wait_until_full
    Q_full, expect_Q, wait_for_Q = Q_slots.full, Q_slots.expect, Q_slots.wait_until_full
    dO_full, expect_dO, wait_for_dO = dO_slots.full, dO_slots.expect, dO_slots.wait_until_full
    wait_until_Q_is_empty, release_Q = Q_slots.wait_until_empty, Q_slots.release
    wait_until_dQ_is_full, release_dQ = places.dQ.wait_until_full, places.dQ.release
    first_row = places.first_row
    has_dQ, DQ_FLOATS, dS_slots = places.has_dQ, places.FIRST_COLUMNS // 2, places.dS
    wait_until_dS_is_empty, fill_dS = dS_slots.wait_until_empty, dS_slots.fill
    wait_for_dS, release_dS = dS_slots.wait_until_full, dS_slots.release
    wait_until_dO_is_empty, release_dO = dO_slots.wait_until_empty, dO_slots.release
    load_tile, ROW_BYTES = numba_hopper(D).load_tile, numba_hopper(D).ROW_BYTES
    limits_, all_see, stat_rows = numba_limits(spans, BC), numba_seen(spans).all_see, numba_stats(of_tiles=True)
    of_block, first_seeing, end_seeing = limits_.of_block, limits_.first, limits_.end
    clear_all_not_finite = numba_not_finite(head_dim, tile, dtype).clear_all_not_finite
    products, scoring = numba_products(head_dim, tile, dtype, in_order), numba_scoring(head_dim, tile, dtype, spans)
    multiply_rows, add_rows, add_product = products.multiply_rows, products.add_rows, products.add_product
    bytes_of_head, write_keys = products.bytes_of_head, products.write_keys
    add_parts_of_dQ, in_memory = products.add_parts_of_dQ, limits_in_memory(spans)
    of_sequence, first_of, end_of = in_memory.of_sequence, in_memory.first, in_memory.end
    first_part, last_part = products.first_part, products.last_part
    PARTS_ARE_EQUAL = places.FIRST_COLUMNS == places.LAST_COLUMNS
    load_stats, exponentiate = scoring.load_stats, scoring.exponentiate
    D_BEFORE_DP, begin_with_D = scoring.D_BEFORE_DP, scoring.begin_with_D
    multiply_P, mask = scoring.multiply_P, scoring.mask
    bring_NaN, round_weights, store_dS = scoring.bring_NaN, scoring.round_weights, scoring.store_dS
    # While shared memory is less busy than behind S, if there are registers for L_i.
    L_BEFORE_S = BR == 64
    SCORES, WEIGHTS, STATS, SUMS = BR // 2, BR // 4, BR // 4, head_dim // 2
    wait_for_S_beside_dP, wait_for_dP = wait_for_products(1, SCORES), wait_for_products(0, SCORES)
    wait_for_sum_beside_one, wait_for_sum = wait_for_products(1, SUMS), wait_for_products(0, SUMS)
    keep_registers, take_registers = set_registers("dec", 24), set_registers("inc", 240)

    @cuda.jit(device=True, forceinline=True)
    def clear(e, dK, dV):
        dK[e] = ZERO
        dV[e] = ZERO

    clear_sums = unrolled(SUMS, clear)

    # Line 15, dQ_i = dQ_i + dS K_j, for the consumer's part, of the tile that the block visited before its `n`-th.
    # Lines 12 and 16 of this one are multiplied while dQ_i leaves the registers.
    def adds_to_dQ_beside(part):
        multiply_dS_K, add_dQ, wait_for_dQ_beside_two = part.multiply_dS_K, part.add_dQ, part.wait_for_dQ_beside_two

        @cuda.jit(device=True, forceinline=True)
        def add_part(dK, dV, dQ_i, P, dS, block, before, n, consumer, dQ):
            chip, barriers = block.chip, block.barriers
            wait_for_dS(barriers, before.number)
            multiply_dS_K(dQ_i, dS_tile(chip, before.number), chip, consumer)
            add_product(dV, P, dO_tile(chip, n))
            add_product(dK, dS, Q_tile(chip, n))
            wait_for_dQ_beside_two(dQ_i)
            if lane_index() == uint32(0):
                release_dS(barriers, before.number)
            dQ_head = dQ + uint64(uint32(block.first_head + before.head)) * bytes_of_head(unknown(block.q_len))
            add_dQ(dQ_i, chip, barriers, before.number, dQ_head, first_row(before), block.q_len)

        return add_part

    # The same, of the last tile.
    def adds_last_to_dQ(part):
        multiply_dS_K, add_dQ, wait_for_dQ = part.multiply_dS_K, part.add_dQ, part.wait_for_dQ

        @cuda.jit(device=True, forceinline=True)
        def add_part(dQ_i, block, last, consumer, dQ):
            chip, barriers = block.chip, block.barriers
            wait_for_dS(barriers, last.number)
            multiply_dS_K(dQ_i, dS_tile(chip, last.number), chip, consumer)
            wait_for_dQ(dQ_i)
            if lane_index() == uint32(0):
                release_dS(barriers, last.number)
            dQ_head = dQ + uint64(uint32(block.first_head + last.head)) * bytes_of_head(unknown(block.q_len))
            add_dQ(dQ_i, chip, barriers, last.number, dQ_head, first_row(last), block.q_len)

        return add_part

    add_first_part_beside, add_last_part_beside = adds_to_dQ_beside(first_part), adds_to_dQ_beside(last_part)
    add_first_part, add_last_part = adds_last_to_dQ(first_part), adds_last_to_dQ(last_part)

    @cuda.jit(device=True, forceinline=True)
    def add_to_dQ_beside(dK, dV, dQ_i, P, dS, block, before, n, consumer, dQ):
        if PARTS_ARE_EQUAL or consumer == 0:
            add_first_part_beside(dK, dV, dQ_i, P, dS, block, before, n, consumer, dQ)
        else:
            add_last_part_beside(dK, dV, dQ_i, P, dS, block, before, n, consumer, dQ)

    @cuda.jit(device=True, forceinline=True)
    def add_last_to_dQ(dQ_i, block, last, consumer, dQ):
        if PARTS_ARE_EQUAL or consumer == 0:
            add_first_part(dQ_i, block, last, consumer, dQ)
        else:
            add_last_part(dQ_i, block, last, consumer, dQ)

    # A consumer warpgroup. Lines 10 to 16 for its keys, and its part of dQ_i, of one tile of rows.
    @cuda.jit(device=True, forceinline=True)
    def visit_rows(dK, dV, dQ_i, L, S, dP, P, dS, block, visit, before, consumer, keys_not_finite, dQ):
        chip, barriers, n, row = block.chip, block.barriers, visit.number, first_row(visit)
        leads = lane_index() == uint32(0)
        first_key = int32(block.first_key + 64 * consumer)
        own_keys = uint32(consumer) * uint32(64 * ROW_BYTES)
        wait_for_Q(barriers, n)
        pairs = Pairs(row, int32(min(int32(row + BR), block.q_len) - 1), block.first_key, int32(BC))
        cut = not all_see(block.seeing, pairs)
        if L_BEFORE_S:
            load_stats(L, L_of(chip, n))
        if D_BEFORE_DP:
            wait_for_dO(barriers, n)
            begin_with_D(dP, delta_of(chip, n))
        multiply_rows(S, uint32(chip + own_keys), Q_tile(chip, n))  # line 10: S^T = K_j Q_i^T
        if D_BEFORE_DP:
            add_rows(dP, uint32(V_tile(chip) + own_keys), dO_tile(chip, n))
        else:
            wait_for_dO(barriers, n)
            multiply_rows(dP, uint32(V_tile(chip) + own_keys), dO_tile(chip, n))  # line 13: dP^T = V_j dO_i^T
        wait_for_S_beside_dP(S)
        not_finite = keys_not_finite
        if cut:
            wait_for_dP(dP)
            in_tile, keys_not_finite = clear_all_not_finite(chip, n, S, dP, keys_not_finite)
            not_finite |= in_tile
        if cut or not L_BEFORE_S:
            load_stats(L, L_of(chip, n))
        exponentiate(S, L, block.tau2)  # line 11: P = exp(tau S - L_i)
        if cut:
            mask(S, block.seeing, first_key, row)
        wait_for_dP(dP)
        multiply_P(dP, S, delta_of(chip, n))  # line 14: dS = P o (dP - D_i)
        if not_finite:
            mask(dP, block.seeing, first_key, row)
            bring_NaN(S, dP)
        round_weights(P, S)
        round_weights(dS, dP)
        wait_until_dS_is_empty(barriers, n)
        store_dS(dS_tile(chip, n), consumer, dS)
        publish_to_async()
        cuda.syncwarp(ALL_LANES)
        if leads:
            fill_dS(barriers, n)
        if n > 0 and has_dQ(int32(n - 1), consumer):
            add_to_dQ_beside(dK, dV, dQ_i, P, dS, block, before, n, consumer, dQ)
        else:
            add_product(dV, P, dO_tile(chip, n))  # line 12: dV_j = dV_j + P^T dO_i
            add_product(dK, dS, Q_tile(chip, n))  # line 16: dK_j = dK_j + dS^T Q_i
        wait_for_sum_beside_one(dV)
        if leads:
            release_dO(barriers, n)
        wait_for_sum(dK)
        if leads:
            release_Q(barriers, n)
        return keys_not_finite

    # Lines 7 to 16, for all tiles of rows with one that sees some key, of all heads that share the keys.
    @cuda.jit(device=True, forceinline=True)
    def consume(dK, dV, block, consumer, dQ):
        dQ_i = cuda.local.array(DQ_FLOATS, float32)
        L = cuda.local.array(STATS, float32)
        S, dP = cuda.local.array(SCORES, float32), cuda.local.array(SCORES, float32)
        P, dS = cuda.local.array(WEIGHTS, uint32), cuda.local.array(WEIGHTS, uint32)
        wait_for_K(block.barriers, 0)
        wait_for_V(block.barriers, 0)
        keys_not_finite = False
        visit = first_visit(block.visits)
        before = visit
        while visit.number < block.visits.count:
            keys_not_finite = visit_rows(
                dK, dV, dQ_i, L, S, dP, P, dS, block, visit, before, consumer, keys_not_finite, dQ
            )
            before = visit
            visit = after(visit, block.visits)
        if has_dQ(before.number, consumer):
            add_last_to_dQ(dQ_i, block, before, consumer, dQ)
        if lane_index() == uint32(0) and not in_order:
            wait_until_read()

    # The producer, one lane: K_j and V_j, and all Q_i and dO_i that the block visits.
    @cuda.jit(device=True, forceinline=True)
    def produce(block, Q, K, V, dO, L, delta, kv_head):
        chip, barriers, padded = block.chip, block.barriers, stat_rows(block.q_len)
        visit = first_visit(block.visits)
        while visit.number < block.visits.count:
            n, row, head = visit.number, first_row(visit), int32(block.first_head + visit.head)
            first = (uint64(uint32(head)) * uint64(uint32(padded)) + uint64(uint32(row))) * uint64(FLOAT_BYTES)
            if n == 0:
                expect_K(barriers, 0, KEYS_BYTES)
                load_tile(chip, BC, K, block.first_key, kv_head, K_full(barriers, 0))
            wait_until_Q_is_empty(barriers, n)
            expect_Q(barriers, n, ROWS_BYTES + STAT_BYTES)
            load_tile(Q_tile(chip, n), BR, Q, row, head, Q_full(barriers, n))
            load_run(L_of(chip, n), L + first, STAT_BYTES, Q_full(barriers, n))
            if n == 0:
                expect_V(barriers, 0, KEYS_BYTES)
                load_tile(V_tile(chip), BC, V, block.first_key, kv_head, V_full(barriers, 0))
            wait_until_dO_is_empty(barriers, n)
            expect_dO(barriers, n, ROWS_BYTES + STAT_BYTES)
            load_tile(dO_tile(chip, n), BR, dO, row, head, dO_full(barriers, n))
            load_run(delta_of(chip, n), delta + first, STAT_BYTES, dO_full(barriers, n))
            visit = after(visit, block.visits)

    # One thread, if the order is fixed. Line 15 in memory: dQ_i of all tiles that the block visits, of each once those
    # of the tile of keys before, which visits `before`, have been added.
    @cuda.jit(device=True, forceinline=True)
    def add_in_order(block, order, before, dQ):
        chip, barriers, number = block.chip, block.barriers, int32(cuda.blockIdx.y)
        first_that_waits = before.first_tile if before.tiles > 0 else int32(1)
        visit = first_visit(block.visits)
        while visit.number < block.visits.count:
            n, row, q_len = visit.number, first_row(visit), unknown(block.q_len)  # there are few registers
            head = uint32(block.first_head + visit.head)
            turn = turn_of(order, head, row, q_len)
            wait_until_dQ_is_full(barriers, n)
            if visit.tile >= first_that_waits:
                wait_for_turn(turn, number)
            add_parts_of_dQ(chip, n, dQ + uint64(head) * bytes_of_head(q_len), row, q_len)
            wait_until_read()
            release_dQ(barriers, n)
            pass_turn(turn, int32(number + 1))
            visit = after(visit, block.visits)

    # Which tiles of rows the block visits that has the tile of keys before.
    @cuda.jit(device=True, forceinline=True)
    def visits_before(limits, first_key, q_len, kv_len, group):
        first, end = int32(0), int32(0)
        if cuda.blockIdx.y > 0:
            rows = of_sequence(limits, cuda.blockIdx.z, kv_len, q_len)
            first, end = int32(first_of(rows, int32(first_key - BC))), int32(end_of(rows, int32(first_key - 1)))
        return visits_of(first, end, group)

    @cuda.jit(launch_bounds=(THREADS, 1), arch="sm_90a")
    def bwd_fa3(Q, K, V, dO, dK, dV, L, delta, dQ, q_len, kv_len, group, tau, tau2, limits, order):
        dynamic, barriers = cuda.shared.array(0, uint32, alignment=128), cuda.shared.array(BARRIERS, uint64)
        chip = uint32((shared_address(dynamic) + uint32(1023)) & uint32(0xFFFFFC00))

        # Line 5: the block owns K_j, V_j, dK_j and dV_j of one head. L is lse times log2 e, D = rowsum(dO o O). The
        # grid is (heads of K and V, tiles of keys, batch): the first keys, which most rows see where causal, of all
        # heads start first.
        kv_head, first_key = int32(head_index_across()), int32(cuda.blockIdx.y * BC)
        keys = int32(min(int32(BC), int32(kv_len - first_key)))
        if thread_index() == 0:
            init_barriers(shared_address(barriers))
        # Which rows see a key, in mirrored limits.
        seeing = of_block(limits, cuda.blockIdx.z, first_key, keys, kv_len, q_len)
        last_key = int32(first_key + keys - 1)
        visits = visits_of(first_seeing(seeing, first_key), end_seeing(seeing, last_key), group)
        first_head = int32(kv_head * group)
        block = KeyBlock(chip, shared_address(barriers), seeing, visits, first_head, first_key, q_len, tau2)
        cuda.syncthreads()

        # setmaxnreg counts where each role is one branch.
        if thread_index() < WARPGROUP:
            keep_registers()
            if thread_index() == 0:
                produce(block, Q, K, V, dO, global_address(L), global_address(delta), kv_head)
            if in_order and thread_index() == ADDER and visits.count > 0:
                before = visits_before(limits, first_key, q_len, kv_len, group)
                add_in_order(block, order, before, global_address(dQ))
        else:
            take_registers()
            consumer = int32(cuda.shfl_sync(ALL_LANES, int32(uint32(thread_index()) // uint32(WARPGROUP)), 0) - 1)
            # Line 7: dK_j = 0, dV_j = 0, in registers, not yet times tau.
            dK_j, dV_j = cuda.local.array(SUMS, float32), cuda.local.array(SUMS, float32)
            clear_sums(dK_j, dV_j)
            if visits.count > 0:
                consume(dK_j, dV_j, block, consumer, global_address(dQ))
            # Line 18: write dK_j, which is times tau, and dV_j, by way of where V_j and K_j were.
            write_keys(dV_j, ONE, V_tile(chip), consumer, dV, first_key, kv_head)
            sync_threads(ALL_CONSUMERS, CONSUMER_THREADS)
            write_keys(dK_j, tau, chip, consumer, dK, first_key, kv_head)
            if uint32(thread_index()) % uint32(WARPGROUP) == uint32(0):
                wait_until_read()

    return bwd_fa3
