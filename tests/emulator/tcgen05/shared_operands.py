"""How an operand of `tcgen05.mma` or `tcgen05.cp` lies in shared memory, from its descriptor alone.

Written from the PTX ISA, sections 9.7.16.3 (strides, canonical layouts), 9.7.16.4.1 (descriptor) and 9.7.16.10.6
(swizzle atoms).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Addresses = npt.NDArray[np.int64]

UNIT = 16
"""Bytes of one unit of the canonical layouts: 128 bits."""
SWIZZLES = {0: 0, 128: 2, 64: 4, 32: 6}
"""The swizzle in bytes, and its number in a descriptor."""
ATOMS_OF_32 = 1
"""The number of the swizzle of 128 bytes in atoms of 32."""
_WIDTHS = {number: width for width, number in SWIZZLES.items()} | {ATOMS_OF_32: 128}


@dataclass(frozen=True)
class SharedDescriptor:
    """A matrix in shared memory. Offsets are bytes and multiples of 16."""

    start: int
    leading: int = 16
    stride: int = 16
    swizzle: int = 0
    """A number of `SWIZZLES`, or `ATOMS_OF_32`."""
    base: int = 0
    """Bits 7 to 9 of the address at which the swizzle's pattern begins."""

    def encode(self) -> int:
        """The 64 bits of Table 40."""
        start, leading, stride = ((x & 0x3FFFF) >> 4 for x in (self.start, self.leading, self.stride))
        return start | leading << 16 | stride << 32 | 1 << 46 | self.base << 49 | self.swizzle << 61

    @classmethod
    def decode(cls, word: int) -> SharedDescriptor:
        """The matrix of 64 bits. Raises ValueError where the ISA fixes a bit otherwise."""
        if word >> 46 & 7 != 1 or word >> 53 & 0xFF or word >> 52 & 1:
            raise ValueError(f"descriptor {word:#x}: bits 46 to 48 are 0b001, and bits 52 to 60 are 0 on sm_100a")
        swizzle = word >> 61
        if swizzle not in _WIDTHS:
            raise ValueError(f"descriptor {word:#x}: {swizzle} is no swizzle")
        start, leading, stride = (((word >> bit) & 0x3FFF) << 4 for bit in (0, 16, 32))
        return cls(start, leading, stride, swizzle, word >> 49 & 7)

    @property
    def width(self) -> int:
        """Units of one row of the swizzle: 1, 2, 4 or 8."""
        return max(_WIDTHS[self.swizzle] // UNIT, 1)

    def swizzled(self, address: Addresses) -> Addresses:
        """Where a byte of the layout without a swizzle is."""
        rows = (address >> 7) - self.base
        if self.swizzle == ATOMS_OF_32:
            return address ^ (rows & 3) << 5
        return address ^ (rows & (self.width - 1)) << 4


def unit_addresses(matrix: SharedDescriptor, rows: int, units: int) -> Addresses:
    """Address of each unit of a K-major matrix, (rows, units): 16 bytes of consecutive K of one row."""
    row, unit = np.arange(rows, dtype=np.int64)[:, None], np.arange(units, dtype=np.int64)[None, :]
    step = UNIT if matrix.swizzle else matrix.leading
    offset = row % 8 * UNIT * matrix.width + row // 8 * matrix.stride + unit * step
    return matrix.swizzled(matrix.start + offset)


def transposed_addresses(matrix: SharedDescriptor, rows: int, depth: int, size: int) -> Addresses:
    """Address of each element of an MN-major matrix, (rows, depth), whose elements have `size` bytes."""
    per_unit = UNIT // size
    row, k = np.arange(rows, dtype=np.int64)[:, None], np.arange(depth, dtype=np.int64)[None, :]
    within, unit = row % per_unit * size, row // per_unit
    if not matrix.swizzle:
        offset = unit * matrix.stride + k % 8 * UNIT + k // 8 * matrix.leading
    else:
        group = 4 if matrix.swizzle == ATOMS_OF_32 else 8
        line = UNIT * matrix.width
        offset = unit % matrix.width * UNIT + unit // matrix.width * matrix.leading
        offset = offset + k % group * line + k // group * matrix.stride
    return matrix.swizzled(matrix.start + offset + within)
