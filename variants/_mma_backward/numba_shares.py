"""What each warp of a block that owns keys has of each product, and where in shared memory its tiles lie.

The CUDA twin is shares.cuh: same names, same order.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, int32, uint32

from variants._mma import LINE_BYTES, LINE_ELEMENTS
from variants._mma_backward import DQ_COLUMNS
from variants._mma_backward.tile import PRODUCT_REGISTERS, BackwardMmaTile
from variants._mma_backward.tile import WARP_ROWS as DQ_ROWS

FLOAT_BYTES = 4


@functools.cache
def numba_shares(head_dim: int, tile: BackwardMmaTile, adds_dQ: bool, caps: bool = False) -> SimpleNamespace:
    """Constants, `share_of` and places on chip.

    `adds_dQ`: blocks add their parts to dQ in memory; `caps`: scores are capped.
    """
    D, BR, BC, WARPS = head_dim, tile.Br, tile.Bc, tile.warps
    ROW_BYTES = -(-D // LINE_ELEMENTS) * LINE_BYTES
    STEPS = -(-D // 16)  # of 16 elements in which products over a row are summed; zeros fill the last
    HANDS_WEIGHTS = tile.hands_weights  # P^T and dS^T go from warp to warp
    # What needs other warps' dS^T, or P^T, is summed one turn later, so that one barrier for each turn is enough.
    LAG = int(HANDS_WEIGHTS or adds_dQ)

    # S^T and dP^T: a warp's keys and rows.
    KEY_GROUPS = max(BC // 32, 16 * WARPS // BR) if HANDS_WEIGHTS else WARPS
    WARP_KEYS, WARP_ROWS = BC // KEY_GROUPS, BR // (WARPS // KEY_GROUPS)
    TM = WARP_KEYS // 16  # tiles of 16 keys
    # S^T and dP^T of so many are 64 registers; or 32, where rows are no whole lines, whose ends take some, and with a
    # cap.
    halves = caps or (HANDS_WEIGHTS and D % LINE_ELEMENTS != 0)
    FITTING_ROWS = (PRODUCT_REGISTERS // 2 if halves else PRODUCT_REGISTERS) // TM
    ROWS_AT_ONCE = min(WARP_ROWS, FITTING_ROWS)
    TN = ROWS_AT_ONCE // 8

    # dV_j and dK_j: a warp's keys and columns, in steps of 16. Where several share columns, each has whole lines.
    COLUMN_GROUPS = tile.column_groups(D)
    SUM_KEYS = BC // (WARPS // 2 // COLUMN_GROUPS) if HANDS_WEIGHTS else WARP_KEYS
    SUM_TILES = SUM_KEYS // 16
    SUM_STEPS = STEPS if COLUMN_GROUPS == 1 else 4
    SUMS = 1 if HANDS_WEIGHTS else 2  # of a warp: dV_j, dK_j, or one of them

    # dQ_i is 32 rows of so many columns per warp.
    ROW_GROUPS = BR // DQ_ROWS
    DQ_GROUPS = WARPS // ROW_GROUPS
    DQ_STEPS = -(-STEPS // DQ_GROUPS)
    DQ_TILES = -(-D // DQ_COLUMNS)

    # Shared memory.
    KEYS_BYTES = BC * ROW_BYTES  # of K_j, and of V_j
    ROWS_BYTES = BR * ROW_BYTES  # of Q_i, and of dO_i
    STAGES = tile.stages
    W_ROW_BYTES = -(-2 * BR // LINE_BYTES) * LINE_BYTES  # of dS^T and P^T, which have a row per key
    W_BYTES = BC * W_ROW_BYTES
    W_STAGE_BYTES = LAG * (2 if HANDS_WEIGHTS else 1) * W_BYTES  # dS^T, then P^T
    SHARED_ROWS = 2 * KEYS_BYTES  # where Q_i and dO_i of each stage begin
    SHARED_W = SHARED_ROWS + STAGES * 2 * ROWS_BYTES  # dS^T and P^T, of this turn and the one before
    SHARED_STATS = SHARED_W + 2 * W_STAGE_BYTES  # L_i and D_i of each stage

    # Of dV_j and dK_j: the warp's first key, its first step of columns, and 1 if it has dV_j, where it has one of them.
    @cuda.jit(device=True, forceinline=True)
    def share_of(thread):
        warp = uint32(thread) >> uint32(5)
        if not HANDS_WEIGHTS:
            return int32(warp * uint32(SUM_KEYS)), int32(0), int32(0)
        own = warp % uint32(WARPS // 2)
        key = int32(own // uint32(COLUMN_GROUPS) * uint32(SUM_KEYS))
        return key, int32(own % uint32(COLUMN_GROUPS) * uint32(SUM_STEPS)), int32(warp // uint32(WARPS // 2))

    # Q_i, and dO_i after it. `chip`: where shared memory begins, with K_j.
    @cuda.jit(device=True, forceinline=True)
    def Q_tile(chip, stage):
        return uint32(chip + SHARED_ROWS + uint32(stage) * uint32(2 * ROWS_BYTES))

    # L of row r of the tile; D of it is BR floats further.
    @cuda.jit(device=True, forceinline=True)
    def L_of(chip, stage, r):
        return uint32(chip + SHARED_STATS + uint32(stage) * uint32(2 * BR * FLOAT_BYTES) + uint32(r) * FLOAT_BYTES)

    # dS^T, and P^T after it.
    @cuda.jit(device=True, forceinline=True)
    def dS_tile(chip, turn):
        return uint32(chip + SHARED_W + (uint32(turn) & uint32(1)) * uint32(W_STAGE_BYTES))

    return SimpleNamespace(
        STEPS=STEPS,
        HANDS_WEIGHTS=HANDS_WEIGHTS,
        LAG=LAG,
        KEY_GROUPS=KEY_GROUPS,
        WARP_KEYS=WARP_KEYS,
        WARP_ROWS=WARP_ROWS,
        ROWS_AT_ONCE=ROWS_AT_ONCE,
        TM=TM,
        TN=TN,
        SUM_TILES=SUM_TILES,
        SUM_STEPS=SUM_STEPS,
        ROW_GROUPS=ROW_GROUPS,
        DQ_GROUPS=DQ_GROUPS,
        DQ_STEPS=DQ_STEPS,
        DQ_TILES=DQ_TILES,
        # In the layout of C: keys g and g + 8 of each tile of 16, rows 2 q and 2 q + 1 of each tile of 8. A local array
        # has one of these shapes.
        SCORES=(TM, TN, 4),
        SUMS=(SUMS, SUM_TILES, 2 * SUM_STEPS, 4),
        WEIGHTS=(TN // 2, TM, 4),  # A: keys, over 16 rows at a time
        KEYS_BYTES=KEYS_BYTES,
        ROWS_BYTES=ROWS_BYTES,
        STAGES=STAGES,
        W_ROW_BYTES=W_ROW_BYTES,
        W_BYTES=W_BYTES,
        SHARED_STATS=SHARED_STATS,
        share_of=share_of,
        Q_tile=Q_tile,
        L_of=L_of,
        dS_tile=dS_tile,
    )
