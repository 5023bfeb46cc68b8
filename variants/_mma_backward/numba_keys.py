"""Gradients of attention on tensor cores: Dao 2023, arXiv 2307.08691, algorithm 2, lines 5 to 19, whose numbers are
below. What surrounds them is in numba_ends.py, what a tile of rows takes in numba_scoring.py.

The CUDA twin is keys.cu: same names, same order.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from harness import Problem
from variants._features import has_spans, has_varlen, rows_aligned_to
from variants._features.numba_dropout import numba_dropout
from variants._features.numba_sequences import numba_sequences
from variants._features.numba_tile_order import NumbaRule
from variants._mma.numba_mma import (
    CHUNK_BYTES,
    commit_copies,
    copy_async,
    global_address,
    keep_loop,
    load_shared,
    shared_address,
    store_shared,
    thread_index,
    unknown,
    wait_for_copies,
)
from variants._mma.numba_strided_tiles import layout_tiles
from variants._mma.numba_tiles import STORED_BYTES
from variants._mma_backward import BackwardMmaTile, numba_terms
from variants._mma_backward.numba_anew import copies_anew
from variants._mma_backward.numba_limits import numba_limits
from variants._mma_backward.numba_not_finite import numba_not_finite
from variants._mma_backward.numba_products import NOTHING, numba_products
from variants._mma_backward.numba_rows_of_sequence import numba_rows_of_sequence
from variants._mma_backward.numba_scoring import KeyBlock, numba_scoring, query_heads
from variants._mma_backward.numba_seen import Pairs, numba_seen
from variants._mma_backward.numba_shares import FLOAT_BYTES, numba_shares
from variants._mma_backward.numba_turns import Turn, numba_turns
from variants._tiles.visits import numba_rule

NOT_A_NUMBER = np.uint32(0x7FFFFFFF)
NOTHINGS = (NOTHING, NOTHING, NOTHING, NOTHING)
load_word, store_word, store_chunk = load_shared(4), store_shared(4), store_shared(16)
copy_word, wait_for_all = copy_async(4), wait_for_copies(0)


class RowsInMemory(NamedTuple):
    """What a turn loads of."""

    Q: Any
    dO: Any
    L: Any
    delta: Any


# Where dQ is summed.
@cuda.jit(device=True, forceinline=True)
def place_of_dQ(dQ):
    return global_address(dQ[0])


@cuda.jit(device=True, forceinline=True)
def nowhere(dQ):
    return uint64(0)


def keys_kernel(problem: Problem, tile: BackwardMmaTile, adds_dQ: bool) -> Any:
    """The kernel `bwd_mma_of_keys`; `adds_dQ`: blocks add their parts to dQ in memory."""
    p = problem
    rule, aligned = numba_rule(p, tile), rows_aligned_to(p)
    of_scores = has_spans(p), p.dropout > 0, numba_terms(p), rule
    return _keys_kernel(p.head_dim, tile, p.dtype, adds_dQ, *of_scores, aligned, has_varlen(p))


@functools.cache
def _keys_kernel(
    head_dim: int,
    tile: BackwardMmaTile,
    dtype: str,
    adds_dQ: bool,
    spans: bool,
    drops: bool,
    terms: tuple[str, ...],
    rule: NumbaRule | None,
    aligned: int | None,
    varlen: bool,
) -> Any:
    D, BR, BC = head_dim, tile.Br, tile.Bc
    tiles, clearing = layout_tiles(D, tile.warps, dtype, aligned, varlen), numba_not_finite(D, dtype)
    shares, seen, limits_ = numba_shares(D, tile, adds_dQ), numba_seen(spans), numba_limits(spans, BC)
    products = numba_products(D, tile, dtype, adds_dQ, spans)
    scoring = numba_scoring(D, tile, dtype, adds_dQ, spans, drops, terms, rule, varlen)
    turns = numba_turns(tile, shares.LAG, rule)
    THREADS, copy_tile, store_tile = tiles.THREADS, tiles.copy_tile, tiles.store_tile
    copied_not_finite, copy_tile_anew = tiles.copied_not_finite, copies_anew(D, tile, dtype, aligned)
    rows_at, stride_of = tiles.rows_at, tiles.stride_of
    clear_not_finite, move_not_finite = clearing.clear_not_finite, clearing.move_not_finite
    HANDS_WEIGHTS, LAG, STAGES = shares.HANDS_WEIGHTS, shares.LAG, shares.STAGES
    KEYS_BYTES, ROWS_BYTES, SHARED_STATS = shares.KEYS_BYTES, shares.ROWS_BYTES, shares.SHARED_STATS
    SUMS, LAST_SUM, share_of = shares.SUMS, shares.SUMS[0] - 1, shares.share_of
    Q_tile, L_of = shares.Q_tile, shares.L_of
    of_block, first_seeing, end_seeing = limits_.of_block, limits_.first, limits_.end
    all_see, clear_sums, gather = seen.all_see, products.clear_sums, products.gather
    score, sum_handed, factor = scoring.score, scoring.sum_handed, numba_dropout(drops).factor
    dQ_place = place_of_dQ if adds_dQ else nowhere
    count, first_row_of, note, scores = turns.count, turns.first_row, turns.note, turns.scores
    after, before, room, copy_entry = turns.after, turns.before, turns.room, turns.copy_entry
    pairs, compute, hides_some = turns.pairs, turns.compute, turns.hides_some
    NUMBERS, FLAG = turns.NUMBERS + 1 + varlen, turns.NUMBERS * FLOAT_BYTES
    sequence_at, has_rows, first_of, _, _, _ = numba_sequences(varlen)
    own_rows, head_of = numba_rows_of_sequence(varlen), query_heads(varlen)
    note_rows, first_row_in_Q, kv_head_across = own_rows.note, own_rows.first_row, own_rows.head_across

    # Lines 8 and 9: load Q_i, dO_i, L_i, D_i.
    @cuda.jit(device=True, forceinline=True)
    def copy_rows(rows_of, block, turn):
        rows = int32(min(int32(BR), int32(block.q_len - turn.first_row)))
        row = int32(first_row_in_Q(block.noted) + turn.first_row)
        first = head_of(block, turn) * uint64(uint32(block.all_rows)) + uint64(uint32(row))
        stage = int32(uint32(turn.number) % uint32(STAGES))
        Q_i = Q_tile(block.chip, stage)
        place, head = first * uint64(D * STORED_BYTES), uint32(cuda.blockIdx.x * block.group + turn.head)
        Q_rows = rows_at(rows_of.Q, place, cuda.blockIdx.z, head, row)
        copy_tile_anew(Q_i, Q_rows, stride_of(rows_of.Q), rows)
        dO_rows = rows_at(rows_of.dO, place, cuda.blockIdx.z, head, row)
        copy_tile_anew(uint32(Q_i + ROWS_BYTES), dO_rows, stride_of(rows_of.dO), rows)
        thread = thread_index()
        if thread < BR:
            L_at = L_of(block.chip, stage, thread)
            of_row = first * uint64(FLOAT_BYTES) + uint64(uint32(thread) * uint32(FLOAT_BYTES))
            copy_word(L_at, global_address(rows_of.L) + of_row, thread < rows)
            copy_word(uint32(L_at + BR * FLOAT_BYTES), global_address(rows_of.delta) + of_row, thread < rows)

    # In a tile with a row that does not see all keys, Q_i and dO_i must be finite: products of 0 are not. L_i is NaN
    # where they are not, and with it what the row adds where it sees a key.
    @cuda.jit(device=True, forceinline=True)
    def clear_rows_not_finite(chip, turn):
        stage = int32(uint32(turn.number) % uint32(STAGES))
        Q_i = Q_tile(chip, stage)
        dO_i = uint32(Q_i + ROWS_BYTES)
        if cuda.syncthreads_or(copied_not_finite(Q_i, BR) | copied_not_finite(dO_i, BR)) != 0:
            r = thread_index()
            if r < BR:
                in_Q, in_dO = clear_not_finite(Q_i, r), clear_not_finite(dO_i, r)
                if in_Q or in_dO:
                    store_word(L_of(chip, stage, r), NOT_A_NUMBER)
            cuda.syncthreads()

    # Where the block's keys begin among those of all heads, in bytes; and in K, V, dK or dV.
    @cuda.jit(device=True, forceinline=True)
    def place_of_keys(first_key, all_keys):
        first = uint64(kv_head_across()) * uint64(uint32(all_keys)) + uint64(uint32(first_key))
        return first * uint64(D * STORED_BYTES)

    @cuda.jit(device=True, forceinline=True)
    def keys_at(array, place, first_key):
        return rows_at(array, place, cuda.blockIdx.z, cuda.blockIdx.x, first_key)

    # Lines 10 to 16. Half of eight warps score while the others sum: exponentials, and products, at the same time.
    @cuda.jit(device=True, forceinline=True)
    def score_and_sum(sums, block, turn, numbers, all_seen, hidden, dQ):
        if HANDS_WEIGHTS:
            scores_in = int32(thread_index() >= THREADS // 2)
            for half in range(int32(0), unknown(int32(2)), int32(1)):
                keep_loop()
                if half == scores_in:
                    if scores(numbers, turn):
                        score(sums, block, turn, all_seen, hidden)
                elif turn.number > 0:
                    sum_handed(sums, block, before(numbers, turn), dQ)
        else:
            if scores(numbers, turn):
                score(sums, block, turn, all_seen, hidden)
            if LAG and turn.number > 0:
                sum_handed(sums, block, before(numbers, turn), dQ)

    # Of `layout` and `gradients` there is nothing to ask: arrays know their strides.
    @cuda.jit(launch_bounds=(THREADS, tile.blocks_per_sm))
    def bwd_mma_of_keys(
        Q, K, V, dO, L, delta, dK, dV, q_len, kv_len, group, tau, tau2, limits, dropout, dQ, terms, order,
        sequences, layout, gradients,
    ):  # fmt: skip
        K_tile = shared_address(cuda.shared.array(0, uint32, alignment=128))
        V_tile = uint32(K_tile + KEYS_BYTES)
        numbers = shared_address(cuda.shared.array(NUMBERS, uint32))
        keys_not_finite, noted, bits = uint32(numbers + uint32(FLAG)), uint32(numbers + uint32(FLAG + 4)), room()

        # Line 5: the block owns K_j, V_j, dK_j and dV_j of one head. L is lse times log2 e, D = rowsum(dO o O), tau2 is
        # tau times log2 e, or what S is multiplied by before score terms. The grid is (heads of K and V, tiles of keys,
        # batch): the first keys, which most rows see where causal, of all heads start first.
        # Rows and keys are counted from the beginning of the sequence.
        first_key, all_rows, all_keys = int32(cuda.blockIdx.y * BC), q_len, kv_len
        own = sequence_at(sequences, cuda.blockIdx.z, first_key, kv_len, q_len)
        if not has_rows(own):
            return
        kv_len, q_len = own.q_len, own.kv_len  # it is mirrored
        keys = int32(min(int32(BC), int32(kv_len - first_key)))
        seeing = of_block(limits, cuda.blockIdx.z, first_key, keys, kv_len, q_len)
        block = KeyBlock(
            K_tile, seeing, keys_not_finite, first_key, q_len, group, tau2, dropout, terms, kv_len, all_rows, noted
        )
        rows_of, sums_of = RowsInMemory(Q, dO, L, delta), dQ_place(dQ)
        if thread_index() == 0:
            last_key = int32(first_key + keys - 1)
            note(numbers, first_seeing(seeing, first_key), end_seeing(seeing, last_key), group, order, q_len)
            note_rows(noted, own)

        # Columns beyond D belong to the last step of a product: zeros, once and for all.
        if D % 16 != 0:
            for chunk in range(thread_index(), int32(SHARED_STATS // CHUNK_BYTES), int32(cuda.blockDim.x)):
                store_chunk(K_tile + uint32(chunk) * uint32(CHUNK_BYTES), NOTHINGS)
        cuda.syncthreads()

        # Line 6: load K_j, V_j, if any row sees one of the keys. Line 7: dK_j = 0, dV_j = 0, in registers, not yet
        # times tau.
        sums = cuda.local.array(SUMS, float32)
        clear_sums(sums)
        turn = Turn(int32(0), int32(0), first_row_of(numbers))
        if count(numbers) > 0:
            own_key = int32(first_of(own, first_key))
            first_kv = place_of_keys(own_key, all_keys)
            copy_tile(K_tile, BC, keys_at(K, first_kv, own_key), stride_of(K), keys)
            copy_tile(V_tile, BC, keys_at(V, first_kv, own_key), stride_of(V), keys)
            copy_rows(rows_of, block, turn)
            commit_copies()
            wait_for_all()
            found = cuda.syncthreads_or(copied_not_finite(K_tile, BC)) != 0
            if thread_index() == 0:
                store_word(keys_not_finite, uint32(found))
            if found and thread_index() < BC:
                move_not_finite(K_tile, V_tile, thread_index())

        # Line 8: for all tiles of rows with one that sees some key, of all heads that share the keys.
        while turn.number < count(numbers):
            # Q_i and dO_i have come, and nobody reads the tiles any more that the next copies overwrite, nor weights of
            # two turns before.
            last_row = int32(min(int32(turn.first_row + BR), q_len) - 1)
            hidden = pairs(numbers, bits, turn)
            all_seen = all_see(seeing, Pairs(turn.first_row, last_row, first_key, int32(BC)))
            all_seen = all_seen and not hides_some(hidden)
            wait_for_all()
            if not all_seen and scores(numbers, turn):
                clear_rows_not_finite(K_tile, turn)
            else:
                cuda.syncthreads()
            if int32(turn.number + 1) < int32(count(numbers) - LAG):
                copy_rows(rows_of, block, after(numbers, turn))
            copy_entry(numbers, turn, order, q_len)
            commit_copies()
            compute(hidden, bits, numbers, turn, block, order)
            all_seen = all_seen and load_word(keys_not_finite) == 0
            score_and_sum(sums, block, turn, numbers, all_seen, hidden, sums_of)
            turn = after(numbers, turn)

        # Line 18: write dK_j, which is times tau, and dV_j, gathered where K_j and V_j were.
        cuda.syncthreads()
        if HANDS_WEIGHTS:
            of_dV = share_of(thread_index())[2] != 0
            gather(V_tile if of_dV else K_tile, sums[0], factor(dropout) if of_dV else tau)
        else:
            gather(K_tile, sums[LAST_SUM], tau)
            gather(V_tile, sums[0], factor(dropout))
        cuda.syncthreads()
        key = unknown(first_key)
        stored, own_key = int32(min(int32(BC), int32(kv_len - key))), int32(first_of(own, key))
        end_kv = place_of_keys(own_key, all_keys)
        store_tile(keys_at(dK, end_kv, own_key), stride_of(dK), K_tile, stored)
        store_tile(keys_at(dV, end_kv, own_key), stride_of(dV), V_tile, stored)

    return bwd_mma_of_keys
