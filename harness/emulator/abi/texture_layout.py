"""Layout of texture and surface objects, and of the memory in which a warp samples textures.

An object is a record in device memory, whose address is its handle. A texture's texels are in row-major order: channels
of a texel, texels of a row, rows, slices (or layers, or faces of a cube).
"""

from __future__ import annotations

TEXTURE_MAGIC = 0x746A626F78657424
SURFACE_MAGIC = 0x746A626F72757324

# An object: words of 8 bytes ------------------------------------------------------------------------------------------
(
    MAGIC, ADDRESS, WIDTH, HEIGHT, DEPTH, ROW_BYTES, SLICE_BYTES, CHANNELS, CHANNEL_BYTES, CHANNEL_KIND,
    MODE_X, MODE_Y, MODE_Z, IS_LINEAR, IS_NORMALIZED, READS_FLOATS, BORDER,
) = range(0, 8 * 17, 8)  # fmt: skip
"""Magic number; address of the first texel; texels of a row, rows of a slice, slices (1 for the dimensions that it
lacks); bytes from row to row, and from slice to slice; channels per texel, bytes and kind of each; address mode of each
dimension; whether neighbouring texels are filtered; whether coordinates are normalized; whether integers are read as
floats in [0, 1] or [-1, 1]; the border's color, 4 bytes for each of four channels."""
OBJECT_BYTES = BORDER + 4 * 4

SIGNED, UNSIGNED, FLOAT = range(3)
"""Kinds of channels, numbered as in the CUDA runtime (`cudaChannelFormatKind`)."""
WRAP, CLAMP, MIRROR, BORDER_COLOR = range(4)
"""Address modes, numbered as in CUDA (`CUaddress_mode`)."""
CUBE_FACES = 6

# How an instruction addresses an object: an integer of these bits -----------------------------------------------------
DIMENSIONS_MASK = 3
"""Bits 0 and 1: number of coordinates, without the layer's."""
LAYERED, CUBE, INTEGER_COORDINATES, GATHER = 4, 8, 16, 32
COMPONENT_AT = 6
"""Bits 6 and 7: the channel that `tld4` reads."""

# A warp's memory for sampling -----------------------------------------------------------------------------------------
CORNERS = 8
"""Texels that a lane reads at most."""
COORDINATES = 0
"""Coordinates of each lane, 4 bytes: x, y, z, layer. After sampling, the four results."""
OBJECTS = COORDINATES + 4 * 4 * 32
"""The host address of each lane's object, 8 bytes."""
TEXELS = OBJECTS + 8 * 32
"""For each corner, and in it each lane, the texel's address, 8 bytes; 0 for the border."""
WEIGHTS = TEXELS + CORNERS * 8 * 32
"""For each corner, and in it each lane, the texel's weight, 8 bytes; 0 for corners that the lane does not read."""
SECTORS = WEIGHTS + CORNERS * 8 * 32
"""The distinct sectors of a request, 8 bytes each."""
DISTINCT = SECTORS + CORNERS * 8 * 32
"""The distinct texels of a request, 8 bytes each."""
SAMPLING_BYTES = DISTINCT + CORNERS * 8 * 32
