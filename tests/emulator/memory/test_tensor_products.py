"""tcgen05.mma in one block: every layout of its operands, shapes, types, and the bits of its sums."""

from __future__ import annotations

import itertools
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from operands import Array

from tests.emulator.tensor_core import dot_product
from tests.emulator.tensor_operands import SPANS, Layout
from tests.emulator.tensor_products import Product, lane_of

F16_F32, BF16_F32, F16_F16, TF32_F32 = (0, 0, 1), (1, 1, 1), (0, 0, 0), (2, 2, 1)
SIMPLE = Product("f16", 128, 64, F16_F32)


def whole_numbers(rows: int, depth: int, kind: str) -> Array:
    """Small whole numbers, whose sums are exact, as patterns."""
    rng = np.random.default_rng(rows + depth)
    values = rng.integers(-4, 5, (rows, depth))
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16)
    if kind == "tf32":
        return values.astype(np.float32).view(np.uint32)
    return values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def values_of(patterns: Array, kind: str) -> Array:
    """The numbers of patterns."""
    forms = {"f16": np.float16, "tf32": np.float32, "f8f6f4": ml_dtypes.float8_e4m3fn, "i8": np.int8}
    return patterns.view(forms[kind]).astype(np.float32)


def d_of(cells: Array, product: Product) -> Array:
    """(rows, columns) of bits."""
    lanes = [lane_of(row, product.rows, product.lane) for row in range(product.rows)]
    return cells[: product.columns, lanes].T


def check_whole_numbers(product: Product, sign: int = 1) -> None:
    a = whole_numbers(product.rows, product.depth, product.kind)
    b = whole_numbers(product.columns, product.depth, product.kind)
    found = d_of(product.run(a, b), product).copy().view(np.float32)
    expected = values_of(a, product.kind) @ values_of(b, product.kind).T
    assert np.array_equal(found, sign * expected)


def layouts(kind: str, turned: bool, swizzle: str, extent: int, size: int, depth: int) -> Layout:
    """A layout with gaps between its parts."""
    span = 16 * SPANS[swizzle]
    if not turned:
        return Layout(False, swizzle, extent * span + 64 if swizzle == "none" else 16, 8 * span)
    if swizzle == "none":
        return Layout(True, swizzle, extent * size * 8 + 256, 128)
    rows = 4 if swizzle == "128 of 32" else 8
    return Layout(True, swizzle, depth * span, rows * span)


@pytest.mark.parametrize("kind", ["f16", "tf32", "f8f6f4"])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("swizzle", ["none", "32", "64", "128"])
def test_every_layout(kind: str, turned: tuple[bool, bool], swizzle: str) -> None:
    types = {"f16": F16_F32, "tf32": TF32_F32, "f8f6f4": (0, 0, 1)}[kind]
    size = {"f16": 2, "tf32": 4, "f8f6f4": 1}[kind]
    steps = 1 if swizzle == "32" else 2
    product = Product(kind, 128, 128, types, steps)
    of = [
        layouts(kind, turns, "128 of 32" if kind == "tf32" and turns else swizzle, 128, size, product.depth)
        for turns in turned
    ]
    check_whole_numbers(replace(product, a=of[0], b=of[1]))


@pytest.mark.parametrize(("rows", "columns", "lane"), [(64, 8, 0), (64, 72, 16), (128, 256, 0), (128, 8, 0)])
@pytest.mark.parametrize("form", ["shared", "tensor"])
def test_every_shape(rows: int, columns: int, lane: int, form: str) -> None:
    check_whole_numbers(replace(SIMPLE, rows=rows, columns=columns, lane=lane, form=form))


def test_other_lanes_and_columns_do_not_change() -> None:
    product = replace(SIMPLE, rows=64, columns=40)
    a, b = whole_numbers(64, 32, "f16"), whole_numbers(40, 32, "f16")
    before = np.arange(256 * 128, dtype=np.uint32).reshape(256, 128)
    after = product.run(a, b, before)
    lanes = [lane_of(row, 64) for row in range(64)]
    written = np.zeros((256, 128), bool)
    written[np.ix_(range(40), lanes)] = True
    assert np.array_equal(after[~written], before[~written])
    assert (after[written] != before[written]).any()


def test_the_other_form_of_a_product() -> None:
    """`.ws` with 64 rows: lanes 64 and up have the second half of the columns; with 32, quarters."""
    for rows in (128, 64, 32):
        product = replace(SIMPLE, rows=rows, form="ws")
        a, b = whole_numbers(rows, 32, "f16"), whole_numbers(64, 32, "f16")
        cells = product.run(a, b).view(np.float32)
        expected = values_of(a, "f16") @ values_of(b, "f16").T
        parts = 128 // rows
        found = np.concatenate([cells[: 64 // parts, rows * p : rows * (p + 1)].T for p in range(parts)], 1)
        assert np.array_equal(found, expected)


def test_lanes_that_are_not_written() -> None:
    product = replace(SIMPLE, form="disabled")
    a, b = whole_numbers(128, 32, "f16"), whole_numbers(64, 32, "f16")
    masks = (0x1, 0xF0F0F0F0, 0, 0xFFFFFFFF)
    before = np.full((256, 128), 7, np.uint32)
    after = product.run(a, b, before, masks)[:64]
    off = np.array([masks[lane // 32] >> lane % 32 & 1 for lane in range(128)], bool)
    assert (after[:, off] == 7).all()
    expected = (values_of(a, "f16") @ values_of(b, "f16").T).T
    assert np.array_equal(after.view(np.float32)[:, ~off], expected[:, ~off])


@pytest.mark.parametrize(("form", "factor"), [("shared", 1.0), ("scaled", 0.125), ("collector", 1.0)])
@pytest.mark.parametrize("types", [F16_F32, F16_F16], ids=["f32", "f16"])
def test_d_is_added_to(form: str, factor: float, types: tuple[int, int, int]) -> None:
    product = replace(SIMPLE, form=form, adds=1, types=types, steps=1)
    a, b = whole_numbers(128, 16, "f16"), whole_numbers(64, 16, "f16")
    d = np.random.default_rng(0).integers(-64, 65, (256, 128)).astype(np.float32)
    bits = d.view(np.uint32) if types == F16_F32 else d.astype(np.float16).view(np.uint16).astype(np.uint32)
    found = d_of(product.run(a, b, bits), product)
    expected = factor * d[:64].T + values_of(a, "f16") @ values_of(b, "f16").T
    if types == F16_F32:
        assert np.array_equal(found.copy().view(np.float32), expected)
    else:
        assert (found >> 16 == 0).all()
        assert np.array_equal(found.astype(np.uint16).view(np.float16), expected)


@pytest.mark.parametrize("negated", [(1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("form", ["shared", "tensor"])
@pytest.mark.parametrize("kind", ["f16", "tf32", "f8f6f4"])
def test_negated_operands(negated: tuple[int, int], form: str, kind: str) -> None:
    types = {"f16": F16_F32, "tf32": TF32_F32, "f8f6f4": (0, 0, 1)}[kind]
    check_whole_numbers(Product(kind, 128, 32, types, form=form, negated=negated), -1 if sum(negated) == 1 else 1)


FLOATS = {
    "f16 f32": ("f16", F16_F32), "bf16 f32": ("f16", BF16_F32), "f16 f16": ("f16", F16_F16),
    "tf32 f32": ("tf32", TF32_F32), "e4m3_e4m3 f32": ("f8f6f4", (0, 0, 1)), "e5m2_e4m3 f32": ("f8f6f4", (1, 0, 1)),
    "e4m3_e5m2 f16": ("f8f6f4", (0, 1, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOATS)
def test_bits_of_sums(name: str) -> None:
    """Random factors with exponents apart, and some special ones, held against a model in whole numbers."""
    kind, types = FLOATS[name]
    product = Product(kind, 128, 16, types, steps=1, form="tensor", adds=1)
    rng = np.random.default_rng(len(name))
    depth = product.depth
    kinds, accumulator = name.replace("_", " ").rsplit(" ", 1)
    operands = []
    for count in (128, 16):
        values = rng.standard_normal((count, depth)) * 2.0 ** rng.integers(-6, 6, (count, depth))
        if kind == "f8f6f4":
            patterns = rng.integers(0, 256, (count, depth), np.uint8)
            patterns[count // 8 :] &= 0xBF
            patterns[count // 2 :] = patterns[count // 2 :] & 0x87 | 0x38
        elif kind == "tf32":
            patterns = values.astype(np.float32).view(np.uint32)
        else:
            form = np.dtype(np.float16 if kinds == "f16" else ml_dtypes.bfloat16)
            patterns = values.astype(form).view(np.uint16)
            patterns[0, 3] = 0x7F80 if kinds == "bf16" else 0x7C00
            patterns[1, 5] = 0x7FFF
            patterns[2] = 1
        operands.append(patterns)
    a, b = operands
    c = (rng.standard_normal((256, 128)) * 16).astype(np.float32)
    bits = c.view(np.uint32) if accumulator == "f32" else c.astype(np.float16).view(np.uint16).astype(np.uint32)
    found = d_of(product.run(a, b, bits), product)
    shift = 13 if kind == "tf32" else 0
    for row, column in itertools.product([0, 1, 2, *range(3, 128, 7)], range(0, 16, 3)):
        expected = dot_product(
            kinds, accumulator, (a[row] >> shift).tolist(), (b[column] >> shift).tolist(), int(bits[column, row]),
            kept_bits=25,
        )  # fmt: skip
        assert int(found[row, column]) == expected, (row, column)


@pytest.mark.parametrize("types", list(itertools.product((0, 1), (0, 1))), ids=str)
@pytest.mark.parametrize("saturates", [0, 1])
def test_whole_numbers_wrap_or_saturate(types: tuple[int, int], saturates: int) -> None:
    product = Product("i8", 128, 32, (*types, 2), steps=1, adds=1, more=saturates << 3)
    rng = np.random.default_rng(sum(types))
    a, b = (rng.integers(0, 256, (count, 32), np.uint8) for count in (128, 32))
    c = rng.choice(np.array([0, 5, 2**31 - 1, -(2**31)]), (256, 128)).astype(np.int32)
    found = d_of(product.run(a, b, c.view(np.uint32)), product).copy().view(np.int32)
    left, right = (x.view(np.int8 if kind else np.uint8).astype(np.int64) for x, kind in zip((a, b), types))
    total = left @ right.T + c[:32].T
    expected = total.clip(-(2**31), 2**31 - 1) if saturates else total.astype(np.int32)
    assert np.array_equal(found, expected)
