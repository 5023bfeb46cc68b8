"""Locations of the blocks of a cluster in the memory of the worker that runs them.

Blocks of a cluster are contiguous: shared memory with a stride of `SHARED_PITCH`, warps with a stride of `WARP_PITCH`.
A *place* is an offset in the shared memory of all of them; a warp's *number* is its index among all warps of the
cluster. Without clusters, these are the offset and the index within the block.
"""

from __future__ import annotations

from harness.emulator.abi import context
from harness.emulator.abi import layout as at
from harness.emulator.abi.raw_memory import load32, load64

RANK_SHIFT = at.RANK_SHIFT
OFFSET_IN_BLOCK = (1 << RANK_SHIFT) - 1
WINDOW_BITS, SHARED_WINDOW = at.WINDOW_BITS, at.SHARED_WINDOW
STRAY, ENDED = -1, -2


def warp_number(ctx: int) -> int:
    """Number of the current warp in its cluster."""
    return int(load64(ctx + context.FIRST_WARP) + load64(ctx + context.WARP_INDEX))


def own_place(ctx: int, offset: int) -> int:
    """The place of an offset in the current block's own shared memory."""
    return int(load64(ctx + context.SHARED_BASE) - load64(ctx + context.SHARED_ORIGIN) + offset)


def place_of(ctx: int, address: int, size: int) -> int:
    """The place of `size` bytes of shared memory at a generic address.

    `STRAY` if it is not shared memory; `ENDED` if it belongs to another block, all of whose warps have returned.
    """
    offset = address & at.OFFSET_MASK
    own = load64(ctx + context.CLUSTER_RANK)
    rank = own
    if load64(ctx + context.TAGGED):
        rank = offset >> RANK_SHIFT
        offset &= OFFSET_IN_BLOCK
    if address >> WINDOW_BITS != SHARED_WINDOW or rank >= load64(ctx + context.CLUSTER_SIZE):
        return STRAY
    if offset + size > load64(ctx + context.SHARED_SIZE):
        return STRAY
    if rank != own and load32(load64(ctx + context.LIVE_WARPS) + 4 * rank) == 0:
        return ENDED
    return int(rank * load64(ctx + context.SHARED_PITCH) + offset)


def address_of(ctx: int, place: int) -> int:
    """The generic address of a place."""
    address = place
    if load64(ctx + context.TAGGED):
        rank = rank_of_place(ctx, place)
        address = (rank << RANK_SHIFT) | (place - rank * load64(ctx + context.SHARED_PITCH))
    return int(at.SHARED_ADDRESS | address)


def rank_of_place(ctx: int, place: int) -> int:
    """Rank of the block that contains a place."""
    return place // load64(ctx + context.SHARED_PITCH) if load64(ctx + context.CLUSTER_SIZE) > 1 else 0
