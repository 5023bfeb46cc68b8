"""wgmma: a million elements of each type, every layout of A and B, every number of columns; see warpgroup_ptx.py.

The bits are the record's; here sums have to be within what a tensor core may cut off.
"""

from __future__ import annotations

import itertools
import zlib

import ml_dtypes
import numpy as np
import pytest
from lanes import exhaustive_unless, is_exhaustive
from operands import Array
from single_opcode import run_ptx
from warpgroup_kernels import FLOATS_OF_8, INTEGERS, TYPES, WIDE_TYPES
from warpgroup_ptx import (
    ROWS,
    SWIZZLES,
    Product,
    descriptors,
    image,
    matrix_of,
    registers_of_a,
    registers_of_d,
)

FORMATS = {
    "f32": np.float32, "tf32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8, "s32": np.int32,
}  # fmt: skip
BLOCKS = 128
"""Of one launch: 131,072 elements where there are 16 columns."""
LAUNCHES = 8
CUT = {2: 2.0**-20, 4: 2.0**-20, 1: 2.0**-8}
"""How much of the sum of magnitudes a product may lose, by the bytes of a factor."""


def bits(kind: str, values: Array) -> Array:
    with np.errstate(over="ignore"):
        return values.astype(FORMATS[kind]).view(f"u{np.dtype(FORMATS[kind]).itemsize}")


def drawn(rng: np.random.Generator, kind: str, shape: tuple[int, ...], draw: str) -> Array:
    """Patterns: normal numbers with exponents apart, any whatever, or small whole numbers."""
    size = np.dtype(FORMATS[kind]).itemsize
    if draw == "whole":
        return bits(kind, rng.integers(0 if kind == "u8" else -4, 5, shape))
    if draw == "any" or kind in ("s8", "u8", "s32"):
        return rng.integers(0, 1 << 8 * size, shape, np.uint64).astype(f"u{size}")
    spread = 8 if size > 1 else 4
    return bits(kind, rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread, shape))


def numbers(kind: str, patterns: Array) -> Array:
    """Float64, or whole numbers of 64 bits. The lower bits of tf32 do not count."""
    if kind == "tf32":
        patterns = patterns & np.uint32(0xFFFFE000)
    with np.errstate(invalid="ignore"):
        return patterns.view(FORMATS[kind]).astype(np.int64 if kind in ("s8", "u8", "s32") else np.float64)


def multiply(product: Product, a: Array, b: Array, c: Array, swizzle: int = 0) -> Array:
    """D, as patterns: a b + c. `a` is (blocks, 64, K), `b` (blocks, K, columns)."""
    columns = b if product.turned[1] else b.transpose(0, 2, 1)
    rows = a.transpose(0, 2, 1) if product.turned[0] else a
    rows, columns = (np.ascontiguousarray(x).view(np.uint8) for x in (rows, columns))
    shape = product.depth, product.steps
    given = [
        descriptors(turned, swizzle, extent, *shape) for turned, extent in zip(product.turned, (ROWS, product.columns))
    ]
    y = registers_of_d(c)
    arrays = {
        "a": image(rows, swizzle) if product.from_shared else registers_of_a(rows),
        "b": image(columns, swizzle),
        "y": y,
        "descriptors": np.array(list(zip(*given)), np.uint64),
    }
    run_ptx(product.text(), arrays, grid=len(a), block=128)
    return matrix_of(y, product.types.startswith("f16"))


def check(product: Product, a: Array, b: Array, c: Array, found: Array) -> None:
    """Whole numbers are exact. NaN is where it has to be, and other sums are near."""
    kind = product.types.split(".")[0]
    x, y, z = (numbers(k, patterns) for k, patterns in zip((*product.kinds, kind), (a, b, c)))
    if kind == "s32":
        exact = x @ y + z
        wrapped = exact.clip(-(2**31), 2**31 - 1) if "satfinite" in product.types else exact.astype(np.int32)
        assert np.array_equal(found.view(np.int32), wrapped)
        return
    sign = product.signs[0] * product.signs[1]
    with np.errstate(invalid="ignore", over="ignore"):
        exact = sign * np.matmul(x, y) + z
        magnitude = np.matmul(np.abs(x), np.abs(y)) + np.abs(z)
        values = numbers(kind, found)
        assert np.array_equal(np.isnan(values), np.isnan(exact))
        near = CUT[a.dtype.itemsize] * magnitude + 2.0**-130
        if kind == "f16":
            near += 2.0**-10 * magnitude + 2.0**-24
        # Those that no element is near the end of the range of.
        finite = magnitude < float(np.finfo(FORMATS[kind]).max) / 2
        assert (np.abs(values - exact)[finite] <= near[finite]).all()
    assert finite.any()


def operands(product: Product, blocks: int, draw: str, seed: str) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    kind, depth = product.types.split(".")[0], product.depth * product.steps
    a = drawn(rng, product.kinds[0], (blocks, ROWS, depth), draw)
    b = drawn(rng, product.kinds[1], (blocks, depth, product.columns), draw)
    return a, b, drawn(rng, kind, (blocks, ROWS, product.columns), draw)


@pytest.mark.parametrize(("types", "depth"), TYPES)
def test_a_million_elements(types: str, depth: int):
    """In eight launches, by turns with A in registers and in shared memory, of numbers and of any patterns."""
    for launch in range(LAUNCHES if is_exhaustive() else 1):
        product = Product(types, depth, from_shared=launch % 2 == 1)
        a, b, c = operands(product, BLOCKS, "any" if launch // 2 % 2 else "normal", f"{types} {launch}")
        check(product, a, b, c, multiply(product, a, b, c))


LAYOUTS = [
    (types, depth, turned, from_shared)
    for types, depth in TYPES
    for turned in itertools.product((0, 1), repeat=2)
    for from_shared in (True, False)
    if not any(turned) or (depth == 16 and (from_shared or not turned[0]))
]


@pytest.mark.parametrize(
    ("types", "depth", "turned", "from_shared"),
    exhaustive_unless(lambda layout: layout[0] == "f32.bf16.bf16" or layout[2:] == ((0, 0), True), LAYOUTS),
)
def test_layouts(types: str, depth: int, turned: tuple[int, int], from_shared: bool):
    """Four steps of K with each swizzle, rows of K or of M and N together; each sign is tried with each other."""
    columns = 64 if any(turned) else 16
    for swizzle, signs in zip(SWIZZLES, itertools.product((1, -1), repeat=2)):
        whole = types.startswith("s32")
        product = Product(types, depth, columns, from_shared, (1, 1) if whole else signs, turned, 4)
        a, b, c = operands(product, 1, "whole", f"{types} {swizzle}")
        found = multiply(product, a, b, c, swizzle)
        check(product, a, b, c, found)
        if not whole and types.startswith("f32"):
            sign = signs[0] * signs[1]
            exact = sign * numbers(product.kinds[0], a) @ numbers(product.kinds[1], b) + numbers("f32", c)
            assert np.array_equal(numbers("f32", found), exact)


NUMBERS_OF_COLUMNS = [
    (types, depth, columns)
    for types, depth in TYPES
    for columns in ((8, 24, 48, 256) if types.startswith("s32") else (8, 24, 40, 136, 256))
]


@pytest.mark.parametrize(
    ("types", "depth", "columns"),
    exhaustive_unless(lambda form: form[2] == 24 and form[:2] in (*WIDE_TYPES[:2], INTEGERS[0]), NUMBERS_OF_COLUMNS),
)
def test_columns(types: str, depth: int, columns: int):
    product = Product(types, depth, columns)
    a, b, c = operands(product, 1, "normal", f"{types} {columns}")
    check(product, a, b, c, multiply(product, a, b, c))


@pytest.mark.parametrize(("types", "depth"), [*WIDE_TYPES[:2], FLOATS_OF_8[0], INTEGERS[0]])
@pytest.mark.parametrize("adds", ["0", "odd"])
def test_whether_something_is_added(types: str, depth: int, adds: str):
    """C, which is any patterns, is forgotten, in all blocks or in every other one."""
    product = Product(types, depth, adds=adds)
    a, b, _ = operands(product, 2, "normal", types)
    _, _, c = operands(product, 2, "any", types)
    found = multiply(product, a, b, c)
    c[: 1 if adds == "odd" else 2] = 0
    check(product, a, b, c, found)


def test_registers_of_a_role():
    """setmaxnreg, with a limit that a kernel of 128 threads has anyway."""
    out = np.zeros(128, np.uint32)
    run_ptx(
        """
        .version 8.4
        .target sm_90a
        .address_size 64
        .visible .entry kernel(.param .u64 out) .maxntid 128, 1, 1 .minnctapersm 1 {
        .reg .b64 q; .reg .b32 tid;
        ld.param.u64 q, [out]; mov.u32 tid, %tid.x;
        setmaxnreg.dec.sync.aligned.u32 40; mad.wide.u32 q, tid, 4, q; st.global.u32 [q], tid;
        ret; }
        """,
        {"out": out},
        block=128,
    )
    assert np.array_equal(out, np.arange(128))
