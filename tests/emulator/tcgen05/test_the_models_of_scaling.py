"""The models of small floats, block scaling and decompression give what the PTX ISA says. Nothing is compiled."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from operand_formats import TYPES, container_bytes, container_patterns, packed_units
from scaled_cases import SCALES, random_ids, random_scaled, scaled_memories, scaled_shared
from scaled_model import (
    FORMATS,
    IDS,
    NOT_A_NUMBER,
    VECTORS,
    ScaledDescriptor,
    nibbles,
    scale_cells,
    scale_codes,
    scale_values,
    scaled_product,
)
from shared_operands import SharedDescriptor, unit_addresses
from tensor_memory_model import COLUMNS, LANES, SOURCES, copy, decompressed

pytestmark = pytest.mark.compiles(False)

FIELDS = {"e2m3": (2, 3, 1), "e3m2": (3, 2, 3), "e2m1": (2, 1, 1), "e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}
"""Bits of the exponent and of the fraction, and the bias."""


@pytest.mark.parametrize("name", FIELDS)
def test_every_code(name: str):
    """Sign, exponent and fraction. Those of 6 and 4 bits have neither infinities nor NaN."""
    exponent_bits, fraction_bits, bias = FIELDS[name]
    codes = np.arange(1 << TYPES[name].bits)
    values = TYPES[name].decode(codes.astype(np.uint8))
    for code, value in zip(codes.tolist(), values.tolist()):
        exponent, fraction = code >> fraction_bits & (1 << exponent_bits) - 1, code & (1 << fraction_bits) - 1
        sign = -1.0 if code >> exponent_bits + fraction_bits else 1.0
        if name == "e5m2" and exponent == 31:
            assert value == sign * np.inf if fraction == 0 else np.isnan(value)
        elif name == "e4m3" and code & 127 == 127:
            assert np.isnan(value)
        else:
            significand = fraction / (1 << fraction_bits) + (exponent > 0)
            assert value == sign * significand * 2.0 ** (max(exponent, 1) - bias)
            assert np.signbit(value) == (sign < 0)


def test_scale_factors():
    """ue8m0 is a power of two; ue4m3 is e4m3 without a sign."""
    codes = np.arange(256)
    assert scale_values(codes, "ue8m0")[[0, 1, 127, 128, 254]].tolist() == [2**-127, 2**-126, 1, 2, 2**127]
    for name, count, dtype in (("ue8m0", 256, ml_dtypes.float8_e8m0fnu), ("ue4m3", 128, ml_dtypes.float8_e4m3fn)):
        found = scale_values(codes[:count], name)
        assert np.array_equal(found, codes[:count].astype(np.uint8).view(dtype).astype(np.float64), equal_nan=True)
        assert np.flatnonzero(np.isnan(found)).tolist() == [NOT_A_NUMBER[name]]


def test_descriptors_are_decoded():
    """The words of Tables 43 and 44, by hand and back; reserved bits and numbers."""
    form = ScaledDescriptor("mxf8f6f4", "e3m2", "e2m1", 256, 136, "ue8m0", (3, 1), (1, 0), (0, 0))
    assert form.encode() == 1 << 4 | 4 << 7 | 5 << 10 | 1 << 13 | 17 << 17 | 1 << 23 | 2 << 27 | 3 << 29
    assert ScaledDescriptor.decode("mxf8f6f4", form.encode()) == form
    packed = ScaledDescriptor("mxf4nvf4", "e2m1", "e2m1", 128, 8, "ue4m3", (2, 2), (0, 1))
    assert packed.encode() == 2 << 4 | 1 << 7 | 1 << 10 | 1 << 14 | 1 << 17 | 1 << 27 | 2 << 29
    assert ScaledDescriptor.decode("mxf4nvf4", packed.encode()) == packed
    for bit in (0, 1, 3, 6, 24, 25, 26, 31):
        with pytest.raises(ValueError, match="descriptor"):
            ScaledDescriptor.decode("mxf8f6f4", form.encode() | 1 << bit)
    for bit in (8, 9, 12, 15, 16):
        with pytest.raises(ValueError, match="descriptor"):
            ScaledDescriptor.decode("mxf4nvf4", packed.encode() | 1 << bit)


@pytest.mark.parametrize("halves", [1, 2])
def test_cells_of_scale_factors(halves: int):
    """A partition has 32 rows in each column; with two halves, a partition has one half of the rows."""
    lane, column = scale_cells(256, halves)
    places = list(zip(lane.tolist(), column.tolist()))
    assert len(set(places)) == 256 and places[0] == (0, 0) and places[33] == (1, 1) and places[127] == (31, 3)
    assert places[128] == ((0, 4) if halves == 1 else (64, 0)) and column.max() == 8 // halves - 1
    assert {part // 32 for part in lane.tolist()} == {0} if halves == 1 else {0, 2}


def test_bytes_of_scale_factors():
    """The id is the first byte. All partitions have to be the same."""
    memory = np.zeros((LANES, COLUMNS), np.uint32)
    memory[5::32, 11] = 0x44332211
    for count, ids in IDS.items():
        for first in ids:
            expected = [0x11, 0x22, 0x33, 0x44][first : first + count]
            assert scale_codes(memory, 10, 64, count, first)[37].tolist() == expected
    memory[5 + 96, 11] = 0
    with pytest.raises(ValueError, match="partitions"):
        scale_codes(memory, 10, 64, 1, 0)


def test_nibbles():
    assert nibbles(np.array([[0x21, 0x43]], np.uint8)).tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize("name", ["e2m3", "e3m2", "e2m1"])
def test_decompression(name: str):
    """A unit becomes what tensor memory has of the same elements, whatever its padding."""
    bits = TYPES[name].bits
    rng = np.random.default_rng(bits)
    patterns = rng.integers(0, 1 << bits, (8, 32)).astype(np.uint8)
    units = packed_units(patterns, bits).reshape(8, 2, 16)
    units[..., 2 * bits :] = rng.integers(0, 256, units[..., 2 * bits :].shape)
    found = decompressed(units, bits).reshape(8, 32)
    assert np.array_equal(found, container_bytes(patterns, bits))
    assert np.array_equal(container_patterns(found, bits), patterns)


def test_decompression_by_hand():
    """Elements 1, 2, 3, 4 of 6 bits are the bytes 0x81, 0x30, 0x10; those of 4 bits are 0x21, 0x43."""
    unit = np.zeros(16, np.uint8)
    unit[:3], unit[12:] = (0x81, 0x30, 0x10), 0xFF
    assert decompressed(unit, 6).tolist() == [1, 2, 3, 4] + [0] * 12
    unit[:3], unit[8:] = (0x21, 0x43, 0), 0xFF
    assert decompressed(unit, 4).tolist() == [4, 8, 12, 16] + [0] * 12
    assert sorted(SOURCES.values()) == [4, 6, 8]


def test_copied_scale_factors():
    """Byte k of row m is byte 16 (m % 32) + 4 (m / 32) + k of 512 bytes."""
    shared = np.random.default_rng(0).integers(0, 256, 512).astype(np.uint8)
    memory = copy(
        np.zeros((LANES, COLUMNS), np.uint32), shared, 7, SharedDescriptor(0, 16, 128).encode(), "32x128b.warpx4"
    )
    found = scale_codes(memory, 7, 128, 4, 0)
    for m, k in itertools.product(range(128), range(4)):
        assert found[m, k] == shared[16 * (m % 32) + 4 * (m // 32) + k]


@pytest.mark.parametrize(("m", "blocks"), [(128, 1), (256, 2), (128, 2)])
@pytest.mark.parametrize(("kind", "vector", "scale"), FORMATS)
def test_elements_of_a_product(kind: str, vector: str, scale: str, m: int, blocks: int):
    """Some elements of D, each by its own sum over K; with M = 128 in two blocks, half of the lanes has 48 columns."""
    rng = np.random.default_rng(m + blocks)
    rows, half = m // blocks, 48 if m // blocks == 64 else 96
    form = ScaledDescriptor(kind, "e2m1", "e2m1", m, 96, scale, random_ids(rng, kind, vector), (1, 0))
    step = random_scaled(rng, form, vector, 40, (2, 0), blocks=blocks)
    shareds = [scaled_shared(rng, form) for _ in range(blocks)]
    memories = scaled_memories(rng, form, blocks, np.array(SCALES[scale]))
    result = scaled_product(step, memories, shareds)

    def element(matrix: SharedDescriptor, row: int, rows: int, k: int) -> float:
        """One of A or B."""
        per_unit = 32 if form.is_packed else 16
        unit = int(unit_addresses(matrix, rows, 2)[row % rows, k // per_unit])
        bit = 4 * (k % per_unit)
        data = shareds[row // rows][unit + bit // 8 : unit + bit // 8 + 1]
        return float(TYPES["e2m1"].decode(data >> bit % 8 & 15)[0])

    def factor(block: int, address: int, row: int, first_lane: int, k: int, which: int) -> float:
        """The scale factor of one element."""
        word = int(memories[block][first_lane + row % 32, address + row // 32])
        code = word >> 8 * (form.ids[which] + k * VECTORS[kind][vector] // form.depth) & 0xFF
        return float(scale_values(np.array([code]), scale)[0])

    a, b = SharedDescriptor.decode(step.a), SharedDescriptor.decode(step.b)
    for row, column in zip(rng.integers(0, m, 6).tolist(), rng.integers(0, 96, 6).tolist()):
        block, upper, within = row // rows, 64 * (column // half), column % half
        place = (block, row % rows + upper, 40 + within)
        total = float(memories[block][place[1], place[2] : place[2] + 1].view(np.float32)[0])
        for k in range(form.depth):
            left = -element(a, row, rows, k) * factor(block, step.scale_a, row % rows, 0, k, 0)
            right = element(b, column, 96 // blocks, k) * factor(block, step.scale_b, within, upper, k, 1)
            total += left * right
        assert result.exact[row, column] == total
        assert (result.block[row, column], result.lane[row, column], result.column[row, column]) == place
