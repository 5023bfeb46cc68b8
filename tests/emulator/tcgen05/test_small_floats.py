"""Every code of the small floats and of scale factors, as tcgen05.mma understands it.

PTX ISA, sections 9.7.16.10.4 (packing) and 9.7.16.10.7 (block scaling). Each sum has one addend that is not zero, so
that it is exact whatever its magnitude.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from operand_formats import TYPES, Array, container_bytes, packed_units
from product_model import Bytes, InstructionDescriptor, Outcome, Product, accumulator_values, product
from scaled_cases import SCALED, with_scales
from scaled_model import NOT_A_NUMBER, VECTORS, ScaledDescriptor, ScaledProduct, scale_cells, scaled_product
from shared_operands import SharedDescriptor
from tensor_machine import WAIT, Step, TensorMachine
from tensor_memory_model import COLUMNS, LANES, Words
from test_products import FLOATS

FORMATS = {name: element for name, element in TYPES.items() if element.kind == "f8f6f4"}
HALF = 256 * 32
"""Bytes of A or B in shared memory: up to 256 rows of two units, without a swizzle."""
A, B = (SharedDescriptor(HALF * which, 128, 256).encode() for which in (0, 1))
A_COLUMN, SCALE_A_COLUMN, SCALE_B_COLUMN = 256, 448, 480
SMALLEST, LARGEST = 2.0**-126, 2.0**127
"""Magnitudes that have all bits of f32."""


def operand(name: str, codes: Array, depth: int, place: int, is_packed: bool = False) -> Array:
    """Bytes (rows, 32) of a matrix that has these codes at `place` of K, and zeros."""
    patterns = np.zeros((len(codes), depth), np.uint8)
    patterns[:, place] = codes
    if is_packed:
        return patterns[:, ::2] | patterns[:, 1::2] << 4
    return packed_units(patterns, TYPES[name].bits)


def in_shared(*matrices: Array) -> Bytes:
    """Shared memory with A and B where their descriptors say: eight rows of 16 bytes are together."""
    shared = np.zeros((2, HALF), np.uint8)
    for half, data in zip(shared, matrices):
        units = data.reshape(-1, 8, 2, 16).transpose(0, 2, 1, 3)
        half[: data.size] = units.reshape(-1)
    return shared.reshape(-1)


def in_tensor_memory(name: str, codes: Array, depth: int, place: int, is_packed: bool = False) -> Words:
    """Tensor memory that has the same matrix A in its rows."""
    data = operand("e4m3", codes, depth, place, is_packed)
    if not is_packed:
        data = container_bytes(data, TYPES[name].bits)
    memory = np.zeros((LANES, COLUMNS), np.uint32)
    memory[:, A_COLUMN : A_COLUMN + 8] = np.ascontiguousarray(data).view(np.uint32)
    return memory


def check_values(machine: TensorMachine, step: Product | ScaledProduct, memory: Words, shared: Bytes) -> Outcome:
    """Run one product; compare NaN, infinities and those magnitudes that have all bits of f32."""
    program: list[Product | ScaledProduct | Step | str] = [step, WAIT]
    with np.errstate(invalid="ignore", over="ignore"):
        if isinstance(step, ScaledProduct):
            result = scaled_product(step, [memory], [shared])
        else:
            result = product(step, [memory], [shared])
    (after,) = machine.run(program, [shared], [memory])
    found = accumulator_values(after[result.lane, result.column], step.descriptor.d)
    exact = result.exact
    with np.errstate(invalid="ignore"):
        fits = ~np.isfinite(exact) | (exact == 0) | ((np.abs(exact) >= SMALLEST) & (np.abs(exact) <= LARGEST))
    wrong = fits & (found != exact) & ~(np.isnan(found) & np.isnan(exact))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise AssertionError(
            f"{step}: {wrong.sum()} elements are wrong; row {row}, column {column} is {found[row, column]} instead of "
            f"{exact[row, column]}"
        )
    return result


def codes_of(name: str, count: int, first: int = 0) -> Array:
    """Codes in turn, from `first` on."""
    return ((first + np.arange(count)) % (1 << TYPES[name].bits)).astype(np.uint8)


PAIRS = list(itertools.combinations_with_replacement(FORMATS, 2))


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_every_code(a: str, b: str):
    """Every code of A by every one of B, at a place of K that changes, with A in either memory."""
    rng = np.random.default_rng(PAIRS.index((a, b)))
    for first in range(0, 1 << FORMATS[a].bits, LANES):
        place = int(rng.integers(0, 32))
        left, right = codes_of(a, LANES, first), codes_of(b, 256)
        tensor = first % 256 == LANES or (FORMATS[a].bits < 8 and PAIRS.index((a, b)) % 2 == 1)
        memory = in_tensor_memory(a, left, 32, place)
        shared = in_shared(operand(a, left, 32, place), operand(b, right, 32, place))
        form = InstructionDescriptor("f32", a, b, 128, 256)
        result = check_values(FLOATS, Product(0, A_COLUMN if tensor else A, B, form, tensor, False), memory, shared)
        assert np.unique(result.exact).size > 8


SCALED_TYPES = [*(("mxf8f6f4", *types) for a in FORMATS for types in ((a, "e2m1"), ("e2m3", a))),
                ("mxf4", "e2m1", "e2m1"), ("mxf4nvf4", "e2m1", "e2m1")]  # fmt: skip


@pytest.mark.parametrize(("kind", "a", "b"), SCALED_TYPES)
def test_every_code_scaled(kind: str, a: str, b: str):
    """The same with `.block_scale` and any scale factors; elements of 4 bits are alone in their byte or in pairs."""
    vector = next(iter(VECTORS[kind]))
    form = ScaledDescriptor(kind, a, b, 128, 256, "ue8m0")
    rng = np.random.default_rng(len(kind + a + b))
    for place in rng.permutation(form.depth)[:4].tolist():
        left, right = codes_of(a, LANES, 128 * (place % 2)), codes_of(b, 256)
        tensor = bool(place % 3)
        memory = in_tensor_memory(a, left, form.depth, place, form.is_packed)
        memory = with_scales(rng, memory, np.arange(100, 155), slice(SCALE_A_COLUMN, COLUMNS))
        shared = in_shared(*(operand(n, c, form.depth, place, form.is_packed) for n, c in ((a, left), (b, right))))
        step = ScaledProduct(
            0, A_COLUMN if tensor else A, B, form, SCALE_A_COLUMN, SCALE_B_COLUMN, vector, tensor, False
        )
        check_values(SCALED, step, memory, shared)


SCALED_BY = [("mxf8f6f4", "", "ue8m0"), ("mxf4", "", "ue8m0"), ("mxf4nvf4", ".block16", "ue8m0"),
             ("mxf4nvf4", ".block16", "ue4m3")]  # fmt: skip


@pytest.mark.parametrize(("kind", "vector", "scale"), SCALED_BY)
def test_every_scale_factor(kind: str, vector: str, scale: str):
    """Every code of A's scale factors by every one of B's, among them NaN; the other blocks of K have none of zero."""
    count = 256 if scale == "ue8m0" else 128
    per_row = VECTORS[kind][vector]
    form = ScaledDescriptor(kind, "e2m1", "e2m1", 128, 256, scale)
    rng = np.random.default_rng(len(kind + scale))
    one = TYPES["e2m1"].encode(np.ones(1))[0]
    for first in range(0, count, LANES):
        block = int(rng.integers(0, per_row))
        place = form.depth // per_row * block + int(rng.integers(0, form.depth // per_row))
        codes = [(first + np.arange(LANES)) % count, np.arange(256) % count]
        memory = np.zeros((LANES, COLUMNS), np.uint32)
        for column, row_codes in zip((SCALE_A_COLUMN, SCALE_B_COLUMN), codes):
            words = np.full(len(row_codes), 0x38 if scale == "ue4m3" else 0x7F, np.uint32)[:, None].repeat(4, axis=1)
            words[:, block] = row_codes
            lane, at = scale_cells(len(row_codes))
            for copy in range(4):
                memory[lane + 32 * copy, column + at] = words.astype(np.uint8).view("<u4")[:, 0]
        ones = (np.full(LANES, one), np.full(256, one))
        shared = in_shared(*(operand("e2m1", each, form.depth, place, form.is_packed) for each in ones))
        step = ScaledProduct(0, A, B, form, SCALE_A_COLUMN, SCALE_B_COLUMN, vector, accumulates=False)
        result = check_values(SCALED, step, memory, shared)
        is_nan = (codes[0] == NOT_A_NUMBER[scale])[:, None] | (codes[1] == NOT_A_NUMBER[scale])[None, :]
        assert np.array_equal(np.isnan(result.exact), is_nan)


@pytest.mark.parametrize("kind", ["mxf8f6f4", "mxf4nvf4"])
def test_a_block_of_zeros_by_nan(kind: str):
    """Zero by a scale factor that is NaN is NaN."""
    form = ScaledDescriptor(kind, "e2m1", "e2m1", 128, 8, "ue8m0")
    memory = np.zeros((LANES, COLUMNS), np.uint32)
    memory[:, SCALE_A_COLUMN:] = 0x7F7F7F7F
    memory[3::32, SCALE_A_COLUMN] = 0x7F7F7FFF
    vector = ".block32" if kind == "mxf8f6f4" else ".block16"
    step = ScaledProduct(0, A, B, form, SCALE_A_COLUMN, SCALE_B_COLUMN, vector, accumulates=False)
    result = check_values(SCALED, step, memory, np.zeros(2 * HALF, np.uint8))
    assert np.array_equal(np.flatnonzero(np.isnan(result.exact).all(axis=1)), [3])
