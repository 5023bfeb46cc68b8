"""Tensor maps as the emulator has them; only a GPU's driver knows what a GPU's look like.

A kernel is given them by value, or the address of a buffer beside the plan's own where they lie one behind the other.
"""

from __future__ import annotations

import struct

import numpy as np

from harness.compilers.toolchains import toolchain_of
from harness.emulator.abi import async_proxy_layout as proxy
from harness.model.plan import Plan
from harness.model.tensor_map import MAX_RANK, PIECE_BYTES, TensorMap

MAPS = "tensor maps"
"""What that buffer is called."""


def addressed(plan: Plan) -> tuple[TensorMap, ...]:
    """Those whose address is an argument, in the order in which they lie there."""
    given = (step.args for step in plan.launches if not toolchain_of(step.kernel).tensor_maps_by_value)
    return tuple(dict.fromkeys(argument for args in given for argument in args if isinstance(argument, TensorMap)))


def encode(tensor_map: TensorMap, address: int) -> np.void:
    """The argument of a launch, of 128 bytes; `address` is the buffer's."""
    rank = len(tensor_map.extents)
    padding = (0,) * (MAX_RANK - rank)
    swizzle = tensor_map.swizzle // PIECE_BYTES
    words = (proxy.MAGIC, address, rank, tensor_map.element_bytes, swizzle.bit_length() - 1 if swizzle else 0)
    image = bytearray(proxy.MAP_BYTES)
    struct.pack_into("<5q", image, proxy.MAP_MAGIC, *words)
    struct.pack_into("<5I", image, proxy.MAP_EXTENTS, *tensor_map.extents, *padding)
    struct.pack_into("<5I", image, proxy.MAP_BOX, *tensor_map.box, *padding)
    struct.pack_into("<4q", image, proxy.MAP_STRIDES, *tensor_map.strides, *padding)
    struct.pack_into("<q", image, proxy.MAP_TYPE, proxy.MAP_TYPES.index(tensor_map.dtype))
    encoded: np.void = np.void(bytes(image))
    return encoded
