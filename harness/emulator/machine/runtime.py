"""What generated code calls and what calls generated code: address translation, copies, blocks, warps and barriers.

Written in the subset of Python that Numba compiles for the CPU. `native.py` takes the LLVM IR that Numba makes of it,
so that neither Numba's dispatch nor the interpreter is on the path. All addresses are plain integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from harness.emulator.machine import layout as at
from harness.emulator.memory.raw import (
    fill_ones,
    load8,
    load16,
    load32,
    load64,
    store8,
    store16,
    store32,
    store64,
)
from harness.emulator.memory.sectors import insert_sector


@intrinsic  # type: ignore[untyped-decorator]
def call_warp(typingctx: Any, entry: Any, context_address: Any, warp: Any) -> Any:
    """Run one warp's generated code until it exits, waits or faults."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i64 = ir.IntType(64)
        function = ir.FunctionType(ir.IntType(32), (i64, i64))
        pointer = builder.inttoptr(args[0], function.as_pointer())
        return builder.zext(builder.call(pointer, args[1:]), i64)

    return types.int64(types.int64, types.int64, types.int64), codegen


# Slots of the context, as module constants that Numba folds
(
    SHARED_BASE, SHARED_SIZE, LOCAL_BASE, LOCAL_SIZE, PARAMS, PARAMS_SIZE, COUNTERS, BUFFER_COUNT, BUFFERS,
    CTAID_X, CTAID_Y, CTAID_Z, NTID_X, NTID_Y, NTID_Z, NCTAID_X, NCTAID_Y, NCTAID_Z, WARP_INDEX, BLOCK,
    STEPS, STEP_LIMIT, WARP_INSTRUCTIONS, LANE_INSTRUCTIONS, STOP_AT,
    FAULT_KIND, FAULT_SITE, FAULT_LANE, FAULT_ADDRESS, FAULT_SIZE, FAULT_BLOCK, FAULT_WARP, FAULT_MASK,
    WARPS, WARP_COUNT, WARP_BYTES, THREADS, ENTRY, BARRIERS, LOCALS, ORDER, SEED, CLEAR_REGISTERS,
    VARIABLES, VARIABLE_COUNT,
) = (8 * slot for slot in range(at.CONTEXT_SLOTS))  # fmt: skip

SPACE_SHARED = at.SPACES["shared"]
SPACE_LOCAL = at.SPACES["local"]
OUT_OF_BOUNDS = at.FAULT["out of bounds"]
MISALIGNED = at.FAULT["misaligned"]
DEADLOCK = at.FAULT["barrier deadlock"]
OFFSET_MASK = (1 << at.WINDOW_BITS) - 1


@njit(inline="always")  # type: ignore[untyped-decorator]
def set_fault(ctx: int, kind: int, site: int, lane: int, address: int, size: int) -> None:
    """Record the first fault of this worker; the caller returns."""
    store64(ctx + FAULT_KIND, kind)
    store64(ctx + FAULT_SITE, site)
    store64(ctx + FAULT_LANE, lane)
    store64(ctx + FAULT_ADDRESS, address)
    store64(ctx + FAULT_SIZE, size)
    store64(ctx + FAULT_BLOCK, load64(ctx + BLOCK))
    store64(ctx + FAULT_WARP, load64(ctx + WARP_INDEX))


# Functions that generated code calls ----------------------------------------------------------------------------------


def fault(ctx: int, warp: int, kind: int, site: int, mask: int) -> int:
    """Record a fault that generated code found itself; the lane is the lowest in `mask`."""
    lane = 0
    while lane < 31 and not (mask >> lane) & 1:
        lane += 1
    set_fault(ctx, kind, site, lane, 0, 0)
    store64(ctx + FAULT_MASK, mask & 0xFFFFFFFF)
    return 1


def translate(ctx: int, warp: int, site: int, space: int, mask: int, size: int) -> int:
    """Virtual addresses of the active lanes -> host addresses, checked and counted. 1 on a fault, else 0."""
    window = -1
    base = 0
    limit = 0
    start = 0
    buffer = -1
    stride = 0
    distinct = 0
    lanes = 0
    words = 1 if size < 4 else size >> 2
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        address = load64(warp + at.ADDRESSES + 8 * lane)
        if space == SPACE_SHARED:
            address = (address & 0xFFFFFFFF) | (at.SHARED_WINDOW << at.WINDOW_BITS)
        elif space == SPACE_LOCAL:
            address = (address & 0xFFFFFFFF) | (at.LOCAL_WINDOW << at.WINDOW_BITS)
        here = address >> at.WINDOW_BITS
        if here != window:
            if lanes > 0 and buffer >= 0:
                count(ctx, site, buffer, 0, lanes * size, distinct * words if stride else distinct)
            distinct = 0
            stride = 0
            start = 0
            window = here
            fresh = lanes == 0
            lanes = 0
            if here == at.SHARED_WINDOW:
                base, limit, buffer = load64(ctx + SHARED_BASE), load64(ctx + SHARED_SIZE), -1
            elif here == at.LOCAL_WINDOW:
                base, limit = load64(ctx + LOCAL_BASE), load64(ctx + LOCAL_SIZE)
                buffer = load64(ctx + BUFFER_COUNT)
                stride = limit
            elif here == at.PARAM_WINDOW:
                base, limit, buffer = load64(ctx + PARAMS), load64(ctx + PARAMS_SIZE), -1
            elif at.FIRST_VARIABLE_WINDOW <= here < at.FIRST_BUFFER_WINDOW:
                variable = here - at.FIRST_VARIABLE_WINDOW
                if variable >= load64(ctx + VARIABLE_COUNT):
                    set_fault(ctx, OUT_OF_BOUNDS, site, lane, address, size)
                    return 1
                base = load64(load64(ctx + VARIABLES) + 16 * variable)
                limit = load64(load64(ctx + VARIABLES) + 16 * variable + 8)
                start, buffer = at.BUFFER_START, -1
            else:
                buffer = here - at.FIRST_BUFFER_WINDOW
                if buffer < 0 or buffer >= load64(ctx + BUFFER_COUNT):
                    set_fault(ctx, OUT_OF_BOUNDS, site, lane, address, size)
                    return 1
                base = load64(load64(ctx + BUFFERS) + 16 * buffer)
                limit = load64(load64(ctx + BUFFERS) + 16 * buffer + 8)
                start = at.BUFFER_START
            if fresh and buffer >= 0:
                count(ctx, site, buffer, 1, 0, 0)
        offset = (address & OFFSET_MASK) - start
        if offset < 0 or offset + size > limit:
            set_fault(ctx, OUT_OF_BOUNDS, site, lane, address, size)
            return 1
        if address & (size - 1):
            set_fault(ctx, MISALIGNED, site, lane, address, size)
            return 1
        store64(warp + at.HOSTS + 8 * lane, base + offset + lane * stride)
        if buffer >= 0:
            # Local memory is interleaved by word: the same offset in all lanes is one row of 128 bytes.
            sector = (offset >> 2) * 4 + (lane >> 3) if stride else offset >> 5
            distinct = insert_sector(warp + at.DATA_3, distinct, sector)
        lanes += 1
    if lanes > 0 and buffer >= 0:
        count(ctx, site, buffer, 0, lanes * size, distinct * words if stride else distinct)
    return 0


@njit(inline="always")  # type: ignore[untyped-decorator]
def count(ctx: int, site: int, buffer: int, requests: int, requested: int, sectors: int) -> None:
    """Add to the counters of one memory instruction and one buffer."""
    entry = load64(ctx + COUNTERS) + 8 * at.COUNTERS_PER_ENTRY * (site * (load64(ctx + BUFFER_COUNT) + 1) + buffer)
    store64(entry, load64(entry) + requests)
    store64(entry + 8, load64(entry + 8) + requested)
    store64(entry + 16, load64(entry + 16) + sectors)


@njit(inline="always")  # type: ignore[untyped-decorator]
def copy_in(host: int, out: int, lane: int, element_bytes: int, count: int) -> None:
    """One lane's `count` elements -> DATA, where each element has a row of 32 lanes."""
    for item in range(count):
        if element_bytes == 4:
            store32(out + 128 * item + 4 * lane, load32(host + 4 * item))
        elif element_bytes == 8:
            store64(out + 256 * item + 8 * lane, load64(host + 8 * item))
        elif element_bytes == 2:
            store16(out + 64 * item + 2 * lane, load16(host + 2 * item))
        else:
            store8(out + 32 * item + lane, load8(host + item))


@njit(inline="always")  # type: ignore[untyped-decorator]
def copy_out(host: int, source: int, lane: int, element_bytes: int, count: int) -> None:
    """The other way."""
    for item in range(count):
        if element_bytes == 4:
            store32(host + 4 * item, load32(source + 128 * item + 4 * lane))
        elif element_bytes == 8:
            store64(host + 8 * item, load64(source + 256 * item + 8 * lane))
        elif element_bytes == 2:
            store16(host + 2 * item, load16(source + 64 * item + 2 * lane))
        else:
            store8(host + item, load8(source + 32 * item + lane))


def gather(warp: int, mask: int, element_bytes: int, count: int) -> int:
    """Copy `count` elements of each active lane from its host address to the warp's DATA area."""
    for lane in range(32):
        if (mask >> lane) & 1:
            copy_in(load64(warp + at.HOSTS + 8 * lane), warp + at.DATA, lane, element_bytes, count)
    return 0


def scatter(warp: int, mask: int, element_bytes: int, count: int) -> int:
    """Copy each active lane's elements from the DATA area to its host address; where two meet, the higher lane wins."""
    for lane in range(32):
        if (mask >> lane) & 1:
            copy_out(load64(warp + at.HOSTS + 8 * lane), warp + at.DATA, lane, element_bytes, count)
    return 0


@njit(inline="always")  # type: ignore[untyped-decorator]
def shared_fault(ctx: int, site: int, lane: int, offset: int, limit: int, size: int) -> None:
    """Record a stray or misaligned access to shared memory."""
    kind = OUT_OF_BOUNDS if offset > limit else MISALIGNED
    set_fault(ctx, kind, site, lane, offset | (at.SHARED_WINDOW << at.WINDOW_BITS), size)


def shared_load(ctx: int, warp: int, site: int, mask: int, element_bytes: int, count: int) -> int:
    """`translate` and `gather` for 32-bit shared offsets in ADDRESSES, without the detour. 1 on a fault, else 0."""
    # Inner loops live here: what does not change is read once, and the common case has a loop of its own.
    size = element_bytes * count
    base = load64(ctx + SHARED_BASE)
    limit = load64(ctx + SHARED_SIZE) - size
    if mask == at.FULL_MASK and size == 4 and element_bytes == 4:
        for lane in range(32):
            offset = load32(warp + at.ADDRESSES + 4 * lane)
            if offset > limit or offset & 3:
                shared_fault(ctx, site, lane, offset, limit, size)
                return 1
            store32(warp + at.DATA + 4 * lane, load32(base + offset))
        return 0
    for lane in range(32):
        if (mask >> lane) & 1:
            offset = load32(warp + at.ADDRESSES + 4 * lane)
            if offset > limit or offset & (size - 1):
                shared_fault(ctx, site, lane, offset, limit, size)
                return 1
            copy_in(base + offset, warp + at.DATA, lane, element_bytes, count)
    return 0


def shared_store(ctx: int, warp: int, site: int, mask: int, element_bytes: int, count: int) -> int:
    """The other direction: DATA to shared memory. 1 on a fault, else 0."""
    size = element_bytes * count
    base = load64(ctx + SHARED_BASE)
    limit = load64(ctx + SHARED_SIZE) - size
    for lane in range(32):
        if (mask >> lane) & 1:
            offset = load32(warp + at.ADDRESSES + 4 * lane)
            if offset > limit or offset & (size - 1):
                shared_fault(ctx, site, lane, offset, limit, size)
                return 1
            copy_out(base + offset, warp + at.DATA, lane, element_bytes, count)
    return 0


def permute(warp: int) -> int:
    """DATA[lane] = DATA_2[ADDRESSES[lane]] on 32-bit words: a shuffle whose lanes are known only at run time."""
    for lane in range(32):
        source = load32(warp + at.ADDRESSES + 4 * lane) & 31
        store32(warp + at.DATA + 4 * lane, load32(warp + at.DATA_2 + 4 * source))
    return 0


# Blocks, warps and barriers -------------------------------------------------------------------------------------------


@njit(inline="always")  # type: ignore[untyped-decorator]
def start_block(ctx: int, block: int) -> None:
    """Coordinates, hostile memory, and every warp at the first block of code."""
    grid_x = load64(ctx + NCTAID_X)
    grid_y = load64(ctx + NCTAID_Y)
    store64(ctx + BLOCK, block)
    store64(ctx + CTAID_X, block % grid_x)
    store64(ctx + CTAID_Y, (block // grid_x) % grid_y)
    store64(ctx + CTAID_Z, block // (grid_x * grid_y))
    fill_ones(load64(ctx + SHARED_BASE), load64(ctx + SHARED_SIZE))
    warps = load64(ctx + WARP_COUNT)
    fill_ones(load64(ctx + LOCALS), load64(ctx + LOCAL_SIZE) * 32 * warps)
    for slot in range(at.BARRIER_SLOTS):
        store64(load64(ctx + BARRIERS) + 8 * slot, 0)
    threads = load64(ctx + THREADS)
    width = load64(ctx + WARP_BYTES)
    for index in range(warps):
        warp = load64(ctx + WARPS) + index * width
        lanes = threads - 32 * index
        started = 0xFFFFFFFF if lanes >= 32 else (1 << lanes) - 1
        for lane in range(32):
            store32(warp + at.PCS + 4 * lane, 0 if (started >> lane) & 1 else at.EXITED_PC)
        store32(warp + at.ALIVE, started)
        store32(warp + at.STARTED, started)
        store32(warp + at.STATUS, at.READY)
        store64(warp + at.SAVED_STEPS, 0)
        if load64(ctx + CLEAR_REGISTERS):
            fill_ones(warp + at.REGISTERS, width - at.REGISTERS)
    shuffle_warps(ctx, block, warps)


@njit(inline="always")  # type: ignore[untyped-decorator]
def shuffle_warps(ctx: int, block: int, warps: int) -> None:
    """The order in which ready warps run: their numbers, or a permutation drawn from the seed and the block."""
    order = load64(ctx + ORDER)
    for index in range(warps):
        store32(order + 4 * index, index)
    seed = load64(ctx + SEED)
    if seed == 0:
        return
    state = (seed * 0x5851F42D4C957F2D + block * 0x14057B7EF767814F + 1) & 0x7FFFFFFFFFFFFFFF
    for index in range(warps - 1, 0, -1):
        state = (state * 0x5851F42D4C957F2D + 0x14057B7EF767814F) & 0x7FFFFFFFFFFFFFFF
        other = (state >> 33) % (index + 1)
        held = load32(order + 4 * index)
        store32(order + 4 * index, load32(order + 4 * other))
        store32(order + 4 * other, held)


@njit(inline="always")  # type: ignore[untyped-decorator]
def population(bits: int) -> int:
    """How many of the low 32 bits are set."""
    total = 0
    for lane in range(32):
        total += (bits >> lane) & 1
    return total


@njit(inline="always")  # type: ignore[untyped-decorator]
def waits_at(warp: int, number: int) -> bool:
    """Whether a warp waits at this barrier."""
    here = load32(warp + at.BARRIER_ID) & (at.BARRIER_SLOTS - 1) == number
    return bool(here and load32(warp + at.STATUS) == at.AT_BARRIER)


@njit(inline="always")  # type: ignore[untyped-decorator]
def arrive(ctx: int, warp: int) -> None:
    """Count a warp in at its barrier; the one that completes it releases all who wait there, and their vote."""
    number = load32(warp + at.BARRIER_ID) & (at.BARRIER_SLOTS - 1)
    slot = load64(ctx + BARRIERS) + 8 * number
    wanted = load32(warp + at.BARRIER_THREADS)
    if wanted == 0:
        wanted = load64(ctx + WARP_COUNT) * 32
    arrived = load64(slot) + 32
    store64(slot, arrived)
    if arrived < wanted:
        return
    store64(slot, 0)
    votes, all_of, any_of = 0, 1, 0
    width = load64(ctx + WARP_BYTES)
    for index in range(load64(ctx + WARP_COUNT)):
        other = load64(ctx + WARPS) + index * width
        if waits_at(other, number):
            started = load32(other + at.STARTED)
            bits = load32(other + at.VOTE_BITS) & started
            votes += population(bits)
            all_of &= 1 if bits == started else 0
            any_of |= 1 if bits != 0 else 0
    for index in range(load64(ctx + WARP_COUNT)):
        other = load64(ctx + WARPS) + index * width
        if waits_at(other, number):
            kind = load32(other + at.VOTE_KIND)
            store32(other + at.VOTE_RESULT, votes if kind == 1 else all_of if kind == 2 else any_of)
            store32(other + at.STATUS, at.READY)


def run_blocks(ctx: int, first: int, last: int) -> int:
    """Run thread blocks `first` up to, not including, `last` to their end. 1 where one of them faulted, else 0."""
    entry = load64(ctx + ENTRY)
    warps = load64(ctx + WARP_COUNT)
    width = load64(ctx + WARP_BYTES)
    order = load64(ctx + ORDER)
    for block in range(first, last):
        # Another worker met a fault in an earlier block: what follows it does not count.
        if block > load64(load64(ctx + STOP_AT)):
            return 0
        start_block(ctx, block)
        exited = 0
        while exited < warps:
            progress = 0
            for place in range(warps):
                index = load32(order + 4 * place)
                warp = load64(ctx + WARPS) + index * width
                if load32(warp + at.STATUS) != at.READY:
                    continue
                progress = 1
                store64(ctx + WARP_INDEX, index)
                store64(ctx + LOCAL_BASE, load64(ctx + LOCALS) + index * 32 * load64(ctx + LOCAL_SIZE))
                store64(ctx + STEPS, load64(warp + at.SAVED_STEPS))
                status = call_warp(entry, ctx, warp)
                store64(warp + at.SAVED_STEPS, load64(ctx + STEPS))
                if status == at.FAULTED:
                    return 1
                if status == at.EXITED:
                    total = load64(ctx + WARP_INSTRUCTIONS) + load64(ctx + STEPS)
                    store64(ctx + WARP_INSTRUCTIONS, total)
                    store32(warp + at.STATUS, at.EXITED)
                    exited += 1
                elif status == at.AT_BARRIER:
                    if load32(warp + at.BARRIER_ARRIVES) == 0:
                        store32(warp + at.STATUS, at.AT_BARRIER)
                    arrive(ctx, warp)
            if progress == 0:
                set_fault(ctx, DEADLOCK, -1, 0, 0, 0)
                return 1
    return 0


EXPORTS: dict[str, tuple[Callable[..., int], int]] = {
    "fault": (fault, 5),
    "translate": (translate, 6),
    "gather": (gather, 4),
    "scatter": (scatter, 4),
    "shared_load": (shared_load, 6),
    "shared_store": (shared_store, 6),
    "permute": (permute, 1),
    "run_blocks": (run_blocks, 3),
}
"""Name -> function and how many arguments; arguments and results are 64-bit integers."""
