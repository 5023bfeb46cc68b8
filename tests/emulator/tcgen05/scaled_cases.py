"""Random operands and scale factors for `tcgen05.mma` with block scaling, and programs compared with the model.

As in `product_cases`, sums are exact in any order: elements are small whole numbers or any number of e2m1, and scale
factors are near 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from operand_formats import Array
from product_cases import A_COLUMN, SHARED_BYTES, Expected, random_matrix, random_memory, random_shared
from product_model import Bytes
from scaled_model import IDS, QUARTER, VECTORS, ScaledDescriptor, ScaledProduct, scaled_product
from tensor_machine import WAIT, Form, Step, TensorMachine
from tensor_memory_model import COLUMNS, LANES, Words, address_of

SCALES = {"ue8m0": [125, 126, 127, 128], "ue4m3": [0x00, 0x30, 0x38, 0x3C, 0x40]}
"""Codes of 1/4 to 2, and of 0, 1/2, 1, 3/2 and 2."""
SCALE_A_COLUMN, SCALE_B_COLUMN = 448, 480
"""The first columns of tensor memory that have scale factors of A and of B. Between `A_COLUMN` and them are factors."""
WITH_SCALES = tuple(f"mma.kind::{kind}.block_scale{vector}" for kind, vectors in VECTORS.items() for vector in vectors)
"""Every form, without `.cta_group`."""


def scaled_machine(*more: Form, blocks: int = 1, opcodes: Sequence[str] = WITH_SCALES) -> TensorMachine:
    """A kernel of these forms with A in shared memory and in tensor memory, and of more."""
    return TensorMachine((*(Form(each, tensor) for each in opcodes for tensor in (False, True)), *more), blocks)


SCALED = scaled_machine(
    *(Form(f"cp.{shape}") for shape in ("32x128b.warpx4", "128x128b.b8x16.b6x16_p32", "128x256b.b8x16.b4x16_p64")),
    Form("mma.kind::f8f6f4", True),
)
PAIRED = scaled_machine(
    blocks=2, opcodes=[f"mma.kind::{each}" for each in ("mxf8f6f4.block_scale", "mxf4nvf4.block_scale.scale_vec::4X")]
)


def scaled_shared(rng: np.random.Generator, form: ScaledDescriptor) -> Bytes:
    """Shared memory that has an element of A at each place of its first half, of B at each of its second half."""
    if form.is_packed:
        return rng.integers(0, 256, SHARED_BYTES).astype(np.uint8)
    return np.concatenate([random_shared(rng, name, SHARED_BYTES // 2) for name in (form.a, form.b)])


def with_scales(rng: np.random.Generator, memory: Words, codes: Array, columns: slice, halves: int = 1) -> Words:
    """Tensor memory where every byte of these columns is a random scale factor, the same in all partitions.

    With `halves` of 2, only the first two partitions and the last two are the same.
    """
    after = memory.copy()
    width = len(range(*columns.indices(COLUMNS)))
    for part in np.split(np.arange(LANES), halves):
        words = rng.choice(np.array(codes, np.uint8), (QUARTER, 4 * width)).view(np.uint32)
        after[part, columns] = np.tile(words, (part.size // QUARTER, 1))
    return after


def scaled_memories(rng: np.random.Generator, form: ScaledDescriptor, blocks: int, codes: Array) -> list[Words]:
    """Tensor memory of each block, with accumulators, factors and scale factors. Those of B are in both blocks."""
    of_b = np.random.default_rng(rng.integers(1 << 32)).bit_generator.state
    memories = []
    for _ in range(blocks):
        memory = random_memory(rng, "f32", form.a)
        if form.is_packed:
            memory[:, A_COLUMN:] = rng.integers(0, 1 << 32, (LANES, COLUMNS - A_COLUMN), np.uint32)
        two_by_two = blocks == 2 and form.m == 128
        if two_by_two:
            memory[64:, A_COLUMN:] = memory[:64, A_COLUMN:]
        memory = with_scales(rng, memory, codes, slice(SCALE_A_COLUMN, SCALE_B_COLUMN))
        same = np.random.default_rng()
        same.bit_generator.state = of_b
        memories.append(with_scales(same, memory, codes, slice(SCALE_B_COLUMN, COLUMNS), 1 + two_by_two))
    return memories


def random_scaled(
    rng: np.random.Generator,
    form: ScaledDescriptor,
    vector: str = "",
    column: int = 0,
    swizzles: tuple[int, int] = (0, 0),
    bases: tuple[int, int] = (0, 0),
    in_tensor_memory: bool = False,
    blocks: int = 1,
    accumulates: bool = True,
) -> ScaledProduct:
    """A product of random operands, of one block or of a pair, whose D begins at `column`."""
    a, b = (
        random_matrix(rng, which, rows, swizzle, turned, base).encode()
        for which, (rows, swizzle, turned, base) in enumerate(
            zip((form.m // blocks, form.n // blocks), swizzles, form.transpose, bases)
        )
    )
    if in_tensor_memory:
        a = A_COLUMN + 8 * int(rng.integers(0, (SCALE_A_COLUMN - A_COLUMN) // 8))
    scale_a = SCALE_A_COLUMN + int(rng.integers(0, SCALE_B_COLUMN - SCALE_A_COLUMN - 3))
    scale_b = SCALE_B_COLUMN + int(rng.integers(0, COLUMNS - SCALE_B_COLUMN - 7))
    return ScaledProduct(address_of(0, column), a, b, form, scale_a, scale_b, vector, in_tensor_memory, accumulates)


def random_ids(rng: np.random.Generator, kind: str, vector: str) -> tuple[int, int]:
    """Ids of scale factors that this kind and vector allow."""
    first, second = (int(x) for x in rng.choice(IDS[VECTORS[kind][vector]], 2))
    return first, second


def check_scaled(
    machine: TensorMachine, steps: Sequence[ScaledProduct], rng: np.random.Generator, in_turn: bool = True, **run: Any
) -> None:
    """Run products of the same types in one launch, waiting after each if `in_turn`; compare all of tensor memory."""
    form = steps[0].descriptor
    shareds = [scaled_shared(rng, form) for _ in range(machine.blocks)]
    memories = scaled_memories(rng, form, machine.blocks, np.array(SCALES[form.scale]))
    program: list[ScaledProduct | Step | str] = []
    expected = Expected(memories)
    for step in steps:
        program += [step, WAIT] if in_turn else [step]
        expected.write(scaled_product(step, expected.memories, shareds), step.descriptor)
    expected.check(machine.run(program, shareds, memories, **run), steps)
