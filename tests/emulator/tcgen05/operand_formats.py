"""Element types of `tcgen05.mma`: their numbers in instruction descriptors, and values from and to bits.

Written from the PTX ISA, sections 9.7.16.4.2 (instruction descriptor) and 9.7.16.10.4 (packing).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ElementType:
    """A type of A or B."""

    number: int
    """In the instruction descriptor."""
    kind: str
    """Of the instruction."""
    dtype: Any
    bits: int
    """Of one element. Elements of less than 8 bits have a byte of their own in tensor memory."""

    @property
    def size(self) -> int:
        """Bytes between elements, in the mean over a unit of 16 bytes."""
        return max(self.bits, 8) // 8

    def decode(self, patterns: Array) -> Array:
        """Float64 values, or int64 of integers; tf32 is the upper 19 bits of 32."""
        if self.kind == "tf32":
            patterns = patterns & np.uint32(0xFFFFE000)
        unsigned = patterns.astype(f"u{self.size}")
        return unsigned.view(self.dtype).astype(np.int64 if self.kind == "i8" else np.float64)

    def encode(self, values: Array) -> Array:
        """Bits of the nearest elements."""
        return np.asarray(values).astype(self.dtype).view(f"u{self.size}")


TYPES = {
    "f16": ElementType(0, "f16", np.float16, 16),
    "bf16": ElementType(1, "f16", ml_dtypes.bfloat16, 16),
    "tf32": ElementType(2, "tf32", np.float32, 32),
    "e4m3": ElementType(0, "f8f6f4", ml_dtypes.float8_e4m3fn, 8),
    "e5m2": ElementType(1, "f8f6f4", ml_dtypes.float8_e5m2, 8),
    "e2m3": ElementType(3, "f8f6f4", ml_dtypes.float6_e2m3fn, 6),
    "e3m2": ElementType(4, "f8f6f4", ml_dtypes.float6_e3m2fn, 6),
    "e2m1": ElementType(5, "f8f6f4", ml_dtypes.float4_e2m1fn, 4),
    "u8": ElementType(0, "i8", np.uint8, 8),
    "s8": ElementType(1, "i8", np.int8, 8),
}
DEPTHS = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32}
"""K of one instruction by its kind: always 32 bytes of 8-bit elements or more."""
ACCUMULATORS = {"f16": 0, "f32": 1, "s32": 2}
"""Types of D, and their numbers in the instruction descriptor."""


def packed_units(patterns: Array, bits: int) -> Array:
    """(rows, K) patterns of elements -> bytes (rows, 16 K / elements of a unit): sub-bytes are padded to 16 bytes."""
    rows, depth = patterns.shape
    if bits >= 8:
        return np.ascontiguousarray(patterns).view(np.uint8).reshape(rows, -1)
    digits = np.unpackbits(patterns.reshape(rows, depth // 16, 16, 1), axis=-1, bitorder="little")[..., :bits]
    units = np.zeros((rows, depth // 16, 128), np.uint8)
    units[..., : 16 * bits] = digits.reshape(rows, depth // 16, -1)
    return np.packbits(units, axis=-1, bitorder="little").reshape(rows, -1)


def unpacked_units(data: Array, element: ElementType) -> Array:
    """(rows, bytes) in whole units -> patterns (rows, K)."""
    rows = data.shape[0]
    if element.bits >= 8:
        return np.ascontiguousarray(data).view(f"u{element.size}").reshape(rows, -1)
    digits = np.unpackbits(np.ascontiguousarray(data).reshape(rows, -1, 16), axis=-1, bitorder="little")
    digits = digits[..., : 16 * element.bits].reshape(rows, -1, 16, element.bits)
    return np.packbits(digits, axis=-1, bitorder="little").reshape(rows, -1)


def container_bytes(patterns: Array, bits: int) -> Array:
    """Patterns in tensor memory: four bits are in the middle of their byte, six in the lower part of it."""
    return patterns << 2 if bits == 4 else patterns


def container_patterns(data: Array, bits: int) -> Array:
    """The inverse of `container_bytes`."""
    return data >> 2 & 15 if bits == 4 else data & (1 << bits) - 1
