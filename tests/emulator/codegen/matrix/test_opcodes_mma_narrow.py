"""mma.sync of whole numbers, 8-bit floats and doubles: where elements lie, and what comes of them."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from exact_floats import F64
from lanes import exhaustive_unless, is_exhaustive
from operands import Array
from single_opcode import HEADER, run_ptx
from tensor_core import dot_product

from harness.support.errors import UnsupportedInstruction

GROUP, PLACE = np.arange(32) >> 2, np.arange(32) & 3
"""PTX ISA 9.7.14.5.2 ff. call them groupID and threadID_in_group."""
Shape = tuple[int, int]
"""Rows and K; there are 8 columns."""


def tiles(rows: int, depth: int, step: int) -> list[tuple[int, int]]:
    """Where each register of A begins."""
    return [(top, left) for left in range(0, depth, step) for top in range(0, rows, 8)]


def packed(matrix: Array, places: list[tuple[Array, Array]]) -> Array:
    """Elements of 8 bits at four places -> a register."""
    word = np.zeros((len(matrix), 32), np.uint32)
    for item, (row, column) in enumerate(places):
        word |= matrix[:, row, column].astype(np.uint32) << np.uint32(8 * item)
    return word


def bytes_of_a(a: Array) -> Array:
    """(matrices, registers, lanes)."""
    _, rows, depth = a.shape
    places = [[(GROUP + top, 4 * PLACE + left + i) for i in range(4)] for top, left in tiles(rows, depth, 16)]
    return np.stack([packed(a, four) for four in places], 1)


def bytes_of_b(b: Array) -> Array:
    return np.stack(
        [packed(b, [(4 * PLACE + top + i, GROUP) for i in range(4)]) for top in range(0, b.shape[1], 16)], 1
    )


def words_of_c(c: Array) -> Array:
    if c.dtype == np.uint16:
        return words_of_c(c.astype(np.uint32))[:, ::2] | words_of_c(c.astype(np.uint32))[:, 1::2] << np.uint32(16)
    places = [(GROUP + top, 2 * PLACE + i) for top in range(0, c.shape[1], 8) for i in (0, 1)]
    return np.stack([c[:, row, column] for row, column in places], 1)


def matrix_of(registers: Array, rows: int, half: bool = False) -> Array:
    """The way back from D."""
    if half:
        registers = np.stack([registers & 0xFFFF, registers >> 16], 2).reshape(len(registers), -1, 32)
    d = np.zeros((len(registers), rows, 8), registers.dtype)
    for i in range(registers.shape[1]):
        d[:, GROUP + 8 * (i // 2), 2 * PLACE + i % 2] = registers[:, i]
    return d


def braces(name: str, count: int) -> str:
    return "{" + ", ".join(f"{name}{i}" for i in range(count)) + "}"


def multiply(form: str, a: Array, b: Array, c: Array, half: bool = False) -> Array:
    """D's registers, one warp to each product; `a`, `b`, `c` are (products, registers, lanes).

    PTX 8.7 has all forms.
    """
    counts = {name: array.shape[1] for name, array in zip("abc", (a, b, c))}
    kind, size = ("f64", 8) if a.dtype == np.float64 else ("b32", 4)
    lines = [
        HEADER.replace("8.4", "8.7"),
        ".visible .entry kernel(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd) {",
    ]
    lines += [f".reg .b32 lane, block, word; .reg .b64 base, p; .reg .{kind} a<9>, b<5>, c<5>, d<5>;"]
    lines += ["mov.u32 lane, %tid.x; mov.u32 block, %ctaid.x;"]
    for name in "abcd":
        count = counts.get(name, counts["c"])
        lines += [f"ld.param.u64 base, [p{name}]; mad.lo.u32 word, block, {32 * count}, lane;"]
        lines += [f"mad.wide.u32 p, word, {size}, base;"]
        if name == "d":
            registers = ", ".join(braces(n, counts.get(n, counts["c"])) for n in "dabc")
            lines += [f"mma.sync.aligned.{form} {registers};"]
            lines += [f"st.global.{kind} [p+{32 * size * i}], d{i};" for i in range(count)]
        else:
            lines += [f"ld.global.{kind} {name}{i}, [p+{32 * size * i}];" for i in range(count)]
    d = np.zeros(c.shape, c.dtype)
    arrays = {"a": a, "b": b, "c": c, "d": d}
    run_ptx("\n".join([*lines, "ret; }"]), {n: np.ascontiguousarray(x) if n != "d" else d for n, x in arrays.items()},
            grid=len(a))  # fmt: skip
    return d


# Whole numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", list(itertools.product(("s8", "u8"), repeat=2)))
@pytest.mark.parametrize("shape", [(8, 16), (16, 16), (16, 32)])
def test_whole_numbers(shape: Shape, kinds: tuple[str, str]):
    """Sums wrap, or are clamped: C is drawn from everywhere and from near both ends."""
    rng = np.random.default_rng(shape[1])
    rows, depth = shape
    a, b = rng.integers(0, 256, (12, rows, depth), np.uint8), rng.integers(0, 256, (12, depth, 8), np.uint8)
    a[0], b[0] = 0x80, 0x80
    c = rng.integers(-(2**31), 2**31, (12, rows, 8))
    c[4:8] = rng.integers(2**31 - 40_000, 2**31, (4, rows, 8))
    c[8:] = rng.integers(-(2**31), 40_000 - 2**31, (4, rows, 8))
    signed = {"s8": np.int8, "u8": np.uint8}
    exact = a.view(signed[kinds[0]]).astype(np.int64) @ b.view(signed[kinds[1]]).astype(np.int64) + c
    assert (np.abs(exact) > 2**31).any()
    for word, expected in (("", exact.astype(np.int32)), (".satfinite", exact.clip(-(2**31), 2**31 - 1))):
        form = f"m{rows}n8k{depth}.row.col{word}.s32.{kinds[0]}.{kinds[1]}.s32"
        d = multiply(form, bytes_of_a(a), bytes_of_b(b), words_of_c(c.astype(np.uint32)))
        assert np.array_equal(matrix_of(d, rows).view(np.int32), expected), form


# 8-bit floats ---------------------------------------------------------------------------------------------------------

TYPES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def float_operands(depth: int, accumulator: str) -> tuple[Array, Array, Array]:
    """Any patterns, numbers near each other with some zeros, and rows with hardly anything that is special."""
    rng = np.random.default_rng(depth)
    a, b = rng.integers(0, 256, (9, 16, depth), np.uint8), rng.integers(0, 256, (9, depth, 8), np.uint8)
    for near in (a[3:6], b[3:6]):
        near[:] = np.where(rng.random(near.shape) < 0.2, 0, near & 0x8F | 0x30)
    for tame in (a[6:], b[6:]):
        tame[:] = np.where(rng.random(tame.shape) < 0.999, tame & 0xBF, tame)
    word = np.uint16 if accumulator == "f16" else np.uint32
    c = rng.integers(0, np.iinfo(word).max, (9, 16, 8), word, endpoint=True)
    c[3:] = (rng.standard_normal(c[3:].shape) * 4).astype(f"f{word().itemsize}").view(word)
    c[7] = 0
    return a, b, c


def converted(kind: str, patterns: Array) -> list[list[int]]:
    """As f16, which has all of them."""
    with np.errstate(invalid="ignore"):
        return patterns.view(TYPES[kind]).astype(np.float16).view(np.uint16).tolist()


def halves(depth: int) -> list[list[int]]:
    """Which K are added up together: of each four neighbours two."""
    return [[k for k in range(depth) if k % 4 // 2 == part] for part in (0, 1)]


FLOAT_FORMS = [
    (depth, kinds, accumulator)
    for depth in (16, 32)
    for kinds in itertools.product(TYPES, repeat=2)
    for accumulator in ("f32", "f16")
]


@pytest.mark.parametrize(
    ("depth", "kinds", "accumulator"),
    exhaustive_unless(lambda form: form[1] == ("e4m3", "e5m2") or form[::2] == (32, "f32"), FLOAT_FORMS),
)
def test_eight_bit_floats(depth: int, kinds: tuple[str, str], accumulator: str):
    """Two products of f16 in halves of K, and C is added as a number is added to another."""
    a, b, c = float_operands(depth, accumulator)
    form = f"m16n8k{depth}.row.col.{accumulator}.{kinds[0]}.{kinds[1]}.{accumulator}"
    found = matrix_of(multiply(form, bytes_of_a(a), bytes_of_b(b), words_of_c(c)), 16, accumulator == "f16")
    number = np.float16 if accumulator == "f16" else np.float32
    nan = 0x7FFF if accumulator == "f16" else 0x7FFFFFFF
    for n, i, j in np.ndindex(len(a), 16, 8):
        row, column = converted(kinds[0], a[n, i]), converted(kinds[1], b[n, :, j])
        total = 0
        for part in halves(depth):
            total = dot_product("f16", accumulator, [row[k] for k in part], [column[k] for k in part], total)
        with np.errstate(invalid="ignore", over="ignore"):
            last = c[n, i, j].view(number) + np.array(total, c.dtype).view(number)
        expected = nan if np.isnan(last) else int(last.view(c.dtype))
        assert int(found[n, i, j]) == expected, (n, i, j)


# Doubles --------------------------------------------------------------------------------------------------------------


ROUNDED = [(shape, word) for shape in ((8, 4), (16, 4), (16, 8), (16, 16)) for word in ("", ".rn", ".rz", ".rm", ".rp")]


@pytest.mark.parametrize(
    ("shape", "rounding"), exhaustive_unless(lambda form: not form[1] or form == ((16, 4), ".rz"), ROUNDED)
)
def test_doubles(shape: Shape, rounding: str):
    """A chain of fused multiply-adds; exponents are far apart, so that its order shows."""
    rows, depth = shape
    rng = np.random.default_rng(depth)
    a, b, c = (
        rng.standard_normal((2, *extents)) * 2.0 ** rng.integers(-30, 30, (2, *extents))
        for extents in ((rows, depth), (depth, 8), (rows, 8))
    )
    words = [np.stack([a[:, GROUP + top, PLACE + left] for top, left in tiles(rows, depth, 4)], 1)]
    words += [np.stack([b[:, PLACE + top, GROUP] for top in range(0, depth, 4)], 1), words_of_c(c)]
    form = f"m{rows}n8k{depth}.row.col.f64.f64.f64.f64{rounding}"
    found = matrix_of(multiply(form, *words), rows).view(np.uint64)
    a, b, c = (matrix.view(np.uint64) for matrix in (a, b, c))
    for n, i, j in np.ndindex(2, rows, 8):
        total: int | None = int(c[n, i, j])
        for k in range(depth):
            assert total is not None
            total = F64.fma(int(a[n, i, k]), int(b[n, k, j]), total, rounding[1:] or "rn")
        assert int(found[n, i, j]) == total, (n, i, j)


# Many -----------------------------------------------------------------------------------------------------------------

PRODUCTS, LAUNCHES = 1024, 8
"""Of (16, 8) elements each, in one launch: together more than a million."""
MANY = [("s32", *kinds) for kinds in itertools.product(("s8", "u8"), repeat=2)]
MANY += [(d, *kinds) for d in ("f32", "f16") for kinds in itertools.product(TYPES, repeat=2)]


@pytest.mark.parametrize(
    "kinds", exhaustive_unless(lambda kinds: kinds in (MANY[0], MANY[4]), [(kinds,) for kinds in MANY])
)
def test_a_million_elements(kinds: tuple[str, str, str]):
    """Factors of any patterns, or, by turns, whose upper exponent bit is clear. The record has the bits."""
    number = {"s8": np.int8, "u8": np.uint8, "s32": np.int32, "f32": np.float32, "f16": np.float16, **TYPES}
    accumulator = np.dtype(number[kinds[0]])
    for launch in range(LAUNCHES if is_exhaustive() else 1):
        rng = np.random.default_rng(launch)
        a, b = (rng.integers(0, 256, (PRODUCTS, *shape), np.uint8) for shape in ((16, 32), (32, 8)))
        with np.errstate(over="ignore"):
            c = rng.standard_normal((PRODUCTS, 16, 8)) * 2.0 ** rng.integers(-4, 16, (PRODUCTS, 16, 8))
            c = c.astype(accumulator)
        if kinds[0] != "s32" and launch % 2 == 0:
            a, b = a & 0xBF, b & 0xBF
        word = ".satfinite" if kinds[0] == "s32" and launch % 2 else ""
        form = f"m16n8k32.row.col{word}.{'.'.join(kinds)}.{kinds[0]}"
        d = multiply(form, bytes_of_a(a), bytes_of_b(b), words_of_c(c.view(f"u{accumulator.itemsize}")))
        found = (
            matrix_of(d, 16, kinds[0] == "f16").astype(f"u{accumulator.itemsize}").view(accumulator).astype(np.float64)
        )
        with np.errstate(invalid="ignore"):
            x, y, z = (m.view(number[kind]).astype(np.float64) for m, kind in zip((a, b, c), (*kinds[1:], kinds[0])))
            exact, magnitude = x @ y + z, np.abs(x) @ np.abs(y) + np.abs(z)
            assert np.isnan(found[np.isnan(exact)]).all()
            tame = magnitude < (2.0**15 if kinds[0] == "f16" else 2.0**31)
            slack = {"s32": 0.0, "f32": 2.0**-20, "f16": 2.0**-9}[kinds[0]]
            assert tame.any() and (np.abs(found - exact) <= slack * magnitude)[tame].all()


@pytest.mark.parametrize(
    "shape", exhaustive_unless(lambda shape: shape == (8, 4), [((m, k),) for m, k in ((8, 4), (16, 16))])
)
def test_a_million_doubles(shape: Shape):
    rows, depth = shape
    for launch in range(LAUNCHES if is_exhaustive() else 1):
        rng = np.random.default_rng(launch)
        count = PRODUCTS * 16 // rows
        a, b, c = (
            rng.standard_normal((count, *extents)) * 2.0 ** rng.integers(-30, 30, (count, *extents))
            for extents in ((rows, depth), (depth, 8), (rows, 8))
        )
        words = [np.stack([a[:, GROUP + top, PLACE + left] for top, left in tiles(rows, depth, 4)], 1)]
        words += [np.stack([b[:, PLACE + top, GROUP] for top in range(0, depth, 4)], 1), words_of_c(c)]
        found = matrix_of(multiply(f"m{rows}n8k{depth}.row.col.f64.f64.f64.f64", *words), rows)
        assert (np.abs(found - (a @ b + c)) <= 2.0**-47 * (np.abs(a) @ np.abs(b) + np.abs(c))).all()


@pytest.mark.parametrize(
    ("form", "counts"),
    [
        ("m8n8k4.row.col.f64.f64.f64.f64.rna", (1, 1, 2)),
        ("m8n8k4.row.col.f64.f64.f64.f64", (2, 1, 2)),
        ("m16n8k32.row.col.f64.f64.f64.f64", (8, 4, 4)),
        ("m16n8k32.row.col.rz.s32.s8.s8.s32", (4, 2, 4)),
        ("m16n8k32.row.col.s32.s8.s8.s32", (2, 1, 4)),
        ("m8n8k32.row.col.s32.s8.s8.s32", (1, 1, 2)),
        ("m16n8k32.row.col.f32.s8.s8.f32", (4, 2, 4)),
        ("m16n8k32.row.col.s32.s4.s4.s32", (2, 1, 4)),
        ("m16n8k32.row.col.satfinite.f32.e4m3.e4m3.f32", (4, 2, 4)),
        ("m16n8k32.row.col.f16.e4m3.e4m3.f32", (4, 2, 4)),
        ("m16n8k32.row.col.f32.e4m3.f16.f32", (4, 2, 4)),
        ("m16n8k8.row.col.f32.e4m3.e4m3.f32", (2, 1, 4)),
    ],
)
def test_other_forms_are_refused(form: str, counts: tuple[int, int, int]):
    kind = np.float64 if "f64" in form else np.uint32
    with pytest.raises(UnsupportedInstruction, match=form):
        multiply(form, *(np.zeros((1, count, 32), kind) for count in counts))
