"""Products of a warpgroup, and what goes to memory. The CUDA twin is products.cuh: same names, same order.

Sums and weights are local arrays, which stay in registers while every index of them is a constant.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, int32, uint32, uint64
from numba.cuda import types
from numba.cuda.extending import intrinsic

from variants._hopper.numba_hopper import (
    WARPGROUP,
    add_run,
    begin_products,
    commit_products,
    numba_hopper,
    publish_to_async,
    store_matrices,
    sync_threads,
    wait_for_products,
    wait_until_read,
)
from variants._hopper.numba_products import numba_products as products_of_rows
from variants._hopper.numba_products import numba_products_across
from variants._mma.numba_assembly import U32, assembly
from variants._mma.numba_mma import ALL_LANES, C_FRAGMENT, numba_mma, thread_index
from variants._mma.numba_unrolled import unrolled
from variants.attention_backward.fa3 import CONSUMERS, BackwardWarpgroupTile
from variants.attention_backward.fa3.numba_chip import ALL_CONSUMERS, FLOAT_BYTES, FRAGMENT, KEY_BYTES, numba_chip

# The tile of dS^T is transposed by the product, which sums over its keys.
DS_STRIDES = (8 * KEY_BYTES // 16) << 32 | 1 << 62


@intrinsic
def store_floats(typing_context, at, c):
    return assembly("st.shared.v4.f32 [$0], {$1, $2, $3, $4};", types.void(U32, C_FRAGMENT), ordered=True)


@functools.cache
def numba_products(head_dim: int, tile: BackwardWarpgroupTile, dtype: str, in_order: bool) -> SimpleNamespace:
    """Device functions for these compile-time parameters. `in_order`: see `order`."""
    places = numba_chip(head_dim, tile)
    D, BR, BC, dQ_place = places.D, tile.Br, tile.Bc, places.dQ_place
    HALVE_ROWS, HALVE_COLUMNS = places.HALVE_ROWS, places.HALVE_COLUMNS
    DS_BOX_BYTES, WARP_DQ_BYTES = places.DS_BOX_BYTES, places.WARP_DQ_BYTES
    wait_until_dQ_is_empty, fill_dQ = places.dQ.wait_until_empty, places.dQ.fill
    ROWS_DQ_BYTES = places.FRAGMENTS * FRAGMENT * FLOAT_BYTES  # 16 rows
    hopper, products, packed = numba_hopper(D), products_of_rows(BR, head_dim, dtype), numba_mma(dtype).packed
    COLUMNS, ROW_BYTES = hopper.COLUMNS, hopper.ROW_BYTES
    store_tile, piece_of_row = hopper.store_tile, hopper.piece_of_row
    along_rows, across_rows = hopper.along_rows, hopper.across_rows
    steps_along, steps_across = hopper.steps_along, hopper.steps_across
    multiply, multiply_add_along, multiply_add = products.multiply, products.multiply_add_along, products.multiply_add
    DEPTHS = (head_dim + 15) // 16  # products that sum over a row

    @cuda.jit(device=True, forceinline=True)
    def multiply_further(k, X, A, B):
        multiply_add_along(X, A + steps_along(BC, k + 1), B + steps_along(BR, k + 1))

    multiply_all_further = unrolled(DEPTHS - 1, multiply_further)

    # X^T = Y Z_i^T over a row's elements, for the warpgroup's keys Y, rows of a tile of BC, and all rows Z_i; under
    # way.
    @cuda.jit(device=True, forceinline=True)
    def multiply_rows(X, keys, rows):
        A, B = along_rows(keys), along_rows(rows)
        begin_products()
        multiply(X, A, B)
        multiply_all_further(X, A, B)
        commit_products()

    # X^T = X^T + Y Z_i^T; under way.
    @cuda.jit(device=True, forceinline=True)
    def add_rows(X, keys, rows):
        A, B = along_rows(keys), along_rows(rows)
        begin_products()
        multiply_add_along(X, A, B)
        multiply_all_further(X, A, B)
        commit_products()

    @cuda.jit(device=True, forceinline=True)
    def add_16_rows(k, dY, W, B):
        multiply_add(dY, (W[4 * k], W[4 * k + 1], W[4 * k + 2], W[4 * k + 3]), B + steps_across(k))

    add_all_rows = unrolled(BR // 16, add_16_rows)

    # dY += W^T Z_i, over rows; under way.
    @cuda.jit(device=True, forceinline=True)
    def add_product(dY, W, rows):
        B = across_rows(rows, BR)
        begin_products()
        add_all_rows(dY, W, B)
        commit_products()

    # Bytes of dQ of one head, in fragments.
    @cuda.jit(device=True, forceinline=True)
    def bytes_of_head(q_len):
        return uint64(uint32(q_len + 15) >> uint32(4)) * uint64(ROWS_DQ_BYTES)

    # Device functions for a consumer's part of dQ_i, of so many columns.
    def part_of_dQ(columns: int) -> SimpleNamespace:
        across = numba_products_across(columns, dtype)
        multiply_across, multiply_add_across = across.multiply_across, across.multiply_add_across
        BYTES = columns // 8 * FRAGMENT * FLOAT_BYTES

        @cuda.jit(device=True, forceinline=True)
        def multiply_further_keys(k, dQ, A, B):
            multiply_add_across(dQ, A + uint64((k + 1) * KEY_BYTES), B + steps_across(k + 1))

        multiply_all_further_keys = unrolled(BC // 16 - 1, multiply_further_keys)

        # The consumer's part of dQ_i = dS K_j, over all keys: of its 64 rows, which are a box of the tile of dS^T;
        # under way.
        @cuda.jit(device=True, forceinline=True)
        def multiply_dS_K(dQ, dS_tile, K_tile, consumer):
            rows = uint32(uint32(consumer) * uint32(DS_BOX_BYTES if HALVE_ROWS else 0))
            keys = uint32(uint32(consumer) * uint32(BC * ROW_BYTES if HALVE_COLUMNS else 0))
            A = uint64((uint32(dS_tile + rows) & uint32(0x3FFFF)) >> uint32(4)) | uint64(DS_STRIDES)
            B = across_rows(uint32(K_tile + keys), BC)
            begin_products()
            multiply_across(dQ, A, B)
            multiply_all_further_keys(dQ, A, B)
            commit_products()

        @cuda.jit(device=True, forceinline=True)
        def store_8_columns(j, dQ, lane_place):
            c = dQ[4 * j], dQ[4 * j + 1], dQ[4 * j + 2], dQ[4 * j + 3]
            store_floats(uint32(lane_place + uint32(j * FRAGMENT * FLOAT_BYTES)), c)

        store_all_columns = unrolled(columns // 8, store_8_columns)

        # The warp's part, 16 rows of the `n`-th tile, from `first_row` on -> its place on chip, and from there added to
        # dQ of the head.
        @cuda.jit(device=True, forceinline=True)
        def add_dQ(dQ, chip, barriers, n, dQ_head, first_row, q_len):
            thread = uint32(uint32(thread_index()) - uint32(WARPGROUP))
            lane, warp = thread & uint32(31), thread // uint32(32)
            rows_of_16 = warp if HALVE_ROWS else warp % uint32(4)
            row = int32(first_row + int32(rows_of_16 * uint32(16)))
            place = dQ_place(chip, warp)
            if lane == uint32(0):
                if in_order:
                    wait_until_dQ_is_empty(barriers, n)
                else:
                    wait_until_read()  # what was there before
            cuda.syncwarp(ALL_LANES)
            store_all_columns(dQ, uint32(place + lane * uint32(16)))
            publish_to_async()
            cuda.syncwarp(ALL_LANES)
            if in_order:
                if lane == uint32(0):
                    fill_dQ(barriers, n)
            elif lane == uint32(0) and row < q_len:
                first = uint64(warp // uint32(4) * uint32(WARP_DQ_BYTES if HALVE_COLUMNS else 0))
                add_run(dQ_head + uint64(uint32(row) >> uint32(4)) * uint64(ROWS_DQ_BYTES) + first, place, BYTES)

        return SimpleNamespace(
            multiply_dS_K=multiply_dS_K,
            add_dQ=add_dQ,
            wait_for_dQ=wait_for_products(0, columns // 2),
            wait_for_dQ_beside_two=wait_for_products(2, columns // 2),
        )

    TAKE_TURNS, WARPS_WITH_DQ, WARPS_OF_ROWS = places.TAKE_TURNS, places.WARPS_WITH_DQ, WARPGROUP // 32
    FIRST_BYTES, LAST_BYTES = WARP_DQ_BYTES, places.LAST_COLUMNS // 8 * FRAGMENT * FLOAT_BYTES

    @cuda.jit(device=True, forceinline=True)
    def add_both_halves(part, chip, to, parts):
        if int32(part) < parts:
            to_part = to + uint64(part * ROWS_DQ_BYTES)
            add_run(to_part, dQ_place(chip, part), FIRST_BYTES)
            add_run(to_part + uint64(FIRST_BYTES), dQ_place(chip, part + WARPS_OF_ROWS), LAST_BYTES)

    add_all_halves = unrolled(BR // 16, add_both_halves)

    # All parts of the `n`-th tile, from `first_row` on, from their places on chip -> added to dQ of the head; by one
    # thread.
    @cuda.jit(device=True, forceinline=True)
    def add_parts_of_dQ(chip, n, dQ_head, first_row, q_len):
        parts = int32(uint32(min(int32(BR), int32(q_len - first_row + 15))) // uint32(16))  # of 16 rows
        to = dQ_head + uint64(uint32(first_row) // uint32(16)) * uint64(ROWS_DQ_BYTES)
        if HALVE_COLUMNS:
            add_all_halves(chip, to, parts)
        else:
            first_warp = uint32(n) % uint32(CONSUMERS) * uint32(WARPS_WITH_DQ) if TAKE_TURNS else uint32(0)
            add_run(to, dQ_place(chip, first_warp), int32(parts * FIRST_BYTES))

    @cuda.jit(device=True, forceinline=True)
    def round_and_store(k, dY, factor, rows, row, half):
        y = (
            packed(dY[8 * k] * factor, dY[8 * k + 1] * factor),
            packed(dY[8 * k + 2] * factor, dY[8 * k + 3] * factor),
            # A row may end in the pair of pieces.
            packed(dY[8 * k + 4] * factor, dY[8 * k + 5] * factor) if 16 * k + 8 < head_dim else uint32(0),
            packed(dY[8 * k + 6] * factor, dY[8 * k + 7] * factor) if 16 * k + 8 < head_dim else uint32(0),
        )
        box, piece = 16 * k // COLUMNS, uint32(2 * k % (COLUMNS // 8)) + half
        store_matrices(uint32(rows + uint32(box * BC * ROW_BYTES) + piece_of_row(row, piece)), y)

    round_and_store_all = unrolled(DEPTHS, round_and_store)

    # The warpgroup's keys of dK_j or dV_j, times `factor`, rounded to 16 bits -> its rows of the tile -> memory.
    @cuda.jit(device=True, forceinline=True)
    def write_keys(dY, factor, tile, consumer, tensor_map, first_key, kv_head):
        rows = uint32(tile + uint32(consumer) * uint32(64 * ROW_BYTES))
        thread = uint32(thread_index()) % uint32(WARPGROUP)
        row = uint32(thread // uint32(32) * uint32(16) + thread % uint32(16))
        round_and_store_all(dY, factor, rows, row, uint32(thread % uint32(32) // uint32(16)))
        publish_to_async()
        sync_threads(int32(ALL_CONSUMERS + 1 + consumer), WARPGROUP)
        if thread == uint32(0):
            store_tile(rows, BC, tensor_map, int32(first_key + 64 * consumer), kv_head)

    return SimpleNamespace(
        multiply_rows=multiply_rows,
        add_rows=add_rows,
        add_product=add_product,
        bytes_of_head=bytes_of_head,
        add_parts_of_dQ=add_parts_of_dQ,
        first_part=part_of_dQ(places.FIRST_COLUMNS),
        last_part=part_of_dQ(places.LAST_COLUMNS),
        write_keys=write_keys,
    )
