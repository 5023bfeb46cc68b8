"""tcgen05.cp with decompression, and what copies are for: elements of 4 and 6 bits, and scale factors.

PTX ISA, sections 9.7.16.9.1 (decompression), 9.7.16.9.2 (cp) and 9.7.16.6.2 (copies and products run in order).
"""

from __future__ import annotations

import numpy as np
import pytest
from lanes import exhaustive_unless
from product_cases import A_COLUMN, SHARED_BYTES, Expected, random_matrix, random_memory, random_shared
from product_model import InstructionDescriptor, Product, product
from scaled_cases import SCALE_A_COLUMN, SCALE_B_COLUMN, SCALED, SCALES, random_scaled, scaled_memories
from scaled_model import ScaledDescriptor, ScaledProduct, scaled_product
from shared_operands import SWIZZLES, SharedDescriptor
from tensor_machine import WAIT, Form, Step, TensorMachine
from tensor_memory_model import COLUMNS, COPIES, LANES, SOURCES, address_of, copy
from test_copies import matrix

PACKED = [source for source in SOURCES if source]
COPY = TensorMachine(tuple(Form(f"cp.{shape}{source}") for source in PACKED for shape in COPIES))
PAIRED_COPY = TensorMachine(tuple(Form(f"cp.128x128b{source}") for source in PACKED), blocks=2)
COPIED_BYTES = 32 * 1024


@pytest.mark.parametrize("swizzle", SWIZZLES.values())
@pytest.mark.parametrize("source", PACKED)
def test_every_shape(source: str, swizzle: int):
    """Each multicast from each layout; the padding of a unit is random and is not copied."""
    rng = np.random.default_rng(swizzle + len(source))
    shared = rng.integers(0, 256, COPIED_BYTES).astype(np.uint8)
    memory = rng.integers(0, 1 << 32, (LANES, COLUMNS), np.uint32)
    expected = Expected([memory])
    program: list[Step | str] = []
    for i, (shape, (_, units)) in enumerate(COPIES.items()):
        if shape.endswith("01_23") and swizzle:
            continue
        place = matrix(rng, swizzle, units)
        if shape.endswith("01_23"):
            place = SharedDescriptor(place.start, 128, 128)
        at = address_of(31 * (i % 2) if shape == "4x256b" else 0, 64 * i + int(rng.integers(0, 50)))
        program += [Step(f"cp.{shape}{source}", at, place.encode()), WAIT]
        expected.memories[0] = copy(expected.memories[0], shared, at, place.encode(), shape, source)
    expected.check(COPY.run(program, [shared], [memory]), program)


def test_a_pair_decompresses_into_both_blocks():
    """Both have the same in shared memory."""
    rng = np.random.default_rng(1)
    shared = rng.integers(0, 256, COPIED_BYTES).astype(np.uint8)
    memories = [rng.integers(0, 1 << 32, (LANES, COLUMNS), np.uint32) for _ in range(2)]
    expected = Expected(memories)
    program: list[Step | str] = []
    for column, source in zip((3, 100), PACKED):
        place = matrix(rng, 0, 1).encode()
        program.append(Step(f"cp.128x128b{source}", column, place))
        expected.memories = [copy(memory, shared, column, place, "128x128b", source) for memory in expected.memories]
    expected.check(PAIRED_COPY.run(program, [shared] * 2, memories), program)


COPIED = [("e2m3", "128x128b.b8x16.b6x16_p32"), ("e3m2", "128x128b.b8x16.b6x16_p32"),
          ("e2m1", "128x256b.b8x16.b4x16_p64")]  # fmt: skip


@pytest.mark.parametrize(("a", "opcode"), exhaustive_unless(lambda case: case[0] != "e3m2", COPIED))
def test_a_decompressed_operand(a: str, opcode: str):
    """A is copied to tensor memory and multiplied without a wait in between, with and without block scaling."""
    rng = np.random.default_rng(len(a + opcode))
    shared = np.concatenate([random_shared(rng, name, SHARED_BYTES // 2) for name in (a, "e2m1")])
    scaled = ScaledDescriptor("mxf8f6f4", a, "e2m1", 128, 64, ids=(1, 2))
    (memory,) = scaled_memories(rng, scaled, 1, np.array(SCALES["ue8m0"]))
    memory[:, A_COLUMN : A_COLUMN + 8] = random_memory(rng, "f32", "e5m2")[:, A_COLUMN : A_COLUMN + 8]
    expected = Expected([memory])
    program: list[ScaledProduct | Product | Step | str] = []
    shape, _, source = opcode.partition(".")
    places = [random_matrix(rng, 0, LANES, swizzle) for swizzle in (2, 4)]
    b = random_matrix(rng, 1, 64, 2).encode()
    for i, place in enumerate(places):
        at = A_COLUMN + 4 * i if shape == "128x128b" else A_COLUMN
        program.append(Step(f"cp.{opcode}", at, place.encode()))
        expected.memories[0] = copy(expected.memories[0], shared, at, place.encode(), shape, f".{source}")
        if shape == "128x256b":
            break
    plain = Product(0, A_COLUMN, b, InstructionDescriptor("f32", a, "e2m1", 128, 64), True)
    step = ScaledProduct(64, A_COLUMN, b, scaled, SCALE_A_COLUMN, SCALE_B_COLUMN, ".block32", True)
    program += [plain, step, WAIT]
    expected.write(product(plain, expected.memories, [shared]), plain.descriptor)
    expected.write(scaled_product(step, expected.memories, [shared]), scaled)
    expected.check(SCALED.run(program, [shared], [memory]), program)


@pytest.mark.parametrize(("vector", "scale"), [(".scale_vec::4X", "ue4m3"), (".scale_vec::2X", "ue8m0")])
def test_copied_scale_factors(vector: str, scale: str):
    """512 bytes of 128 rows are copied to all partitions, and used without a wait in between."""
    rng = np.random.default_rng(len(vector + scale))
    form = ScaledDescriptor("mxf4nvf4", "e2m1", "e2m1", 128, 256, scale, (0, 0))
    (memory,) = scaled_memories(rng, form, 1, np.array(SCALES[scale]))
    shared = rng.integers(0, 256, SHARED_BYTES).astype(np.uint8)
    shared[-2048:] = rng.choice(np.array(SCALES[scale], np.uint8), 2048)
    step = random_scaled(rng, form, vector, accumulates=False)
    expected = Expected([memory])
    program: list[ScaledProduct | Step | str] = []
    for i, at in enumerate((step.scale_a, step.scale_b, step.scale_b + 4)):
        place = SharedDescriptor(SHARED_BYTES - 512 * (i + 1), 16, 128).encode()
        program.append(Step("cp.32x128b.warpx4", at, place))
        expected.memories[0] = copy(expected.memories[0], shared, at, place, "32x128b.warpx4")
    program += [step, WAIT]
    expected.write(scaled_product(step, expected.memories, [shared]), form)
    expected.check(SCALED.run(program, [shared], [memory]), program)
