"""Runs of bytes in bulk copies, and every reduction on edges and any patterns."""

from __future__ import annotations

import numpy as np
import pytest
from bulk_ptx import TILE_BYTES, runs
from bulk_reductions import FORMS, TYPES, model
from operands import Array
from single_opcode import run_ptx

RNG = np.random.default_rng(40)
OPERANDS = 2048


def run(copy: str, x: Array, y: Array, hint: bool = False) -> None:
    run_ptx(runs(copy, hint), {"x": x, "y": y}, scalars=[np.uint32(x.nbytes).tobytes()])


@pytest.mark.parametrize("size", [16, 48, 1008, TILE_BYTES])
@pytest.mark.parametrize("hint", [False, True])
def test_runs_come_and_go(size: int, hint: bool):
    x, y = np.arange(size // 4, dtype=np.uint32), np.full(size // 4 + 8, 7, np.uint32)
    run("cp", x, y, hint)
    assert np.array_equal(y[: size // 4], x) and (y[size // 4 :] == 7).all()


def edges(kind: str) -> Array:
    """Patterns: smallest, largest, around zero; of floats the subnormals, infinities and NaNs."""
    bits = 8 * np.dtype(TYPES[kind]).itemsize
    top = 1 << bits - 1
    if kind[0] in "usb" and kind != "bf16":
        found = [0, 1, 2, 5, top - 1, top, top + 1, 2 * top - 2, 2 * top - 1]
    else:
        fraction = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}[kind]
        one = 1 << fraction
        infinity = (top - 1) >> fraction << fraction
        half = infinity >> 1 & -one
        found = [0, 1, 2, 3, one - 2, one - 1, one, one + 1, one + 3, 2 * one, half, half + 1, infinity - 2]
        found += [infinity - 1, infinity, infinity | 1, infinity | one >> 1, infinity | (one - 1)]
        found += [pattern | top for pattern in found]
    return np.array(found, np.uint64).astype(f"u{bits // 8}")


@pytest.mark.parametrize("form", FORMS)
def test_reductions(form: str):
    """Edges with each other, numbers near each other, any patterns."""
    kind = form.split(".")[-1]
    word = np.dtype(f"u{np.dtype(TYPES[kind]).itemsize}")
    x, y = RNG.integers(0, np.iinfo(word).max, (2, OPERANDS), word, endpoint=True)
    pairs = [each.ravel() for each in np.meshgrid(edges(kind), edges(kind))]
    near = pairs[0].size + 400
    for array, edge in zip((x, y), pairs):
        array[: edge.size] = edge
        if kind[0] in "usb" and kind != "bf16":
            array[edge.size : near] %= word.type(7)
        else:
            spread = RNG.standard_normal(400) * 2.0 ** RNG.integers(-4, 5, 400)
            array[edge.size : near] = spread.astype(TYPES[kind]).view(word)
    old = y.copy()
    run(form, x, y)
    found, expected = y.view(TYPES[kind]), model(form, old.view(TYPES[kind]), x.view(TYPES[kind]))
    with np.errstate(invalid="ignore"):
        same = found == expected
        if kind in ("f16", "bf16", "f32", "f64"):
            same |= np.isnan(found.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    assert same.all(), (form, old[~same][:3], x[~same][:3], y[~same][:3])


def test_patterns_of_nan():
    """A sum of f32 has one; in f64 the NaN that comes stays as it is, else the one that is there."""
    nan = np.array([0x7FF0000000000001, 0xFFF8000000000002], np.uint64)
    one = np.array([1.0], np.float64).view(np.uint64)[0]
    infinity = np.array([np.inf, -np.inf]).view(np.uint64)
    x = np.array([nan[0], one, nan[1], infinity[0]], np.uint64)
    y = np.array([nan[1], nan[0], one, infinity[1]], np.uint64)
    run("add.f64", x, y)
    assert y.tolist() == [nan[0], nan[0], nan[1], 0xFFF8 << 48]
    x, y = np.array([0xFF800001, 0x3F800000] * 2, np.uint32), np.array([0x3F800000, 0x7FC00000] * 2, np.uint32)
    run("add.f32", x, y)
    assert (y == 0x7FFFFFFF).all()


def test_subnormal_sums_stay():
    """Whatever PTX says of f32."""
    x, y = np.array([1, 2, 0x80000001, 0x00800000], np.uint32), np.array([1, 3, 5, 0x80000001], np.uint32)
    run("add.f32", x, y)
    assert y.tolist() == [2, 5, 4, 0x007FFFFF]
    tiny = np.array([1] * 8, np.uint16)
    for kind in ("f16", "bf16"):
        y = tiny.copy()
        run(f"add.noftz.{kind}", tiny, y)
        assert (y == 2).all()
