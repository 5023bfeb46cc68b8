"""Finds texture and surface objects, and the addresses that `suld`, `sust` and `sured` access."""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.abi import texture_layout as tex
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import load32, load64, store64
from harness.emulator.abi.texture_layout import DIMENSIONS_MASK, LAYERED
from harness.emulator.memory.translation import host_address

NO_TEXTURE, SURFACE_COORDINATE = at.FAULT["no texture"], at.FAULT["surface coordinate"]
TRAP, ZERO, CLAMP = range(3)
"""What happens outside of a surface."""
FAULTED = -1


def object_at(ctx: int, handle: int, magic: int) -> int:
    """The host address of the object with a handle; 0 if there is none."""
    host = host_address(ctx, 0, handle, tex.OBJECT_BYTES)
    return host if host and load64(host + tex.MAGIC) == magic else 0


def surface_addresses(ctx: int, warp: int, site: int, mask: int, form: int, size: int, outside: int) -> int:
    """Replace handles in ADDRESSES by the addresses of `size` bytes. DATA has the coordinates: x in bytes, y, z, layer.

    Returns the mask of the lanes that access the surface, or `FAULTED`.
    """
    found = 0
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        handle = load64(warp + at.ADDRESSES + 8 * lane)
        surface = object_at(ctx, handle, tex.SURFACE_MAGIC)
        if surface == 0:
            set_fault(ctx, NO_TEXTURE, site, lane, handle, 1)
            return FAULTED
        address = load64(surface + tex.ADDRESS)
        inside = 1
        for row in range(4):
            if row >= form & DIMENSIONS_MASK and not (row == 3 and form & LAYERED):
                continue
            axis = 2 if row == 3 else row
            place = load32(warp + at.DATA + 128 * row + 4 * lane)
            place -= (place >> 31) << 32
            highest = load64(surface + tex.WIDTH + 8 * axis) - 1
            if row == 0:
                highest = (highest + 1) * load64(surface + tex.CHANNELS) * load64(surface + tex.CHANNEL_BYTES) - size
            if place < 0 or place > highest:
                if outside == TRAP:
                    set_fault(ctx, SURFACE_COORDINATE, site, lane, place, 256 * row + size)
                    return FAULTED
                inside = inside if outside == CLAMP else 0
                place = min(max(place, 0), highest)
            if row == 0:
                address += place
            else:
                address += place * load64(surface + (tex.SLICE_BYTES if axis == 2 else tex.ROW_BYTES))
        store64(warp + at.ADDRESSES + 8 * lane, address)
        found |= inside << lane
    return found
