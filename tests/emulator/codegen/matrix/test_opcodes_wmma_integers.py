"""wmma of 8-bit integers: every shape, type and memory order, against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from operands import Array
from single_opcode import run_body

RNG = np.random.default_rng(38)
SHAPES = {"m16n16k16": (16, 16, 16), "m32n8k16": (32, 8, 16), "m8n32k16": (8, 32, 16)}
TYPES = {"s8": np.int8, "u8": np.uint8}


def braces(name: str, count: int) -> str:
    return "{" + ", ".join(f"{name}{i}" for i in range(count)) + "}"


def in_memory(matrix: Array, order: str, stride: int = 0) -> Array:
    lines = matrix if order == "row" else matrix.T
    padding = max(stride - lines.shape[-1], 0)
    return np.ascontiguousarray(np.pad(lines, [(0, 0), (0, padding)], constant_values=0x55))


def product(
    shape: str, kind: str, orders: tuple[str, ...], a: Array, b: Array, c: Array, stride: int = 0, words: str = ""
) -> Array:
    """D = A B + C as the kernel leaves it in memory, in row-major order."""
    m, n, _ = SHAPES[shape]
    memory = {name: in_memory(x, order, stride) for name, x, order in zip(("pa", "pb", "pc"), (a, b, c), orders)}
    memory["pd"] = in_memory(np.zeros((m, n), np.int32), orders[3], stride)
    counts = {"a": m // 8, "b": n // 8, "c": 8}
    by = f", {stride}" if stride else ""
    lines = [".reg .b32 a<8>, b<8>, c<8>, d<8>;"]
    for name, order in zip("abc", orders):
        of = "s32" if name == "c" else kind
        text = f"wmma.load.{name}.sync.aligned.{order}.{shape}.global.{of} {braces(name, counts[name])}, [p{name}]{by};"
        lines.append(text)
    operands = ", ".join(braces(name, counts.get(name, 8)) for name in "dabc")
    lines.append(f"wmma.mma.sync.aligned.{orders[0]}.{orders[1]}.{shape}.s32.{kind}.{kind}.s32{words} {operands};")
    lines.append(f"wmma.store.d.sync.aligned.{orders[3]}.{shape}.global.s32 [pd], {braces('d', 8)}{by};")
    run_body("\n".join(lines), memory)
    stored = memory["pd"] if orders[3] == "row" else memory["pd"].T
    return stored[:m, :n]


def matrices(shape: str, kind: str) -> tuple[Array, Array, Array]:
    m, n, k = SHAPES[shape]
    info = np.iinfo(TYPES[kind])
    a, b = (RNG.integers(info.min, info.max + 1, size).astype(TYPES[kind]) for size in ((m, k), (k, n)))
    return a, b, RNG.integers(-1000, 1000, (m, n)).astype(np.int32)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_in_every_order_of_memory(shape: str, kind: str) -> None:
    for orders in itertools.product(("row", "col"), repeat=2):
        a, b, c = matrices(shape, kind)
        found = product(shape, kind, (*orders, "row", "col"), a, b, c)
        np.testing.assert_array_equal(found, a.astype(np.int32) @ b.astype(np.int32) + c)


def test_strides() -> None:
    a, b, c = matrices("m16n16k16", "s8")
    found = product("m16n16k16", "s8", ("col", "row", "col", "row"), a, b, c, stride=32)
    np.testing.assert_array_equal(found, a.astype(np.int32) @ b.astype(np.int32) + c)


@pytest.mark.parametrize(("words", "expected"), [("", -(2**31)), (".satfinite", 2**31 - 1)])
def test_a_sum_wraps_or_is_clamped(words: str, expected: int) -> None:
    a, b = np.ones((16, 16), np.int8), np.eye(16, dtype=np.int8)
    found = product("m16n16k16", "s8", ("row",) * 4, a, b, np.full((16, 16), 2**31 - 1, np.int32), words=words)
    assert set(found.ravel().tolist()) == {expected}
