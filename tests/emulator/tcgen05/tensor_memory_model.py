"""Tensor memory of Blackwell in NumPy: which cell each load, store, copy and shift of `tcgen05` reads or writes.

Written from the PTX ISA, sections 9.7.16.1 (addresses), 9.7.16.2.3 (fragments), 9.7.16.8 (ld, st) and 9.7.16.9
(cp, shift). The figures of the fragments are in NVIDIA's CUTLASS as layouts of `copy_traits_sm100.hpp`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from shared_operands import SharedDescriptor, unit_addresses

Words = npt.NDArray[np.uint32]
Indices = npt.NDArray[np.int64]

LANES, COLUMNS = 128, 512
"""Of one block's tensor memory, in words of 32 bits."""

SHAPES = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
"""Shapes of ld and st, and the registers of each thread for every repeat."""

COPIES = {
    "128x256b": (128, 2),
    "128x128b": (128, 1),
    "4x256b": (4, 2),
    "64x128b.warpx2::02_13": (64, 1),
    "64x128b.warpx2::01_23": (64, 1),
    "32x128b.warpx4": (32, 1),
}
"""Shapes of cp with their multicast: rows in shared memory, and units of 16 bytes in each row."""


SOURCES = {"": 8, ".b8x16.b6x16_p32": 6, ".b8x16.b4x16_p64": 4}
"""Formats of cp, and the bits of each of the 16 elements that a unit of 16 bytes begins with; the rest is padding."""


def address_of(lane: int, column: int) -> int:
    """The address of a cell."""
    return lane << 16 | column


def place_of(address: int) -> tuple[int, int]:
    """Lane and column of an address."""
    return address >> 16, address & 0xFFFF


def repeats_of(shape: str) -> list[int]:
    """The repeat counts that exist: those with at most 128 registers."""
    return [count for count in (1, 2, 4, 8, 16, 32, 64, 128) if count * SHAPES[shape] <= 128]


def fragment(shape: str, repeats: int, packed: bool = False, split: int = 0) -> tuple[Indices, Indices]:
    """Lane and column of each register of each thread, relative to the address: two arrays (registers, 32).

    A packed register holds the lower halves of the cell at `column` and of the next one. `split` is the distance in
    columns of the second half of 16x32bx2.
    """
    register = np.arange(repeats * SHAPES[shape])[:, None]
    thread = np.arange(32)[None, :]
    width = 2 if packed else 1
    if shape == "32x32b":
        lane, column = thread + 0 * register, width * register + 0 * thread
    elif shape == "16x64b":
        lane, column = thread // 4 + 8 * (thread % 2) + 0 * register, width * (thread // 2 % 2 + 2 * register)
    elif shape == "16x128b":
        lane, column = thread // 4 + 8 * (register % 2), width * (thread % 4 + 4 * (register // 2))
    elif shape == "16x256b":
        lane = thread // 4 + 8 * (register // 2 % 2)
        column = width * (2 * (thread % 4) + register % 2 + 8 * (register // 4))
    else:
        lane, column = thread % 16 + 0 * register, width * register + split * (thread // 16)
    return lane.astype(np.int64), column.astype(np.int64)


def load(memory: Words, address: int, shape: str, repeats: int, packed: bool = False, split: int = 0) -> Words:
    """tcgen05.ld: the registers (registers, 32) of a warp."""
    lane, column = fragment(shape, repeats, packed, split)
    first_lane, first_column = place_of(address)
    lane, column = lane + first_lane, column + first_column
    if not packed:
        return memory[lane, column]
    return memory[lane, column] & np.uint32(0xFFFF) | memory[lane, column + 1] << np.uint32(16)


def store(
    memory: Words, address: int, registers: Words, shape: str, repeats: int, unpacked: bool = False, split: int = 0
) -> tuple[Words, Words]:
    """tcgen05.st: the memory afterwards, and a mask of the bits that the ISA defines.

    With `.unpack::16b`, only the lower half of a cell is defined.
    """
    lane, column = fragment(shape, repeats, unpacked, split)
    first_lane, first_column = place_of(address)
    lane, column = lane + first_lane, column + first_column
    after, defined = memory.copy(), np.full_like(memory, 0xFFFFFFFF)
    if unpacked:
        after[lane, column], after[lane, column + 1] = registers & np.uint32(0xFFFF), registers >> np.uint32(16)
        defined[lane, column] = defined[lane, column + 1] = 0xFFFF
    else:
        after[lane, column] = registers
    return after, defined


def copied_rows(shape: str) -> Indices:
    """The row of the source that each of the 128 lanes receives, -1 for none; lanes are relative to the address."""
    rows = np.full(LANES, -1, np.int64)
    lane = np.arange(LANES)
    if shape.startswith("128x"):
        return lane
    if shape == "4x256b":
        rows[::32] = np.arange(4)
        return rows
    if shape == "32x128b.warpx4":
        return lane % 32
    if shape == "64x128b.warpx2::02_13":
        return lane % 64
    return lane // 64 * 32 + lane % 32


def decompressed(units: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Units of 16 elements (..., 16) -> a byte for each element: four bits in its middle, six in its lower part."""
    if bits == 8:
        return units
    digits = np.unpackbits(units, axis=-1, bitorder="little")[..., : 16 * bits]
    elements = np.packbits(digits.reshape(*units.shape, bits), axis=-1, bitorder="little")[..., 0]
    return elements << 2 if bits == 4 else elements


def copy(
    memory: Words, shared: npt.NDArray[np.uint8], address: int, descriptor: int, shape: str, source: str = ""
) -> Words:
    """tcgen05.cp: the memory afterwards. `source` is one of `SOURCES`.

    The source has rows of 16 bytes, or of 32 bytes in two units, where an operand that is K-major has them.
    """
    count, units = COPIES[shape]
    places = unit_addresses(SharedDescriptor.decode(descriptor), count, units)
    data = decompressed(shared[places[..., None] + np.arange(16)], SOURCES[source])
    words = np.ascontiguousarray(data).reshape(count, 16 * units).view(np.uint32)
    first_lane, first_column = place_of(address)
    after = memory.copy()
    for lane, row in enumerate(copied_rows(shape)):
        if row >= 0:
            after[lane + first_lane, first_column : first_column + 4 * units] = words[row]
    return after


def shifted(memory: Words, address: int, step: int) -> Words:
    """tcgen05.shift.down: 31 of the 32 lanes from the address on take 32 bytes of the lane before or after.

    The ISA shifts down "all the rows, except the last". Its text allows that lane i goes to lane i + 1 (`step` 1), and
    that lane i takes what lane i + 1 has (`step` -1).
    """
    lane, column = place_of(address)
    after = memory.copy()
    low, high = memory[lane : lane + 31, column : column + 8], memory[lane + 1 : lane + 32, column : column + 8]
    if step == 1:
        after[lane + 1 : lane + 32, column : column + 8] = low
    else:
        after[lane : lane + 31, column : column + 8] = high
    return after
