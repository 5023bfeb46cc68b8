"""Products of `tcgen05.mma` with block scaling in NumPy: descriptors, scale factors, and what D becomes.

Written from the PTX ISA, sections 9.7.16.4.2 (Tables 43 and 44), 9.7.16.10.4 (packing) and 9.7.16.10.7 (scale factors).
The figures of the layouts of scale factors are in NVIDIA's CUTLASS as the layouts of `tmem_sf_frg`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from operand_formats import TYPES, Array, container_patterns, unpacked_units
from product_model import Bytes, Outcome, accumulator_values, cells_of_d
from shared_operands import SharedDescriptor, transposed_addresses, unit_addresses
from tensor_memory_model import LANES, Words, place_of

QUARTER = 32
"""Lanes of one partition of tensor memory. Each partition has a copy of the scale factors."""
NOT_A_NUMBER = {"ue8m0": 0xFF, "ue4m3": 0x7F}
"""The code of NaN of each type of scale factors."""
SCALE_TYPES = {"ue4m3": 0, "ue8m0": 1}
"""Types of scale factors, and their numbers in the instruction descriptor."""
PACKED_E2M1 = 1
"""The number of e2m1 in descriptors of `.kind::mxf4` and `.kind::mxf4nvf4`."""
DEPTHS = {"mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
"""K of one instruction by its kind."""
VECTORS = {
    "mxf8f6f4": {"": 1, ".scale_vec::1X": 1, ".block32": 1},
    "mxf4": {"": 2, ".scale_vec::2X": 2, ".block32": 2},
    "mxf4nvf4": {".scale_vec::2X": 2, ".block32": 2, ".scale_vec::4X": 4, ".block16": 4},
}
"""Scale factors of one row by kind and qualifier (Table 56)."""
FORMATS = [
    ("mxf8f6f4", ".scale_vec::1X", "ue8m0"),
    ("mxf4", ".scale_vec::2X", "ue8m0"),
    ("mxf4nvf4", ".scale_vec::2X", "ue8m0"),
    ("mxf4nvf4", ".scale_vec::4X", "ue8m0"),
    ("mxf4nvf4", ".scale_vec::4X", "ue4m3"),
]
"""Kind, scale vector and type of scale factors (Table 57)."""
IDS = {1: (0, 1, 2, 3), 2: (0, 2), 4: (0,)}
"""Ids of scale factors by their number in one row: the first byte of a word."""


def scale_values(codes: Array, name: str) -> Array:
    """Float64 values of scale factors. Bit 7 of ue4m3 is 0."""
    codes = codes.astype(np.int64)
    if name == "ue8m0":
        values = np.ldexp(1.0, codes - 127)
    else:
        exponent, fraction = codes >> 3 & 15, codes & 7
        values = np.ldexp(np.where(exponent > 0, 8 + fraction, fraction), np.maximum(exponent, 1) - 10)
    return np.where(codes == NOT_A_NUMBER[name], np.nan, values)


@dataclass(frozen=True)
class ScaledDescriptor:
    """The operands of Table 43 (`.kind::mxf8f6f4`) or Table 44 (the other kinds)."""

    kind: str
    a: str
    b: str
    m: int
    n: int
    scale: str = "ue8m0"
    """The type of the scale factors of A and B."""
    ids: tuple[int, int] = (0, 0)
    """The first byte of a word that has scale factors, of A and of B."""
    negate: tuple[int, int] = (0, 0)
    transpose: tuple[int, int] = (0, 0)
    d: str = "f32"
    saturate: int = 0

    @property
    def is_packed(self) -> bool:
        """Whether two elements share a byte."""
        return self.kind != "mxf8f6f4"

    @property
    def depth(self) -> int:
        """K of one instruction."""
        return DEPTHS[self.kind]

    def encode(self) -> int:
        """The 32 bits."""
        a, b = (PACKED_E2M1 if self.is_packed else TYPES[name].number for name in (self.a, self.b))
        word = self.ids[1] << 4 | a << 7 | b << 10 | self.negate[0] << 13 | self.negate[1] << 14
        word |= self.transpose[0] << 15 | self.transpose[1] << 16 | self.n >> 3 << 17
        return word | SCALE_TYPES[self.scale] << 23 | self.m >> 7 << 27 | self.ids[0] << 29

    @classmethod
    def decode(cls, kind: str, word: int) -> ScaledDescriptor:
        """The operands of 32 bits, for an instruction of this kind. Raises ValueError for a reserved number."""
        names = {each.number: name for name, each in TYPES.items() if each.kind == "f8f6f4"}
        reserved = 1 << 31 | 7 << 24 | 1 << 6 | 0b1011
        if kind != "mxf8f6f4":
            names, reserved = {PACKED_E2M1: "e2m1"}, reserved | 1 << 12 | 3 << 15
        numbers = word >> 7 & 7, word >> 10 & 7
        if word & reserved or not names.keys() >= {*numbers}:
            raise ValueError(f"instruction descriptor {word:#x} of kind {kind}")
        scales = {number: name for name, number in SCALE_TYPES.items()}
        return cls(
            kind,
            names[numbers[0]],
            names[numbers[1]],
            (word >> 27 & 3) << 7,
            (word >> 17 & 63) << 3,
            scales[word >> 23 & 1],
            (word >> 29 & 3, word >> 4 & 3),
            (word >> 13 & 1, word >> 14 & 1),
            (word >> 15 & 1, word >> 16 & 1),
        )


def scale_cells(rows: int, halves: int = 1) -> tuple[Array, Array]:
    """Lane and column of the word that has a row's scale factors, relative to their address: two arrays (rows,).

    32 rows are in the lanes of one column, the next 32 in the next column, and each partition of 32 lanes has the same.
    With `halves` of 2, the first half of the rows is in the partitions 0 and 1, the second half in 2 and 3.
    """
    row = np.arange(rows)
    half, row = row // (rows // halves), row % (rows // halves)
    return row % QUARTER + 2 * QUARTER * half, row // QUARTER


def scale_codes(memory: Words, address: int, rows: int, count: int, first_byte: int, halves: int = 1) -> Array:
    """(rows, count) codes of scale factors. Raises ValueError where partitions differ."""
    lane, column = scale_cells(rows, halves)
    first_lane, first_column = place_of(address)
    copies = [
        memory[first_lane + lane + QUARTER * copy, first_column + column].astype("<u4").view(np.uint8).reshape(rows, 4)
        for copy in range(LANES // QUARTER // halves)
    ]
    if any(not np.array_equal(copies[0], each) for each in copies):
        raise ValueError(f"scale factors at {address:#x} are not the same in all partitions")
    return copies[0][:, first_byte : first_byte + count]


def nibbles(data: Array) -> Array:
    """(rows, bytes) -> patterns (rows, 2 bytes): the lower four bits come first."""
    return np.stack((data & 15, data >> 4), axis=-1).reshape(data.shape[0], -1)


@dataclass(frozen=True)
class ScaledProduct:
    """One `tcgen05.mma` with `.block_scale`."""

    d_address: int
    a: int
    """The descriptor of A in shared memory, or its address in tensor memory."""
    b: int
    """The descriptor of B."""
    descriptor: ScaledDescriptor
    scale_a: int
    """The address of A's scale factors in tensor memory."""
    scale_b: int
    vector: str = ""
    """The qualifier that says how many there are, from `VECTORS`."""
    a_in_tensor_memory: bool = False
    accumulates: bool = True

    @property
    def opcode(self) -> str:
        """Without `.cta_group`."""
        return f"mma.kind::{self.descriptor.kind}.block_scale{self.vector}"


def scaled_product(step: ScaledProduct, memories: Sequence[Words], shareds: Sequence[Bytes]) -> Outcome:
    """D, from the tensor memory and the shared memory of one block, or of the two of a pair."""
    form, blocks = step.descriptor, len(memories)
    rows, count = form.m // blocks, VECTORS[form.kind][step.vector]
    b = np.concatenate([_from_shared(step.b, form.n // blocks, form, 1, shared) for shared in shareds])
    halves = 2 if blocks == 2 and form.m == 128 else 1
    sums, magnitudes = [], []
    with np.errstate(invalid="ignore", over="ignore"):
        for memory, shared in zip(memories, shareds):
            a = _rows_of_a(step, rows, halves, memory, shared)
            scales = (
                scale_codes(memory, step.scale_a, rows, count, form.ids[0]),
                scale_codes(memory, step.scale_b, form.n, count, form.ids[1], halves),
            )
            left, right = (
                x * (-1 if negated else 1) * np.repeat(scale_values(codes, form.scale), form.depth // count, axis=1)
                for x, negated, codes in zip((a, b), form.negate, scales)
            )
            sums.append(left @ right.T)
            magnitudes.append(np.abs(left) @ np.abs(right.T))
    lane, column = place_of(step.d_address)
    block, lanes, columns = cells_of_d(form.m, form.n, blocks)
    lanes, columns = lanes + lane, columns + column
    old = np.zeros((form.m, form.n))
    if step.accumulates:
        old = accumulator_values(np.stack(memories)[block, lanes, columns], form.d)
    exact, magnitude = np.concatenate(sums) + old, np.concatenate(magnitudes) + np.abs(old)
    return Outcome(block, lanes, columns, exact, magnitude, np.ones(block.shape, bool))


def _rows_of_a(step: ScaledProduct, rows: int, halves: int, memory: Words, shared: Bytes) -> Array:
    """A's rows of one block, (rows, K), without their scale factors."""
    form = step.descriptor
    if not step.a_in_tensor_memory:
        return _from_shared(step.a, rows, form, 0, shared)
    lane, column = place_of(step.a)
    words = memory[lane : lane + rows, column : column + 8]
    if halves == 2 and not np.array_equal(words, memory[lane + rows : lane + 2 * rows, column : column + 8]):
        raise ValueError("both halves of the lanes need all rows of A")
    data = np.ascontiguousarray(words).view(np.uint8)
    element = TYPES[form.a]
    return element.decode(nibbles(data) if form.is_packed else container_patterns(data, element.bits))


def _from_shared(word: int, rows: int, form: ScaledDescriptor, which: int, shared: Bytes) -> Array:
    """A or B of one block, (rows, K), without its scale factors."""
    matrix = SharedDescriptor.decode(word)
    element = TYPES[(form.a, form.b)[which]]
    if form.transpose[which]:
        return element.decode(shared[transposed_addresses(matrix, rows, form.depth, 1)])
    units = unit_addresses(matrix, rows, 2)
    data = shared[units[..., None] + np.arange(16)].reshape(rows, 32)
    return element.decode(nibbles(data) if form.is_packed else unpacked_units(data, element))
