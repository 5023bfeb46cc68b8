"""The rows of a bulk copy, such as a box of a tensor: their addresses, and how they are counted."""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import layout as at
from harness.emulator.abi.context import BUFFER_COUNT, BUFFERS, PARAMS, PARAMS_SIZE, VARIABLE_COUNT, VARIABLES
from harness.emulator.abi.raw_memory import load32, load64, store64
from harness.emulator.memory.trace import is_recorded, record
from harness.emulator.memory.translation import count

COPIES, CAPACITY, COPY_BYTES = proxy.COPIES, proxy.CAPACITY, proxy.COPY_BYTES
STORES = proxy.STORES
RANK, BYTES, MAP, SITE, ADDRESS, COORDINATES = (
    proxy.RANK, proxy.BYTES, proxy.MAP, proxy.SITE, proxy.ADDRESS, proxy.COORDINATES,
)  # fmt: skip
MAP_BOX, MAP_EXTENTS, MAP_STRIDES = proxy.MAP_BOX, proxy.MAP_EXTENTS, proxy.MAP_STRIDES
PIECE = 16
"""Bytes that are moved together."""
TRACED_SECTORS = 32
LINE = 128
OUTSIDE = -(1 << 62)


def copy_at(state: int, number: int) -> int:
    """Address of a copy in the ring."""
    return int(load64(state + COPIES) + COPY_BYTES * (number & (load64(state + CAPACITY) - 1)))


def host_of(ctx: int, address: int, size: int) -> int:
    """Host address of `size` bytes outside shared and local memory; 0 if the address is invalid."""
    window = address >> at.WINDOW_BITS
    offset = address & at.OFFSET_MASK
    if window == at.PARAM_WINDOW:
        return load64(ctx + PARAMS) + offset if offset + size <= load64(ctx + PARAMS_SIZE) else 0
    number, limit = window - at.FIRST_VARIABLE_WINDOW, load64(ctx + VARIABLE_COUNT)
    row = load64(ctx + VARIABLES) + at.VARIABLE_BYTES * number
    if window >= at.FIRST_BUFFER_WINDOW:
        number, limit = window - at.FIRST_BUFFER_WINDOW, load64(ctx + BUFFER_COUNT)
        row = load64(ctx + BUFFERS) + 16 * number
    offset -= at.BUFFER_START
    if number < 0 or number >= limit or offset < 0 or offset + size > load64(row + 8):
        return 0
    return int(load64(row) + offset)


def column_of(ctx: int, address: int) -> int:
    """Counter column for a valid address; `CONSTANT` if it may not be written; negative if it is not counted."""
    window = address >> at.WINDOW_BITS
    if window >= at.FIRST_BUFFER_WINDOW:
        return int(window - at.FIRST_BUFFER_WINDOW)
    if window < at.FIRST_VARIABLE_WINDOW:
        return at.CONSTANT
    return int(load64(load64(ctx + VARIABLES) + at.VARIABLE_BYTES * (window - at.FIRST_VARIABLE_WINDOW) + 16))


def swizzled(offset: int, bits: int) -> int:
    """Swizzled location in shared memory of the bytes at `offset`."""
    return offset ^ (((offset >> 7) & ((1 << bits) - 1)) << 4)


def rows_of(copy: int) -> int:
    """Number of rows, which are contiguous runs of bytes."""
    rows = 1
    for dimension in range(1, load64(copy + RANK)):
        rows *= load32(load64(copy + MAP) + MAP_BOX + 4 * dimension)
    return rows


def row_address(copy: int, row: int) -> int:
    """Virtual address of a row's first byte, inside the tensor or not; `OUTSIDE` if all of the row is outside."""
    rank, tensor_map = load64(copy + RANK), load64(copy + MAP)
    if rank == 0:
        return int(load64(copy + ADDRESS))
    address = load64(tensor_map + proxy.MAP_ADDRESS)
    address += (load64(copy + COORDINATES) * load32(tensor_map + proxy.MAP_OUTER)) >> 3
    rest = row
    for dimension in range(1, rank):
        box = load32(tensor_map + MAP_BOX + 4 * dimension)
        place = load64(copy + COORDINATES + 8 * dimension) + rest % box
        rest = rest // box
        if place < 0 or place >= load32(tensor_map + MAP_EXTENTS + 4 * dimension):
            return OUTSIDE
        address += place * load64(tensor_map + MAP_STRIDES + 8 * (dimension - 1))
    return int(address)


def row_bytes(copy: int) -> int:
    """Bytes of a row in shared memory, inside the tensor or not."""
    if load64(copy + RANK) == 0:
        return int(load64(copy + BYTES))
    return inner_bytes(copy, load32(load64(copy + MAP) + MAP_BOX))


def inner_bytes(copy: int, elements: int) -> int:
    """Bytes of so many elements of a tensor in shared memory."""
    return int((elements * load64(load64(copy + MAP) + proxy.MAP_ELEMENT)) >> 3)


def outer_bytes(copy: int, inner: int) -> int:
    """Bytes in global memory of so many in shared memory, which has padding for some types."""
    if load64(copy + RANK) == 0 or load32(load64(copy + MAP) + proxy.MAP_TYPE) <= proxy.PACKED:
        return inner
    return int((inner * load32(load64(copy + MAP) + proxy.MAP_OUTER)) >> 3)


def transferred_bytes(copy: int) -> int:
    """Bytes that a copy counts at its mbarrier: those that it would have in global memory."""
    return outer_bytes(copy, load64(copy + BYTES))


def row_pitch(copy: int) -> int:
    """Stride of rows in shared memory before the swizzle; rows narrower than the swizzle's span have gaps."""
    if load64(copy + RANK) == 0:
        return int(load64(copy + BYTES))
    bits = load64(load64(copy + MAP) + proxy.MAP_SWIZZLE)
    return int(max(row_bytes(copy), PIECE << bits if bits else 0))


def shared_bytes(copy: int) -> int:
    """Extent of a copy in shared memory: its bytes and the gaps between rows."""
    return int(rows_of(copy) * row_pitch(copy))


def parts_of(copy: int) -> int:
    """Number of contiguous parts in shared memory: one, or all pieces if there are gaps between rows."""
    return int(1 if row_pitch(copy) == row_bytes(copy) else load64(copy + BYTES) // PIECE)


def part_bytes(copy: int) -> int:
    """Bytes of one part."""
    return int(load64(copy + BYTES) // parts_of(copy))


def part_place(copy: int, place: int, part: int) -> int:
    """Place of a part of a copy that begins at `place`."""
    if row_pitch(copy) == row_bytes(copy):
        return place
    pieces = row_bytes(copy) // PIECE
    inner = place + part // pieces * row_pitch(copy) + PIECE * (part % pieces)
    return int(swizzled(inner, load64(load64(copy + MAP) + proxy.MAP_SWIZZLE)))


def first_inside(copy: int) -> int:
    """Bytes of each row before the tensor begins."""
    if load64(copy + RANK) == 0:
        return 0
    return inner_bytes(copy, max(0, -load64(copy + COORDINATES)))


def last_inside(copy: int) -> int:
    """Bytes of each row before the tensor ends, in whole pieces for a store; at most those of the row."""
    if load64(copy + RANK) == 0:
        return int(load64(copy + BYTES))
    tensor_map = load64(copy + MAP)
    left = inner_bytes(copy, load32(tensor_map + MAP_EXTENTS) - load64(copy + COORDINATES))
    if load64(copy + STORES):
        left = (left + PIECE - 1) & ~(PIECE - 1)
    return int(min(row_bytes(copy), left))


def is_inside(copy: int) -> int:
    """Whether all of the box is inside the tensor: nothing is clipped."""
    if first_inside(copy) > 0 or last_inside(copy) < row_bytes(copy):
        return 0
    for row in range(rows_of(copy)):
        if row_address(copy, row) == OUTSIDE:
            return 0
    return 1


def piece_place(copy: int, place: int, row: int, piece: int) -> int:
    """Place of a piece of a row of a copy that begins at `place`."""
    inner = place + row * row_pitch(copy) + PIECE * piece
    return int(swizzled(inner, load64(load64(copy + MAP) + proxy.MAP_SWIZZLE)))


def leaves_buffer(ctx: int, copy: int) -> int:
    """Address of a row whose last piece extends beyond its buffer; 0 if none does."""
    first, last = first_inside(copy), last_inside(copy)
    for row in range(rows_of(copy)):
        address = row_address(copy, row)
        size = outer_bytes(copy, last) - outer_bytes(copy, first)
        if address != OUTSIDE and first < last and host_of(ctx, address + outer_bytes(copy, first), size) == 0:
            return int(address + outer_bytes(copy, first))
    return 0


def origin_of(copy: int) -> int:
    """An address in the buffer that is copied: of a row inside it, because a map may begin in front of its buffer."""
    if load64(copy + RANK) == 0:
        return int(load64(copy + ADDRESS))
    first, last = first_inside(copy), last_inside(copy)
    for row in range(rows_of(copy)):
        address = row_address(copy, row)
        if address != OUTSIDE and first < last:
            return int(address + outer_bytes(copy, first))
    return int(load64(load64(copy + MAP) + proxy.MAP_ADDRESS))


def count_rows(ctx: int, warp: int, copy: int, place: int) -> None:
    """Add the copy to the counters of its instruction and buffer: one request even if all of its box is outside.

    `place` is the start of its bytes in shared memory. An H100 counts a sector of global memory once for each line of
    shared memory to or from which its bytes are moved, and each sector of shared memory that a load fills with zeros
    (tests/hardware/copies_h100.json).
    """
    first, last, site = first_inside(copy), last_inside(copy), load64(copy + SITE)
    requested, buffer = 0, column_of(ctx, origin_of(copy))
    width, pitch = row_bytes(copy), row_pitch(copy)
    sectors = 0
    latest = 0
    for row in range(rows_of(copy)):
        address = row_address(copy, row)
        target = place + row * pitch
        is_inside = address != OUTSIDE and first < last
        if is_inside:
            start = (address & at.OFFSET_MASK) - at.BUFFER_START
            requested += outer_bytes(copy, last) - outer_bytes(copy, first)
            begin = first
            while begin < last:
                end = min(last, begin + LINE - ((target + begin) & (LINE - 1)))
                low = (start + outer_bytes(copy, begin)) >> 5
                high = ((start + outer_bytes(copy, end) - 1) >> 5) + 1
                sectors += high - low
                latest = high - 1
                trace_sectors(ctx, warp, site, buffer, low, high)
                begin = end
        if load64(copy + STORES) == 0:
            zeros = sectors_between(target, target + (first if is_inside else width))
            if is_inside:
                zeros += sectors_between(target + last, target + width)
            sectors += zeros
            # They arrive like data from L2, but nothing is read from behind it.
            for _ in range(zeros):
                trace_sectors(ctx, warp, site, buffer, latest, latest + 1)
    if buffer >= 0:
        count(ctx, site, buffer, 1, requested, sectors, requested)


def sectors_between(begin: int, end: int) -> int:
    """Number of sectors that contain these bytes."""
    return ((end - 1) >> 5) - (begin >> 5) + 1 if begin < end else 0


def trace_sectors(ctx: int, warp: int, site: int, buffer: int, low: int, high: int) -> None:
    """Record a request for these sectors of a buffer, if requests are traced."""
    if buffer >= 0 and is_recorded(ctx, buffer):
        for piece in range(low, high, TRACED_SECTORS):
            some = min(TRACED_SECTORS, high - piece)
            for sector in range(some):
                store64(warp + at.DATA_3 + 8 * sector, piece + sector)
            record(ctx, warp, site, buffer, some)
