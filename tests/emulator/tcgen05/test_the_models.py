"""The models of `tcgen05` give what the PTX ISA's own examples say. Nothing is compiled."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from operand_formats import TYPES, packed_units, unpacked_units
from product_model import InstructionDescriptor, cells_of_d
from shared_operands import SWIZZLES, SharedDescriptor, transposed_addresses, unit_addresses

pytestmark = pytest.mark.compiles(False)


def offset_of(index: int, shape: Sequence[int], strides: Sequence[int]) -> int:
    """One mode of a CuTe layout: the index's digits, the first of them fastest, times strides."""
    total = 0
    for extent, stride in zip(shape, strides):
        total, index = total + index % extent * stride, index // extent
    return total


EXAMPLES = [
    # Swizzle bits, (M or N shape, strides), (K shape, strides) in elements; bytes of one; leading, stride; transposed.
    (0, ((8, 2), (4, 32)), ((4, 4), (1, 64)), 4, 64 * 4, 32 * 4, False),
    (1, ((8, 2), (8, 64)), ((4, 4), (1, 4)), 4, 16, 64 * 4, False),
    (0, ((8, 1, 2), (1, 8, 64)), ((8, 2), (8, 128)), 2, 128 * 2, 64 * 2, True),
    (1, ((8, 2, 2), (1, 8, 128)), ((8, 2), (16, 256)), 2, 128 * 2, 256 * 2, True),
    (2, ((8, 4, 2), (1, 8, 256)), ((8, 2), (32, 512)), 2, 256 * 2, 512 * 2, True),
]
"""Those of section 9.7.16.3.3."""


@pytest.mark.parametrize(("bits", "rows", "depth", "size", "leading", "stride", "transposed"), EXAMPLES)
def test_canonical_layouts(bits, rows, depth, size, leading, stride, transposed):
    """Swizzle<B, 4, 3> flips bits 4 ff. of an address where bits 7 ff. are set."""
    swizzle = list(SWIZZLES.values())[{0: 0, 1: 3, 2: 2}[bits]]
    matrix = SharedDescriptor.decode(SharedDescriptor(2048, leading, stride, swizzle).encode())
    m, k = int(np.prod(rows[0])), int(np.prod(depth[0]))
    if transposed:
        found = transposed_addresses(matrix, m, k, size)
    else:
        per_unit = 16 // size
        units = unit_addresses(matrix, m, k // per_unit)
        found = units[:, np.arange(k) // per_unit] + np.arange(k) % per_unit * size
    for i, j in itertools.product(range(m), range(k)):
        address = 2048 + size * (offset_of(i, *rows) + offset_of(j, *depth))
        assert found[i, j] == address ^ (address >> 7 & (1 << bits) - 1) << 4


@pytest.mark.parametrize("swizzle", [number for number in SWIZZLES.values() if number])
@pytest.mark.parametrize("base", range(8))
def test_a_pattern_begins_at_its_base_offset(swizzle: int, base: int):
    """It is the one of an aligned matrix, further on."""
    aligned, later = (SharedDescriptor(1024 + 128 * b, 16, 1024, swizzle, b) for b in (0, base))
    assert np.array_equal(unit_addresses(aligned, 16, 2) + 128 * base, unit_addresses(later, 16, 2))


SHAPES_OF_D = [
    (64, 1, False, {0: (0, 0), 16: (32, 0), 63: (111, 0)}),
    (128, 1, False, {0: (0, 0), 127: (127, 0)}),
    (32, 1, True, {0: (0, 0), 31: (31, 0)}),
    (64, 1, True, {63: (63, 0)}),
    (128, 2, False, {63: (63, 0), 64: (0, 0)}),
    (256, 2, False, {127: (127, 0), 128: (0, 0)}),
]


@pytest.mark.parametrize(("m", "blocks", "weights", "places"), SHAPES_OF_D)
def test_layouts_of_d(m: int, blocks: int, weights: bool, places: dict[int, tuple[int, int]]):
    """Each element has a cell of its own, and D fills a rectangle of cells."""
    block, lane, column = cells_of_d(m, 64, blocks, weights)
    assert len(set(zip(block.ravel().tolist(), lane.ravel().tolist(), column.ravel().tolist()))) == m * 64
    assert m * 64 == blocks * np.unique(lane).size * np.unique(column).size
    for row, place in places.items():
        assert (lane[row, 0], column[row, 0]) == place and block[row, 0] == row // (m // blocks)


def test_descriptors_are_decoded():
    """The words of Tables 40 and 42, by hand and back."""
    form = InstructionDescriptor("f32", "bf16", "f16", 128, 72, (1, 0), (0, 1))
    assert form.encode() == 1 << 4 | 1 << 7 | 1 << 13 | 1 << 16 | 9 << 17 | 8 << 24
    assert InstructionDescriptor.decode("f16", form.encode()) == form
    matrix = SharedDescriptor(0x1230, 0x100, 0x80, 2, 5)
    assert matrix.encode() == 0x123 | 0x10 << 16 | 0x8 << 32 | 1 << 46 | 5 << 49 | 2 << 61
    assert SharedDescriptor.decode(matrix.encode()) == matrix
    for wrong in (matrix.encode() & ~(1 << 46), matrix.encode() | 1 << 61, matrix.encode() | 1 << 53):
        with pytest.raises(ValueError, match="descriptor"):
            SharedDescriptor.decode(wrong)


@pytest.mark.parametrize("name", TYPES)
def test_units_hold_their_elements(name: str):
    element = TYPES[name]
    count = 1 << min(element.bits, 16)
    patterns = np.arange(count).astype(f"u{element.size}").reshape(-1, 16)
    units = packed_units(patterns, element.bits)
    assert units.shape[1] == 16 * element.size
    assert np.array_equal(unpacked_units(units, element), patterns)
    if element.bits < 8:
        assert not units[:, 2 * element.bits :].any()
