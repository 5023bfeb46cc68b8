"""Replaces fields of tensor maps, and checks maps that kernels have modified (PTX ISA 9.7.9.28).

A map of zeros, to which a kernel adds all fields, becomes a map with the first of them. Fields that a kernel leaves at
0 mean what 0 means in their instruction; an `elemtype` of 0 is `.u8`.
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import layout as at
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import load32, load64, store32, store64
from harness.emulator.memory.translation import translate_lanes

BAD_FIELD = at.FAULT["tensor map field"]
(
    GLOBAL_ADDRESS, RANK, BOX_DIM, GLOBAL_DIM, GLOBAL_STRIDE, ELEMENT_STRIDE, ELEMTYPE, INTERLEAVE_LAYOUT, SWIZZLE_MODE,
    SWIZZLE_ATOMICITY, FILL_MODE,
) = range(len(proxy.MAP_FIELDS))  # fmt: skip
MAP_ALIGNMENT = 64
MOST_BOX = 256
PIECE = 16
FIRST_TYPE = proxy.MAP_TYPES.index("uint8")
"""The type whose `elemtype` is 0."""
SIZES = at.DATA_2
"""Scratch: bytes of the map for each lane, 4 bytes."""


def translate_map(ctx: int, warp: int, site: int, space: int, mask: int) -> int:
    """Translate the addresses of the active lanes' maps, checked and counted. Returns 1 on a fault, else 0."""
    for lane in range(32):
        store32(warp + SIZES + 4 * lane, proxy.MAP_BYTES)
    return int(translate_lanes(ctx, warp, site, space, mask, MAP_ALIGNMENT, warp + SIZES, 0))


def replace_field(ctx: int, warp: int, site: int, mask: int, field: int, dimension: int) -> int:
    """Set a field of each active lane's map, at a host address, to the value in DATA. Returns 1 on a fault, else 0."""
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        place, value = load64(warp + at.HOSTS + 8 * lane), load64(warp + at.DATA + 8 * lane)
        if field == ELEMENT_STRIDE and value != 1:
            set_fault(ctx, BAD_FIELD, site, lane, value, field)
            return 1
        known = is_map(place)
        if not known and is_zeros(place):
            known = 1
            store32(place + proxy.MAP_TYPE, FIRST_TYPE)
            set_element(place, FIRST_TYPE)
        store64(place + proxy.MAP_MAGIC, proxy.MODIFIED if known else 0)
        if field == GLOBAL_ADDRESS:
            store64(place + proxy.MAP_ADDRESS, value)
        elif field == RANK:
            store64(place + proxy.MAP_RANK, value + 1)
        elif field == BOX_DIM:
            store32(place + proxy.MAP_BOX + 4 * dimension, value)
        elif field == GLOBAL_DIM:
            store32(place + proxy.MAP_EXTENTS + 4 * dimension, value)
        elif field == GLOBAL_STRIDE:
            store64(place + proxy.MAP_STRIDES + 8 * dimension, value)
        elif field == ELEMTYPE:
            store32(place + proxy.MAP_TYPE, value)
            set_element(place, value)
        elif field == SWIZZLE_MODE:
            store64(place + proxy.MAP_SWIZZLE, value)
        elif field == FILL_MODE:
            store32(place + proxy.MAP_FILL, value)
    return 0


def is_map(place: int) -> int:
    """Whether a map begins at this host address."""
    magic = load64(place + proxy.MAP_MAGIC)
    return 1 if magic == proxy.MAGIC or magic == proxy.MODIFIED else 0


def is_zeros(place: int) -> int:
    """Whether all bytes of a map at this host address are 0."""
    rest = 0
    for word in range(0, proxy.MAP_BYTES, 8):
        rest |= load64(place + word)
    return 1 if rest == 0 else 0


def set_element(place: int, kind: int) -> None:
    """Set the bits of an element, by the index of its type in `MAP_TYPES`."""
    inner = 8 * ((proxy.TYPE_BYTES >> (4 * kind)) & 15)
    outer = inner
    if kind >= proxy.PACKED:
        inner, outer = 4 if kind == proxy.PACKED else 8, 6 if kind == proxy.PADDED_6 else 4
    store64(place + proxy.MAP_ELEMENT, inner)
    store32(place + proxy.MAP_OUTER, outer)


def flaw_of_padded(place: int, rank: int) -> int:
    """The same for what is required of types with padding only."""
    if load64(place + proxy.MAP_ADDRESS) & (2 * PIECE - 1):
        return GLOBAL_ADDRESS + 1
    if load32(place + proxy.MAP_BOX) != proxy.PADDED_BOX:
        return BOX_DIM + 1
    if load32(place + proxy.MAP_EXTENTS) % proxy.PADDED_BOX:
        return GLOBAL_DIM + 1
    for dimension in range(rank - 1):
        if load64(place + proxy.MAP_STRIDES + 8 * dimension) & (2 * PIECE - 1):
            return GLOBAL_STRIDE + 1
    swizzle = load64(place + proxy.MAP_SWIZZLE)
    if load32(place + proxy.MAP_FILL):
        return FILL_MODE + 1
    return SWIZZLE_MODE + 1 if swizzle and swizzle != 3 else 0


def flaw_of(place: int, rank: int) -> int:
    """1 + the field for which no GPU accepts the map at this host address; 0 if there is none."""
    element, swizzle = load64(place + proxy.MAP_ELEMENT), load64(place + proxy.MAP_SWIZZLE)
    if element == 0:
        return ELEMTYPE + 1
    if load64(place + proxy.MAP_ADDRESS) & (PIECE - 1):
        return GLOBAL_ADDRESS + 1
    for dimension in range(rank):
        box = load32(place + proxy.MAP_BOX + 4 * dimension)
        if box < 1 or box > MOST_BOX:
            return BOX_DIM + 1
        if load32(place + proxy.MAP_EXTENTS + 4 * dimension) < 1:
            return GLOBAL_DIM + 1
        if dimension and load64(place + proxy.MAP_STRIDES + 8 * (dimension - 1)) & (PIECE - 1):
            return GLOBAL_STRIDE + 1
    row = (load32(place + proxy.MAP_BOX) * element) >> 3
    if load32(place + proxy.MAP_TYPE) > proxy.PACKED:
        flaw = flaw_of_padded(place, rank)
        if flaw:
            return flaw
    if (load32(place + proxy.MAP_EXTENTS) * load32(place + proxy.MAP_OUTER)) & 7:
        return GLOBAL_DIM + 1
    if row & (PIECE - 1):
        return BOX_DIM + 1
    if swizzle and row > PIECE << swizzle:
        return SWIZZLE_MODE + 1
    return 0
