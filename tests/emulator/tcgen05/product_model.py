"""Products of `tcgen05.mma` in NumPy: instruction descriptors, where A, B and D are, and what D becomes.

Written from the PTX ISA, sections 9.7.16.2.1 (shapes), 9.7.16.4 (descriptors) and 9.7.16.10 (products). The figures of
the layouts of D are in NVIDIA's CUTLASS as layouts of `mma_traits_sm100_frag.hpp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from operand_formats import (
    ACCUMULATORS,
    DEPTHS,
    TYPES,
    Array,
    ElementType,
    container_patterns,
    unpacked_units,
)
from shared_operands import SharedDescriptor, transposed_addresses, unit_addresses
from tensor_memory_model import LANES, Words, place_of

if TYPE_CHECKING:
    from scaled_model import ScaledDescriptor

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class InstructionDescriptor:
    """The operands of Table 42: types, M, N and what is done to A and B."""

    d: str
    a: str
    b: str
    m: int
    n: int
    negate: tuple[int, int] = (0, 0)
    transpose: tuple[int, int] = (0, 0)
    saturate: int = 0

    @property
    def kind(self) -> str:
        return TYPES[self.a].kind

    @property
    def depth(self) -> int:
        """K of one instruction."""
        return DEPTHS[self.kind]

    def encode(self) -> int:
        """The 32 bits of Table 42."""
        word = self.saturate << 3 | ACCUMULATORS[self.d] << 4 | TYPES[self.a].number << 7 | TYPES[self.b].number << 10
        word |= self.negate[0] << 13 | self.negate[1] << 14 | self.transpose[0] << 15 | self.transpose[1] << 16
        return word | self.n >> 3 << 17 | self.m >> 4 << 24

    @classmethod
    def decode(cls, kind: str, word: int) -> InstructionDescriptor:
        """The operands of 32 bits, for an instruction of this kind. Raises ValueError for a reserved number."""
        types = {each.number: name for name, each in TYPES.items() if each.kind == kind}
        accumulators = {number: name for name, number in ACCUMULATORS.items()}
        a, b = word >> 7 & 7, word >> 10 & 7
        if a not in types or b not in types or (word >> 4 & 3) not in accumulators or word & 1 << 6 or word & 1 << 23:
            raise ValueError(f"instruction descriptor {word:#x} of kind {kind}")
        return cls(
            accumulators[word >> 4 & 3],
            types[a],
            types[b],
            (word >> 24 & 31) << 4,
            (word >> 17 & 63) << 3,
            (word >> 13 & 1, word >> 14 & 1),
            (word >> 15 & 1, word >> 16 & 1),
            word >> 3 & 1,
        )


def cells_of_d(m: int, n: int, blocks: int = 1, weights: bool = False) -> tuple[Array, Array, Array]:
    """Block, lane and column of each element of D, three arrays (m, n), relative to D's address.

    `blocks` is 2 for `.cta_group::2`; `weights` is set for `.ws`. These are the layouts A, B, D, E, F and G.
    """
    row, column = np.meshgrid(np.arange(m), np.arange(n), indexing="ij")
    if blocks == 2:
        block, row = row // (m // 2), row % (m // 2)
        if m == 256:
            return block, row, column
        return block, row + 64 * (column // (n // 2)), column % (n // 2)
    block = np.zeros_like(row)
    if weights and m < 128:
        parts = 128 // m
        return block, row + m * (column // (n // parts)), column % (n // parts)
    if m == 64:
        return block, row // 16 * 32 + row % 16, column
    return block, row, column


@dataclass(frozen=True)
class Product:
    """One `tcgen05.mma`."""

    d_address: int
    a: int
    """The descriptor of A in shared memory, or its address in tensor memory."""
    b: int
    """The descriptor of B."""
    descriptor: InstructionDescriptor
    a_in_tensor_memory: bool = False
    accumulates: bool = True
    disabled: tuple[int, ...] = field(default_factory=tuple)
    """Words of `disable-output-lane`: 4 for each block; or none."""
    scale: int = 0
    weights: bool = False
    """Whether this is `tcgen05.mma.ws`."""


@dataclass(frozen=True)
class Outcome:
    """What D has to be: arrays (m, n)."""

    block: Array
    lane: Array
    column: Array
    exact: Array
    """The sum, in float64 or int64."""
    magnitude: Array
    """The sum of the magnitudes of its addends."""
    written: Array
    """Whether the element's lane is enabled."""


def product(step: Product, memories: Sequence[Words], shareds: Sequence[Bytes]) -> Outcome:
    """D, from the tensor memory and the shared memory of one block, or of the two of a pair."""
    form, blocks = step.descriptor, len(memories)
    a = np.concatenate([_rows_of_a(step, blocks, *each) for each in zip(memories, shareds)])
    b = np.concatenate([_from_shared(step.b, form.n // blocks, form, 1, shared) for shared in shareds])
    a, b = (-x if negated else x for x, negated in zip((a, b), form.negate))
    lane, column = place_of(step.d_address)
    block, lanes, columns = cells_of_d(form.m, form.n, blocks, step.weights)
    lanes, columns = lanes + lane, columns + column
    old = np.zeros((form.m, form.n), a.dtype)
    if step.accumulates:
        words = np.stack(memories)[block, lanes, columns]
        old = accumulator_values(words, form.d) * (1 if form.d == "s32" else 2.0**-step.scale)
    enabled = np.ones((blocks, LANES), bool)
    if step.disabled:
        mask = np.array(step.disabled, np.uint32).view(np.uint8)
        enabled = ~np.unpackbits(mask, bitorder="little").astype(bool).reshape(blocks, LANES)
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b.T) + np.abs(old)
    return Outcome(block, lanes, columns, a @ b.T + old, magnitude, enabled[block, lanes])


def accumulator_values(words: Words, d: str) -> Array:
    """Values of D in tensor memory: one element in each word, 16 bits in the lower half."""
    if d == "s32":
        return words.view(np.int32).astype(np.int64)
    if d == "f32":
        return words.view(np.float32).astype(np.float64)
    return words.astype(np.uint16).view(np.float16).astype(np.float64)


def accumulator_words(values: Array, form: InstructionDescriptor | ScaledDescriptor) -> Words:
    """Values that are exact in D's type, or integers, as words; the upper half of f16 is 0."""
    if form.d == "s32":
        bound = values.clip(-(2**31), 2**31 - 1) if form.saturate else values
        return bound.astype(np.int32).view(np.uint32)
    if form.d == "f32":
        return (values + 0.0).astype(np.float32).view(np.uint32)
    return (values + 0.0).astype(np.float16).view(np.uint16).astype(np.uint32)


def _rows_of_a(step: Product, blocks: int, memory: Words, shared: Bytes) -> Array:
    """A's rows of one block, (m / blocks, K)."""
    form = step.descriptor
    rows = form.m // blocks
    if not step.a_in_tensor_memory:
        return _from_shared(step.a, rows, form, 0, shared)
    element = TYPES[form.a]
    _, lane, _ = cells_of_d(rows, 8, 1, step.weights or blocks == 2)
    first_lane, column = place_of(step.a)
    words = memory[lane[:, 0] + first_lane, column : column + 8]
    patterns = np.ascontiguousarray(words).view(f"u{element.size}")
    return element.decode(container_patterns(patterns, element.bits) if element.bits < 8 else patterns)


def _from_shared(word: int, rows: int, form: InstructionDescriptor, which: int, shared: Bytes) -> Array:
    """A or B of one block, (rows, K)."""
    matrix = SharedDescriptor.decode(word)
    element: ElementType = TYPES[(form.a, form.b)[which]]
    if form.transpose[which]:
        places = transposed_addresses(matrix, rows, form.depth, element.size)
        data = shared[places[..., None] + np.arange(element.size)]
        return element.decode(data.view(f"u{element.size}")[..., 0])
    units = unit_addresses(matrix, rows, 2)
    data = shared[units[..., None] + np.arange(16)].reshape(rows, 32)
    return element.decode(unpacked_units(data, element))
