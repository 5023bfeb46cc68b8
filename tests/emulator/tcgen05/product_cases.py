"""Random operands and descriptors for `tcgen05.mma`, and programs of products compared with the model.

Shared memory and tensor memory are full of small whole numbers of the operands' type, whichever cells a descriptor
names. Sums are then exact, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from operand_formats import TYPES, Array, container_bytes, packed_units
from product_model import Bytes, InstructionDescriptor, Outcome, Product, accumulator_words, product
from scaled_model import ScaledDescriptor
from shared_operands import ATOMS_OF_32, SharedDescriptor, transposed_addresses, unit_addresses
from tensor_machine import WAIT, Step, TensorMachine
from tensor_memory_model import COLUMNS, LANES, Words, address_of

SHARED_BYTES = 96 * 1024
"""A's type is in the first half, B's in the second."""
A_COLUMN = 256
"""The first column of tensor memory that has factors. Before it are accumulators."""


def small_factors(rng: np.random.Generator, name: str, *shape: int) -> Array:
    """Patterns of whole numbers from -2 to 2, or from 0 to 4 of unsigned integers."""
    element = TYPES[name]
    return element.encode(rng.integers(0, 5, shape) if name == "u8" else rng.integers(-2, 3, shape))


def random_shared(rng: np.random.Generator, name: str, size: int) -> Bytes:
    """Shared memory that has such a factor at each place; the padding of sub-bytes is random."""
    element = TYPES[name]
    data = packed_units(small_factors(rng, name, size // 16, 16 // element.size), element.bits).reshape(-1)
    if element.bits >= 8:
        return data
    padding = rng.integers(0, 256, (size // 16, 16)).astype(np.uint8)
    padding[:, : 2 * element.bits] = 0
    return data | padding.reshape(-1)


def random_memory(rng: np.random.Generator, d: str, a: str) -> Words:
    """Tensor memory with accumulators, and factors from `A_COLUMN` on. Upper halves of f16 accumulators are random."""
    sums = rng.integers(-32, 33, (LANES, A_COLUMN))
    words = np.empty((LANES, COLUMNS), np.uint32)
    if d == "s32":
        words[:, :A_COLUMN] = sums.astype(np.int32).view(np.uint32)
    elif d == "f32":
        words[:, :A_COLUMN] = sums.astype(np.float32).view(np.uint32)
    else:
        high = rng.integers(0, 1 << 16, sums.shape).astype(np.uint32)
        words[:, :A_COLUMN] = sums.astype(np.float16).view(np.uint16) | high << np.uint32(16)
    element = TYPES[a]
    patterns = small_factors(rng, a, LANES, (COLUMNS - A_COLUMN) * 4 // element.size)
    factors = np.ascontiguousarray(container_bytes(patterns, element.bits))
    words[:, A_COLUMN:] = factors.view(np.uint32)
    return words


def random_matrix(
    rng: np.random.Generator, which: int, rows: int, swizzle: int, size: int = 0, base: int = 0
) -> SharedDescriptor:
    """A descriptor of A (`which` is 0) or B, of so many rows, at a random place with random strides.

    `size` is 0 for a K-major matrix; otherwise the matrix is MN-major with elements of so many bytes.
    """
    lines = 4 if swizzle == ATOMS_OF_32 else 8
    while True:
        matrix = SharedDescriptor(0, swizzle=swizzle, base=base)
        step = 16 * matrix.width * lines if swizzle else 16
        leading, stride = (step * int(x) for x in rng.integers(1, 1 + 4096 // step, 2))
        if not swizzle:
            # Eight rows, or eight of K, are together.
            leading, stride = max(leading, 128), max(stride, 128)
        matrix = SharedDescriptor(0, leading, stride, swizzle, base)
        places = transposed_addresses(matrix, rows, 32 // size, size) if size else unit_addresses(matrix, rows, 2)
        aligned = 1024 if swizzle else 16
        room = (SHARED_BYTES // 2 - int(places.max()) - 2048) // aligned
        if room > 0:
            break
    start = aligned * int(rng.integers(0, room)) + 128 * base + SHARED_BYTES // 2 * which
    if swizzle and not size:
        # Along K within a row of the pattern, as kernels step from one product to the next.
        start += 32 * int(rng.integers(0, matrix.width // 2))
    return SharedDescriptor(start, leading, stride, swizzle, base)


def random_product(
    rng: np.random.Generator,
    form: InstructionDescriptor,
    column: int = 0,
    lane: int = 0,
    swizzles: tuple[int, int] = (0, 0),
    bases: tuple[int, int] = (0, 0),
    in_tensor_memory: bool = False,
    blocks: int = 1,
    **options: Any,
) -> Product:
    """A product of random operands, of one block or of a pair, whose D begins at `column`."""
    sizes = [TYPES[name].size if turned else 0 for name, turned in zip((form.a, form.b), form.transpose)]
    a, b = (
        random_matrix(rng, which, rows, swizzle, size, base).encode()
        for which, (rows, swizzle, size, base) in enumerate(
            zip((form.m // blocks, form.n // blocks), swizzles, sizes, bases)
        )
    )
    if in_tensor_memory:
        a = address_of(lane, A_COLUMN + 8 * int(rng.integers(0, 31)))
    return Product(address_of(lane, column), a, b, form, in_tensor_memory, **options)


@dataclass
class Expected:
    """Tensor memory of each block as the model has it, and which bits the ISA defines."""

    memories: list[Words]
    defined: list[Words] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memories = [memory.copy() for memory in self.memories]
        self.defined = [np.full_like(memory, 0xFFFFFFFF) for memory in self.memories]

    def multiply(self, step: Product, shareds: Sequence[Bytes]) -> None:
        """Run one product whose sums are exact."""
        self.write(product(step, self.memories, shareds), step.descriptor)

    def write(self, result: Outcome, form: InstructionDescriptor | ScaledDescriptor) -> None:
        """The cells of D that are written have the sum; only the lower half of f16 is defined."""
        words = accumulator_words(result.exact, form)
        for block, (memory, defined) in enumerate(zip(self.memories, self.defined)):
            written = result.written & (result.block == block)
            cells = result.lane[written], result.column[written]
            memory[cells] = words[written]
            defined[cells] = 0xFFFF if form.d == "f16" else 0xFFFFFFFF

    def check(self, found: Sequence[Words], text: object) -> None:
        """Compare all cells of all blocks."""
        for block, (memory, defined, after) in enumerate(zip(self.memories, self.defined, found)):
            wrong = (memory ^ after) & defined != 0
            if wrong.any():
                lane, column = np.argwhere(wrong)[0]
                raise AssertionError(
                    f"{text}: {wrong.sum()} cells of block {block} are wrong; lane {lane}, column {column} is "
                    f"{after[lane, column]:#x} instead of {memory[lane, column]:#x}"
                )


def check_products(
    machine: TensorMachine, steps: Sequence[Product], rng: np.random.Generator, in_turn: bool = True, **run: Any
) -> None:
    """Run products of the same types in one launch, waiting after each if `in_turn`; compare all of tensor memory."""
    form = steps[0].descriptor
    shareds = [
        np.concatenate([random_shared(rng, name, SHARED_BYTES // 2) for name in (form.a, form.b)])
        for _ in range(machine.blocks)
    ]
    memories = [random_memory(rng, form.d, form.a) for _ in range(machine.blocks)]
    if machine.blocks == 2 and form.m == 128:
        # Each half of the lanes computes half of the columns, and needs all rows of A.
        for memory in memories:
            memory[64:, A_COLUMN:] = memory[:64, A_COLUMN:]
    program: list[Product | Step | str] = []
    expected = Expected(memories)
    for step in steps:
        program += [step, WAIT] if in_turn else [step]
        expected.multiply(step, shareds)
    expected.check(machine.run(program, shareds, memories, **run), steps)
