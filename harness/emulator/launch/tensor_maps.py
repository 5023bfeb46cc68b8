"""Tensor maps in the emulator's own format; the format of real GPUs is known to their driver only.

A kernel receives tensor maps by value, or by address in a separate buffer that contains them consecutively.
"""

from __future__ import annotations

import struct

import numpy as np

from harness.compilers.toolchains import toolchain_of
from harness.emulator.abi import async_proxy_layout as proxy
from harness.model.plan import Plan, leaves
from harness.model.tensor_map import MAX_RANK, PIECE_BYTES, TensorMap

MAPS = "tensor maps"
"""Name of that buffer."""


def addressed(plan: Plan) -> tuple[TensorMap, ...]:
    """Tensor maps whose address is an argument, in their order in the buffer."""
    given = (step.args for step in plan.launches if not toolchain_of(step.kernel).tensor_maps_by_value)
    return tuple(dict.fromkeys(leaf for args in given for leaf in leaves(args) if isinstance(leaf, TensorMap)))


def encode(tensor_map: TensorMap, address: int) -> np.void:
    """The 128-byte argument of a launch; `address` is the buffer's."""
    rank = len(tensor_map.extents)
    padding = (0,) * (MAX_RANK - rank)
    swizzle = tensor_map.swizzle // PIECE_BYTES
    words = (proxy.MAGIC, address, rank, tensor_map.element_bits, swizzle.bit_length() - 1 if swizzle else 0)
    image = bytearray(proxy.MAP_BYTES)
    struct.pack_into("<5q", image, proxy.MAP_MAGIC, *words)
    struct.pack_into("<5I", image, proxy.MAP_EXTENTS, *tensor_map.extents, *padding)
    struct.pack_into("<5I", image, proxy.MAP_BOX, *tensor_map.box, *padding)
    struct.pack_into("<4q", image, proxy.MAP_STRIDES, *tensor_map.strides, *padding)
    struct.pack_into("<I", image, proxy.MAP_TYPE, proxy.MAP_TYPES.index(tensor_map.dtype))
    struct.pack_into("<I", image, proxy.MAP_OUTER, tensor_map.outer_bits)
    encoded: np.void = np.void(bytes(image))
    return encoded
