"""Samples textures: finds the texels of each lane, counts them as one request, and filters them."""

from __future__ import annotations

from collections.abc import Callable

from harness.emulator.abi import doubles
from harness.emulator.abi import layout as at
from harness.emulator.abi import texture_layout as tex
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import load8, load16, load32, load64, store32, store64
from harness.emulator.abi.texture_layout import COMPONENT_AT, FLOAT, GATHER, SIGNED
from harness.emulator.memory.textures.coordinates import place_texels
from harness.emulator.memory.textures.surfaces import object_at, surface_addresses
from harness.emulator.memory.translation import count, host_address, insert_sector

NO_TEXTURE = at.FAULT["no texture"]
OUT_OF_BOUNDS = at.FAULT["out of bounds"]
MINUS_ONE, PER_WEIGHT = doubles.bits_of(-1.0), doubles.bits_of(2.0**-24)
SUBNORMAL_HALF = doubles.bits_of(2.0**-24)
NOT_READ = -1


def sample(ctx: int, warp: int, site: int, mask: int, form: int, scratch: int) -> int:
    """Sample the textures whose handles are in ADDRESSES. `scratch` is the offset of the warp's memory for sampling.

    It has the coordinates, and gets the results. Returns 1 on a fault, else 0.
    """
    place = warp + scratch
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        handle = load64(warp + at.ADDRESSES + 8 * lane)
        texture = object_at(ctx, handle, tex.TEXTURE_MAGIC)
        if texture == 0:
            set_fault(ctx, NO_TEXTURE, site, lane, handle, 0)
            return 1
        store64(place + tex.OBJECTS + 8 * lane, texture)
        place_texels(place, lane, texture, form)
        first = host_address(ctx, lane, load64(texture + tex.ADDRESS), 1)
        if first == 0:
            set_fault(ctx, OUT_OF_BOUNDS, site, lane, load64(texture + tex.ADDRESS), texel_bytes(texture))
            return 1
    count_texels(ctx, site, mask, place)
    for lane in range(32):
        if (mask >> lane) & 1:
            for component in range(4):
                store32(place + tex.COORDINATES + 128 * component + 4 * lane, 0)
            if form & GATHER:
                gather_texels(ctx, place, lane, form >> COMPONENT_AT)
            else:
                for component in range(load64(load64(place + tex.OBJECTS + 8 * lane) + tex.CHANNELS)):
                    result = filtered(ctx, place, lane, component)
                    store32(place + tex.COORDINATES + 128 * component + 4 * lane, result)
    return 0


def texel_bytes(texture: int) -> int:
    """Bytes of a texel."""
    return load64(texture + tex.CHANNELS) * load64(texture + tex.CHANNEL_BYTES)


def count_texels(ctx: int, site: int, mask: int, place: int) -> None:
    """Count the request: the texels that each lane reads, and the distinct sectors of all.

    It is not traced: plans, for which caches and schedules are modelled, have no textures.
    """
    requests = 1
    while mask:
        buffer, others, sectors, distinct, requested, unique = -1, 0, 0, 0, 0, 0
        for lane in range(32):
            if not (mask >> lane) & 1:
                continue
            texture = load64(place + tex.OBJECTS + 8 * lane)
            here = (load64(texture + tex.ADDRESS) >> at.WINDOW_BITS) - at.FIRST_BUFFER_WINDOW
            if buffer != -1 and here != buffer:
                others |= 1 << lane
                continue
            buffer = here
            size = texel_bytes(texture)
            for corner in range(tex.CORNERS):
                address = load64(place + tex.TEXELS + 8 * (32 * corner + lane))
                if address == NOT_READ or address == 0 or repeats(place, lane, corner, address):
                    continue
                requested += size
                before = distinct
                distinct = insert_sector(place + tex.DISTINCT, distinct, address)
                unique += size * (distinct - before)
                sectors = insert_sector(
                    place + tex.SECTORS, sectors, ((address & at.OFFSET_MASK) - at.BUFFER_START) >> 5
                )
        count(ctx, site, buffer, requests, requested, sectors, unique)
        requests = 0
        mask = others


def repeats(place: int, lane: int, corner: int, address: int) -> bool:
    """Whether the lane reads the same texel for an earlier corner."""
    found = 0
    for other in range(corner):
        found |= load64(place + tex.TEXELS + 8 * (32 * other + lane)) == address
    return bool(found)


def stored(ctx: int, texture: int, address: int, component: int) -> int:
    """The bits of a texel's channel, sign-extended if it is signed; of the border's color if the address is 0."""
    if component >= load64(texture + tex.CHANNELS):
        return 0
    if address == 0:
        return load32(texture + tex.BORDER + 4 * component)
    size = load64(texture + tex.CHANNEL_BYTES)
    host = host_address(ctx, 0, address + size * component, size)
    if host == 0:
        return 0
    bits = load8(host) if size == 1 else (load16(host) if size == 2 else load32(host))
    if load64(texture + tex.CHANNEL_KIND) == SIGNED:
        bits -= (bits >> (8 * size - 1)) << 8 * size
    return bits


def half_value(bits: int) -> int:
    """The double equal to a float of 16 bits."""
    exponent = (bits >> 10) & 31
    fraction = bits & 1023
    if exponent == 0:
        value = doubles.multiply(doubles.from_integer(fraction), SUBNORMAL_HALF)
    elif exponent == 31:
        value = (2047 << 52) | (fraction << 42)
    else:
        value = ((exponent + 1008) << 52) | (fraction << 42)
    return value | ((bits >> 15) << 63)


def value_of(texture: int, address: int, bits: int) -> int:
    """The number, as a double, that a texture reads for the bits of a channel."""
    size = load64(texture + tex.CHANNEL_BYTES)
    if address == 0:
        return int(doubles.from_float(bits))
    if load64(texture + tex.CHANNEL_KIND) == FLOAT:
        return int(doubles.from_float(bits) if size == 4 else half_value(bits))
    if load64(texture + tex.CHANNEL_KIND) == SIGNED:
        value = doubles.divide(doubles.from_integer(bits), doubles.from_integer((1 << (8 * size - 1)) - 1))
        return MINUS_ONE if doubles.less(value, MINUS_ONE) else value
    return int(doubles.divide(doubles.from_integer(bits), doubles.from_integer((1 << 8 * size) - 1)))


def reads_bits(texture: int, address: int) -> bool:
    """Whether a texel's bits are the result: integers that are not read as floats, floats of 32 bits, and borders."""
    kind = load64(texture + tex.CHANNEL_KIND)
    if address == 0 or kind == FLOAT:
        return address == 0 or load64(texture + tex.CHANNEL_BYTES) == 4
    return not load64(texture + tex.READS_FLOATS)


def one_texel(ctx: int, texture: int, address: int, component: int) -> int:
    """The 32 bits that are read of one texel."""
    bits = stored(ctx, texture, address, component)
    if reads_bits(texture, address) or component >= load64(texture + tex.CHANNELS):
        return bits
    return int(doubles.to_float(value_of(texture, address, bits)))


def filtered(ctx: int, place: int, lane: int, component: int) -> int:
    """The 32 bits of a lane's result in one channel."""
    texture = load64(place + tex.OBJECTS + 8 * lane)
    if load64(place + tex.TEXELS + 8 * (32 + lane)) == NOT_READ:
        return int(one_texel(ctx, texture, load64(place + tex.TEXELS + 8 * lane), component))
    total = 0
    for corner in range(tex.CORNERS):
        weight = load64(place + tex.WEIGHTS + 8 * (32 * corner + lane))
        if weight:
            address = load64(place + tex.TEXELS + 8 * (32 * corner + lane))
            value = value_of(texture, address, stored(ctx, texture, address, component))
            share = doubles.multiply(doubles.from_integer(weight), PER_WEIGHT)
            total = doubles.add(total, doubles.multiply(share, value))
    return int(doubles.to_float(total))


def gather_texels(ctx: int, place: int, lane: int, component: int) -> None:
    """Store the four texels around a lane's position: against the clock from that with the lowest x and highest y."""
    texture = load64(place + tex.OBJECTS + 8 * lane)
    for number in range(4):
        corner = number + 2 if number < 2 else 3 - number
        address = load64(place + tex.TEXELS + 8 * (32 * corner + lane))
        store32(place + tex.COORDINATES + 128 * number + 4 * lane, one_texel(ctx, texture, address, component))


EXPORTS: dict[str, Callable[..., int]] = {function.__name__: function for function in (sample, surface_addresses)}
"""Functions by name."""
