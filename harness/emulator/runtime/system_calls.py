"""Runtime functions of the calls that kernels make to the CUDA runtime; a separate object file.

Malloc and free in kernels (CUDA C++ Programming Guide, "Dynamic Global Memory") have a heap, which is a variable of the
module, so it lasts from launch to launch. It is a sequence of blocks: the payload's size, a word that says whether the
block is in use, and the payload. Allocation begins where the last one ended, and merges free blocks that it passes.
Kernels with a heap run their blocks in order on one core.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.emulator.abi import layout as at
from harness.emulator.abi.context import CALL_MASK, CALL_SITE, CALL_WARP, FAULT_KIND, PRINTER, VARIABLES
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import call_host, fill_ones, load64, store64


def print_text(ctx: int, warp: int, site: int, mask: int) -> int:
    """Print for each active lane. Addresses of format and arguments are in ADDRESSES and DATA; counts go to DATA_2.

    Returns 1 on a fault, else 0.
    """
    store64(ctx + CALL_WARP, warp)
    store64(ctx + CALL_MASK, mask)
    store64(ctx + CALL_SITE, site)
    call_host(load64(ctx + PRINTER), ctx)
    return 1 if load64(ctx + FAULT_KIND) else 0


HEAD = at.HEAP_HEAD
USED, FREE = 0x68656C6475736564, 0x68656C6466726565
SMALLEST = 16
INVALID_FREE, OVERRUN = at.FAULT["invalid free"], at.FAULT["heap overrun"]
HEAP_ADDRESS = at.variable_address(0)
CORRUPT = -1


def allocate(ctx: int, warp: int, site: int, mask: int) -> int:
    """Allocate memory for each active lane: bytes in DATA, address or 0 in ADDRESSES. Returns 1 on a fault, else 0."""
    heap, limit = load64(load64(ctx + VARIABLES)), load64(load64(ctx + VARIABLES) + 8)
    if load64(heap) == 0:
        store64(heap, HEAD)
        store64(heap + HEAD, limit - 2 * HEAD)
        store64(heap + HEAD + 8, FREE)
    for lane in range(32):
        if (mask >> lane) & 1:
            place = find_place(heap, limit, load64(warp + at.DATA + 8 * lane))
            if place == CORRUPT:
                set_fault(ctx, OVERRUN, site, lane, 0, 0)
                return 1
            store64(warp + at.ADDRESSES + 8 * lane, HEAP_ADDRESS + place if place else 0)
    return 0


def find_place(heap: int, limit: int, wanted: int) -> int:
    """Offset of so many reserved bytes; 0 if there is no room, `CORRUPT` if a block's head is overwritten."""
    need = max(SMALLEST, (wanted + 15) & ~15)
    if wanted < 0 or need > limit:
        return 0
    start = load64(heap)
    place, wrapped = start, 0
    while True:
        if place >= limit:
            if wrapped:
                return 0
            place, wrapped = HEAD, 1
        if wrapped and place > start:
            return 0
        size = merged_size(heap, limit, place)
        if size < 0:
            return CORRUPT
        if load64(heap + place + 8) == FREE and size >= need:
            if size - need >= HEAD + SMALLEST:
                rest = place + HEAD + need
                store64(heap + rest, size - need - HEAD)
                store64(heap + rest + 8, FREE)
                size = need
            store64(heap + place, size)
            store64(heap + place + 8, USED)
            store64(heap, place)
            fill_ones(heap + place + HEAD, size)
            return place + HEAD
        place += HEAD + size


def merged_size(heap: int, limit: int, place: int) -> int:
    """Size of a block, which is merged with free ones behind it if it is free; negative if a head is overwritten."""
    size, kind = load64(heap + place), load64(heap + place + 8)
    if (kind != USED and kind != FREE) or size < 0 or place + HEAD + size > limit:
        return CORRUPT
    while kind == FREE and place + HEAD + size < limit and load64(heap + place + size + HEAD + 8) == FREE:
        size += HEAD + load64(heap + place + HEAD + size)
        store64(heap + place, size)
    return size


def free_memory(ctx: int, warp: int, site: int, mask: int) -> int:
    """Free the active lanes' memory, whose addresses are in ADDRESSES. Returns 1 on a fault, else 0."""
    heap, limit = load64(load64(ctx + VARIABLES)), load64(load64(ctx + VARIABLES) + 8)
    for lane in range(32):
        address = load64(warp + at.ADDRESSES + 8 * lane)
        if not (mask >> lane) & 1 or address == 0:
            continue
        place = address - HEAP_ADDRESS - HEAD
        if place < HEAD or place + HEAD >= limit or place & 15 or load64(heap + place + 8) != USED:
            set_fault(ctx, INVALID_FREE, site, lane, address, 0)
            return 1
        store64(heap + place + 8, FREE)
    return 0


EXPORTS: dict[str, Callable[..., int]] = {
    function.__name__: function for function in (print_text, allocate, free_memory)
}
"""Functions by name."""
