"""Finds the texels that a lane reads, and their weights (CUDA C++ Programming Guide, "Texture Fetching").

Positions are in 256ths of a texel, because a GPU's filter has fractions of 8 bits.
"""

from __future__ import annotations

from harness.emulator.abi import doubles
from harness.emulator.abi import texture_layout as tex
from harness.emulator.abi.raw_memory import load32, load64, store32, store64
from harness.emulator.abi.texture_layout import (
    BORDER_COLOR,
    CUBE,
    CUBE_FACES,
    DIMENSIONS_MASK,
    GATHER,
    INTEGER_COORDINATES,
    LAYERED,
    MIRROR,
    WRAP,
)

ZERO, HALF, ONE, TWO, TEXEL = (doubles.bits_of(value) for value in (0.0, 0.5, 1.0, 2.0, 256.0))
SIGN = -(1 << 63)
LOWEST, HIGHEST = doubles.bits_of(-(2.0**24)), doubles.bits_of(2.0**24)
"""Positions beyond are taken as these, which are outside of every texture."""
FRACTION_BITS = 8
FRACTION = (1 << FRACTION_BITS) - 1
ROW = 4 * 32


def position_of(bits: int, extent: int, mode: int, is_normalized: int, is_filtered: int) -> int:
    """A float coordinate as a position in 256ths: of the texel that contains it, or of the first one to filter."""
    place = doubles.from_float(bits)
    if is_normalized:
        if mode == WRAP:
            place = doubles.add(place, doubles.floor(place) ^ SIGN)
        elif mode == MIRROR:
            turns = doubles.floor(doubles.multiply(place, HALF))
            place = doubles.add(place, doubles.multiply(turns, TWO) ^ SIGN)
        place = doubles.multiply(place, doubles.from_integer(extent))
    if not doubles.less(LOWEST, place):  # also for NaN
        place = LOWEST
    if doubles.less(HIGHEST, place):
        place = HIGHEST
    if is_filtered:
        # The centre of the first texel is half a texel further; the fraction is rounded to nearest.
        place = doubles.add(doubles.multiply(doubles.add(place, HALF ^ SIGN), TEXEL), HALF)
        return int(doubles.to_integer(doubles.floor(place)))
    return int(doubles.to_integer(doubles.floor(place)) << FRACTION_BITS)


def index_of(index: int, extent: int, mode: int) -> int:
    """The texel that is read for this one, which may be outside; -1 for the border."""
    if 0 <= index and index < extent:
        return index
    if mode == WRAP:
        return index % extent
    if mode == MIRROR:
        there = index % (2 * extent)
        return there if there < extent else 2 * extent - 1 - there
    if mode == BORDER_COLOR:
        return -1
    return min(max(index, 0), extent - 1)


def select_face(x: int, y: int, z: int, coordinates: int) -> int:
    """Replace the direction (x, y, z), as doubles, by float coordinates on a face of a cube. Returns its number."""
    across, along, down = doubles.magnitude(x), doubles.magnitude(y), doubles.magnitude(z)
    if not doubles.less(across, along) and not doubles.less(across, down):
        face, major, s, t = 0, across, z ^ SIGN, y ^ SIGN
        if x < 0:
            face, s = 1, z
    elif not doubles.less(along, down):
        face, major, s, t = 2, along, x, z
        if y < 0:
            face, t = 3, z ^ SIGN
    else:
        face, major, s, t = 4, down, x, y ^ SIGN
        if z < 0:
            face, s = 5, x ^ SIGN
    if major == ZERO:
        major = ONE
    s = doubles.multiply(doubles.add(doubles.divide(s, major), ONE), HALF)
    t = doubles.multiply(doubles.add(doubles.divide(t, major), ONE), HALF)
    store32(coordinates, doubles.to_float(s))
    store32(coordinates + ROW, doubles.to_float(t))
    return face


def layer_of(coordinates: int, texture: int, form: int) -> int:
    """The layer, and face, of a layered texture or cube."""
    layers = load64(texture + tex.DEPTH)
    layer = load32(coordinates + 3 * ROW) if form & LAYERED else 0
    layer -= (layer >> 31) << 32
    if form & CUBE:
        face = select_face(
            doubles.from_float(load32(coordinates)),
            doubles.from_float(load32(coordinates + ROW)),
            doubles.from_float(load32(coordinates + 2 * ROW)),
            coordinates,
        )
        return int(CUBE_FACES * min(max(layer, 0), layers // CUBE_FACES - 1) + face)
    return min(max(layer, 0), layers - 1)


def axis_position(coordinates: int, texture: int, form: int, axis: int) -> int:
    """The position along an axis of the lane whose coordinates are there; 0 along axes that the texture lacks."""
    if axis >= form & DIMENSIONS_MASK:
        return 0
    bits = load32(coordinates + ROW * axis)
    if form & INTEGER_COORDINATES:
        return (bits - ((bits >> 31) << 32)) << FRACTION_BITS
    mode = tex.CLAMP if form & CUBE else load64(texture + tex.MODE_X + 8 * axis)
    is_filtered = 1 if form & GATHER or load64(texture + tex.IS_LINEAR) else 0
    is_normalized = 1 if form & CUBE or load64(texture + tex.IS_NORMALIZED) else 0
    return int(position_of(bits, load64(texture + tex.WIDTH + 8 * axis), mode, is_normalized, is_filtered))


def place_texels(scratch: int, lane: int, texture: int, form: int) -> None:
    """Store addresses and weights of the texels that a lane reads. Coordinates are as in `texture_layout`."""
    coordinates = scratch + tex.COORDINATES + 4 * lane
    layer = layer_of(coordinates, texture, form) if form & (LAYERED | CUBE) else 0
    x = axis_position(coordinates, texture, form, 0)
    y = axis_position(coordinates, texture, form, 1)
    z = axis_position(coordinates, texture, form, 2)
    single = 0 if form & GATHER or load64(texture + tex.IS_LINEAR) else 1
    for corner in range(tex.CORNERS):
        place = 8 * (32 * corner + lane)
        # Bit n of a corner's number says whether it is the second along axis n.
        if corner >> (form & DIMENSIONS_MASK) or (corner and (single or form & INTEGER_COORDINATES)):
            store64(scratch + tex.WEIGHTS + place, 0)
            store64(scratch + tex.TEXELS + place, -1)
            continue
        column, row, slice_number = corner & 1, (corner >> 1) & 1, corner >> 2
        weight = (x & FRACTION if column else FRACTION + 1 - (x & FRACTION)) << 2 * FRACTION_BITS
        if form & DIMENSIONS_MASK > 1:
            weight = (weight >> FRACTION_BITS) * (y & FRACTION if row else FRACTION + 1 - (y & FRACTION))
        if form & DIMENSIONS_MASK > 2:
            weight = (weight >> FRACTION_BITS) * (z & FRACTION if slice_number else FRACTION + 1 - (z & FRACTION))
        store64(scratch + tex.WEIGHTS + place, weight)
        i = index_along(texture, form, 0, (x >> FRACTION_BITS) + column)
        j = index_along(texture, form, 1, (y >> FRACTION_BITS) + row)
        k = index_along(texture, form, 2, (z >> FRACTION_BITS) + slice_number)
        address = 0
        if i >= 0 and j >= 0 and k >= 0:
            address = load64(texture + tex.ADDRESS) + (k + layer) * load64(texture + tex.SLICE_BYTES)
            address += j * load64(texture + tex.ROW_BYTES)
            address += i * load64(texture + tex.CHANNELS) * load64(texture + tex.CHANNEL_BYTES)
        store64(scratch + tex.TEXELS + place, address)


def index_along(texture: int, form: int, axis: int, index: int) -> int:
    """The texel along an axis that is read for this one; -1 for the border."""
    if axis >= form & DIMENSIONS_MASK:
        return 0
    mode = tex.CLAMP if form & CUBE else load64(texture + tex.MODE_X + 8 * axis)
    if form & INTEGER_COORDINATES and mode != BORDER_COLOR:
        mode = tex.CLAMP
    return int(index_of(index, load64(texture + tex.WIDTH + 8 * axis), mode))
