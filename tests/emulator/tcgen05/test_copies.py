"""tcgen05.cp and tcgen05.shift: every shape, compared with the model in all cells (PTX ISA, section 9.7.16.9)."""

from __future__ import annotations

import numpy as np
import pytest
from product_cases import Expected
from shared_operands import SWIZZLES, SharedDescriptor
from tensor_machine import WAIT, Form, Step, TensorMachine
from tensor_memory_model import COLUMNS, COPIES, LANES, address_of, copy, shifted

SHARED_BYTES = 32 * 1024
COPY = TensorMachine((*(Form(f"cp.{shape}") for shape in COPIES), Form("shift.down")))
PAIRED_COPY = TensorMachine((Form("cp.128x256b"), Form("cp.32x128b.warpx4")), blocks=2)


def matrix(rng: np.random.Generator, swizzle: int, units: int) -> SharedDescriptor:
    """A matrix of up to 128 rows anywhere in shared memory; without a swizzle, its units are apart."""
    width = {0: 1, 6: 2, 4: 4, 2: 8}[swizzle]
    stride = 128 * width * int(rng.integers(1, 1 + 8 // width))
    start = (1024 if swizzle else 16) * int(rng.integers(0, 4))
    return SharedDescriptor(start, 16 * int(rng.integers(8, 100)) if units > 1 else 128, stride, swizzle)


@pytest.mark.parametrize(("swizzle", "lane"), [*((each, 0) for each in SWIZZLES.values()), (0, 31)])
def test_every_shape(swizzle: int, lane: int):
    """Each multicast, from each layout. 64x128b.warpx2::01_23 has rows of 16 bytes without gaps.

    4x256b writes one lane of each quarter, for example the last one, which `tcgen05.shift` leaves to be renewed.
    """
    rng = np.random.default_rng(swizzle)
    shared = rng.integers(0, 256, SHARED_BYTES).astype(np.uint8)
    memory = rng.integers(0, 1 << 32, (LANES, COLUMNS), np.uint32)
    expected = Expected([memory])
    program: list[Step | str] = []
    for i, (shape, (_, units)) in enumerate(COPIES.items()):
        if shape.endswith("01_23") and swizzle:
            continue
        source = matrix(rng, swizzle, units)
        if shape.endswith("01_23"):
            source = SharedDescriptor(source.start, 128, 128)
        at = address_of(lane if shape == "4x256b" else 0, 64 * i + int(rng.integers(0, 50)))
        program += [Step(f"cp.{shape}", at, source.encode()), WAIT]
        expected.memories[0] = copy(expected.memories[0], shared, at, source.encode(), shape)
    expected.check(COPY.run(program, [shared], [memory]), program)


def test_a_pair_copies_into_both_blocks():
    """Both have the same in shared memory."""
    rng = np.random.default_rng(1)
    shared = rng.integers(0, 256, SHARED_BYTES).astype(np.uint8)
    memories = [rng.integers(0, 1 << 32, (LANES, COLUMNS), np.uint32) for _ in range(2)]
    expected = Expected(memories)
    program: list[Step | str] = []
    for shape, column in (("128x256b", 3), ("32x128b.warpx4", 100)):
        source = matrix(rng, 0, COPIES[shape][1]).encode()
        program.append(Step(f"cp.{shape}", column, source))
        expected.memories = [copy(memory, shared, column, source, shape) for memory in expected.memories]
    expected.check(PAIRED_COPY.run(program, [shared] * 2, memories), program)


def test_shift():
    """The 32 lanes from the address on, in eight columns, all in the same direction."""
    rng = np.random.default_rng(2)
    memory = rng.integers(0, 1 << 32, (LANES, COLUMNS), np.uint32)
    places = [address_of(0, 8), address_of(64, 8), address_of(96, 256)]
    program = [each for place in places for each in (Step("shift.down", place), WAIT)]
    (found,) = COPY.run(program, [np.zeros(1024, np.uint8)], [memory])
    readings = [memory, memory]
    for place in places:
        readings = [shifted(each, place, step) for each, step in zip(readings, (1, -1))]
    assert any(np.array_equal(found, each) for each in readings)
