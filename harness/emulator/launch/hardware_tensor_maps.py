"""Reads tensor maps in the format of Hopper and Blackwell GPUs, which host code may write without the driver.

The format is not documented. This is what host code compiled by CuTe DSL writes, in 32-bit words:

    0, 1    address
    2       4 bits: 2; 3 bits: rank - 1; 4 bits: data type; 2 bits: interleave; 3 bits: swizzle; ...
    3 to 6  strides of dimensions 1 to 4, in 16-byte units, bits 0 to 31
    7       4 bits for each of these strides: bits 32 to 35
    8 to 12 extents, less 1
    13      24 bits for the traversal strides, less 1; 8 bits: box of dimension 0, less 1
    14      8 bits for each of dimensions 1 to 4: box, less 1
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.launch.tensor_maps import encode
from harness.model.tensor_map import PIECE_BYTES, TensorMap
from harness.ptx.parameters import Parameter
from harness.support.errors import PlanError

_ALIGN_BYTES = 64
_WORDS = struct.Struct("<15I")
_TILED = 2
_TYPES = {
    0: "uint8", 1: "uint16", 3: "int32", 5: "int64", 6: "float16", 7: "float32", 10: "bfloat16", 11: "b4x16",
}  # fmt: skip
"""Data types, which are not numbered as in `CUtensorMapDataType`."""
_SWIZZLES = {0: 0, 1: 32, 2: 64, 3: 128}


def translated(parameters: Sequence[Parameter], words: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return a launch's parameters, with tensor maps of the GPU's format in the emulator's. Others are unchanged."""
    return tuple(_translated(parameter, word) for parameter, word in zip(parameters, words))


def _translated(parameter: Parameter, word: bytes) -> bytes:
    if len(word) != proxy.MAP_BYTES or parameter.align_bytes < _ALIGN_BYTES:
        return word
    if int.from_bytes(word[:8], "little") == proxy.MAGIC:
        return word
    found = decode(word)
    return word if found is None else encode(found[0], found[1]).tobytes()


def decode(image: bytes) -> tuple[TensorMap, int] | None:
    """Return a tensor map of the GPU's format and its address; None if the bytes are no tiled map that is supported."""
    words = _WORDS.unpack_from(image)
    header = words[2]
    dtype, swizzle = _TYPES.get(header >> 7 & 15), _SWIZZLES.get(header >> 13 & 7)
    interleaved, traversal = header >> 11 & 3, words[13] & 0xFFFFFF
    if header & 15 != _TILED or dtype is None or swizzle is None or interleaved or traversal:
        return None
    rank = 1 + (header >> 4 & 7)
    strides = [(words[3 + i] | (words[7] >> 4 * i & 15) << 32) * PIECE_BYTES for i in range(4)]
    box = [words[13] >> 24, *words[14].to_bytes(4, "little")]
    try:
        tensor_map = TensorMap(
            buffer="",
            extents=tuple(1 + extent for extent in words[8 : 8 + rank]),
            strides=tuple(strides[: rank - 1]),
            box=tuple(1 + extent for extent in box[:rank]),
            dtype=dtype,
            swizzle=swizzle,
        )
    except PlanError:
        return None
    return tensor_map, words[0] | words[1] << 32
