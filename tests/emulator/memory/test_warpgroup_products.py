"""wgmma: every layout of its operands in shared memory, registers of A, types, and what is too early."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from harness.model.tensor_map import TensorMap
from harness.support.errors import KernelFault
from tests.emulator.hopper_kernel import run_hopper
from tests.emulator.tensor_core import dot_product
from tests.emulator.warpgroup_kernels import (
    COLUMNS,
    DEPTH,
    FLOATS_OF_8,
    INTEGERS,
    REGISTERS,
    ROWS,
    WAY,
    WIDE_TYPES,
    fragments,
    register_count,
    wgmma,
)
from tests.lanes import exhaustive_unless

LAYOUTS = f"""{WAY}
extern "C" __global__ void k(const __grid_constant__ Map A, const __grid_constant__ Map B, float* y,
  u64 kind_a, u64 kind_b, int boxes_a, int boxes_b, int bytes_a, int bytes_b, int width, int* steps, int mode) {{
  extern __shared__ __align__(1024) unsigned char s[]; __shared__ u64 bar; int t = threadIdx.x;
  if (t == 0) {{ init(&bar, 1); expect(&bar, boxes_a * bytes_a + boxes_b * bytes_b); }}
  __syncthreads();
  unsigned char* sb = s + 8192;
  if (t == 0) {{
    for (int i = 0; i < boxes_a; ++i) load2(s + i * bytes_a, &A, i * width, 0, &bar);
    for (int i = 0; i < boxes_b; ++i) load2(sb + i * bytes_b, &B, i * width, 0, &bar);
  }}
  wait(&bar, 0);
  float d[{REGISTERS}];
  for (int i = 0; i < {REGISTERS}; ++i) d[i] = 1.f;
  FENCE();
  for (int x = 0; x < 4; ++x) {{
    u64 da = kind_a | (place_of(s) + steps[x]) >> 4, db = kind_b | (place_of(sb) + steps[4 + x]) >> 4;
    if (mode == 0) {wgmma("f32.f16.f16", "shared", "1, 1, 1, 0, 0")}
    if (mode == 1) {wgmma("f32.f16.f16", "shared", "1, 1, -1, 1, 0")}
    if (mode == 2) {wgmma("f32.f16.f16", "shared", "1, -1, 1, 0, 1")}
    if (mode == 3) {wgmma("f32.f16.f16", "shared", "1, -1, -1, 1, 1")}
  }}
  DONE(0);
  for (int i = 0; i < {REGISTERS}; ++i)
    y[(16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2)) * {COLUMNS} + 8 * (i / 4) + t % 4 * 2 + i % 2] = d[i];
}}"""
"""D = 1 + A B in four steps; A is (64, 64) and B (64, 16) as mathematics has them, in memory turned or not."""
MODES = {(0, 0): 0, (1, 0): 1, (0, 1): 2, (1, 1): 3}
SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}


def layout(turned: int, swizzle: int, extent: int) -> tuple[int, list[int]]:
    """The descriptor without its address, and where each step of 16 begins, of an operand with so many rows."""
    span = swizzle or 16
    rows = DEPTH if turned else extent
    box = rows * span
    if turned:
        leading, stride = (box, 8 * span) if swizzle else (8 * span, box)
        steps = [16 * span * x for x in range(4)]
    else:
        leading, stride = box, 8 * span
        steps = [32 * x // span * box + 32 * x % span for x in range(4)]
    return SWIZZLES[swizzle] << 62 | stride >> 4 << 32 | leading >> 4 << 16, steps


@pytest.mark.parametrize(
    ("turned", "swizzle"),
    [(turned, swizzle) for turned in MODES for swizzle in SWIZZLES if not turned[1] or swizzle <= 2 * COLUMNS],
)
def test_every_layout(turned: tuple[int, int], swizzle: int) -> None:
    """Small whole numbers, whose sums are exact."""
    rng = np.random.default_rng(swizzle)
    a = rng.integers(-4, 5, (ROWS, DEPTH)).astype(np.float16)
    b = rng.integers(-4, 5, (DEPTH, COLUMNS)).astype(np.float16)
    span = swizzle or 16
    arrays = {"A": a.T if turned[0] else a, "B": b if turned[1] else b.T}
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    kinds, steps = zip(*(layout(turned[i], swizzle, extent) for i, extent in enumerate((ROWS, COLUMNS))))
    args: list[Any] = []
    for name, array in arrays.items():
        args.append(TensorMap(name, array.shape[::-1], (2 * array.shape[1],), (span // 2, array.shape[0]), "float16",
                              swizzle))  # fmt: skip
    boxes = [np.int32(2 * array.shape[1] // span) for array in arrays.values()]
    sizes = [np.int32(array.shape[0] * span) for array in arrays.values()]
    arrays["Y"] = np.zeros((ROWS, COLUMNS), np.float32)  # type: ignore[assignment]
    arrays["steps"] = np.array([*steps[0], *steps[1]], np.int32)  # type: ignore[assignment]
    more = (*(np.uint64(k) for k in kinds), *boxes, *sizes, np.int32(span // 2), "steps", np.int32(MODES[turned]))
    after, _ = run_hopper(LAYOUTS, arrays, (*args, "Y", *more), block=(128, 1, 1), shared_bytes=16384)
    sign = -1 if MODES[turned] in (1, 2) else 1
    expected = 1 + sign * (a.astype(np.float32) @ b.astype(np.float32))
    assert np.array_equal(after["Y"], expected)


def registers(types: str, depth: int, a: np.ndarray, b: np.ndarray, when: int = 2, negated: str = "1, 1") -> np.ndarray:
    """D's patterns, (128 threads, registers)."""
    arrays = {"a": a.view(np.uint32), "b": b.view(np.uint32), "y": np.zeros((128, register_count(types)), np.uint32)}
    args = ("a", "b", "y", np.int32(when))
    return run_hopper(fragments(types, depth, negated), arrays, args, block=(128, 1, 1))[0]["y"]


def operands(kind: str, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Random factors with exponents apart, as patterns: (64, depth) and (16, depth)."""
    rng = np.random.default_rng(depth)
    values = [rng.standard_normal((n, depth)) * 2.0 ** rng.integers(-6, 6, (n, depth)) for n in (ROWS, COLUMNS)]
    if kind == "tf32":
        a, b = (value.astype(np.float32).view(np.uint32) for value in values)
    else:
        form = np.dtype(np.float16 if kind == "f16" else ml_dtypes.bfloat16)
        a, b = (value.astype(form).view(np.uint16) for value in values)
    return a, b


def elements(found: np.ndarray, half: bool) -> np.ndarray:
    """Registers -> (64, 16), as patterns."""
    if half:
        found = np.stack([found & 0xFFFF, found >> 16], 2).reshape(128, REGISTERS)
    thread, register = np.meshgrid(np.arange(128), np.arange(REGISTERS), indexing="ij")
    d = np.zeros((ROWS, COLUMNS), np.uint32)
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (register // 2 % 2)
    d[row, 8 * (register // 4) + 2 * (thread % 4) + register % 2] = found
    return d


@pytest.mark.parametrize(("types", "depth"), WIDE_TYPES)
def test_bits_of_a_product(types: str, depth: int) -> None:
    """Those of `mma`, whose rules a model in whole numbers has, too."""
    accumulator, kind, _ = types.split(".")
    a, b = operands(kind, depth)
    found = elements(registers(types, depth, a, b), accumulator == "f16")
    shift = 13 if kind == "tf32" else 0
    for row, column in itertools.product(range(0, ROWS, 3), range(0, COLUMNS, 5)):
        expected = dot_product(kind, accumulator, (a[row] >> shift).tolist(), (b[column] >> shift).tolist(), 0)
        assert int(found[row, column]) == expected, (row, column)


@pytest.mark.parametrize(
    ("types", "depth"),
    exhaustive_unless(lambda form: form[0].startswith("f32") or form[0] == "f16.e5m2.e4m3", FLOATS_OF_8),
)
def test_bits_of_a_product_of_8_bit_floats(types: str, depth: int) -> None:
    """Rows of any patterns, rows without the largest ones, and rows of numbers near each other."""
    accumulator, kind_a, kind_b = types.split(".")
    rng = np.random.default_rng(len(types))
    a, b = rng.integers(0, 256, (ROWS, depth), np.uint8), rng.integers(0, 256, (COLUMNS, depth), np.uint8)
    a[16:48], b[2:14] = a[16:48] & 0xBF, b[2:14] & 0xBF
    a[32:], b[8:] = a[32:] & 0x87 | 0x38, b[8:] & 0x87 | 0x38
    found = elements(registers(types, depth, a, b), accumulator == "f16")
    for row, column in np.ndindex(found.shape):
        expected = dot_product(f"{kind_a} {kind_b}", accumulator, a[row].tolist(), b[column].tolist(), 0)
        assert int(found[row, column]) == expected, (row, column)
    if accumulator == "f32":
        assert not (found[32:48] & 0x3FF).any()
    negated = elements(registers(types, depth, a, b, negated="1, -1"), accumulator == "f16")
    sign = np.uint32(0x8000 if accumulator == "f16" else 1 << 31)
    assert ((negated == found ^ sign) == (found & (sign - 1) != 0) & ~is_nan(accumulator, found)).all()


def is_nan(accumulator: str, patterns: np.ndarray) -> np.ndarray:
    infinity = 0x7C00 if accumulator == "f16" else 0x7F800000
    return (patterns & (0x7FFF if accumulator == "f16" else 0x7FFFFFFF)) > infinity


@pytest.mark.parametrize(("types", "depth"), exhaustive_unless(lambda form: "satfinite" not in form[0], INTEGERS))
def test_a_product_of_whole_numbers(types: str, depth: int) -> None:
    signed = {"s8": np.int8, "u8": np.uint8}
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (ROWS, depth), np.uint8), rng.integers(0, 256, (COLUMNS, depth), np.uint8)
    left, right = (x.view(signed[kind]).astype(np.int32) for x, kind in zip((a, b), types.split(".")[1:]))
    assert np.array_equal(elements(registers(types, depth, a, b), False).view(np.int32), left @ right.T)


SUM = f"""{WAY}
extern "C" __global__ void k(unsigned char* y, int* d_in, int* z) {{
  __shared__ __align__(128) unsigned s[640]; int t = threadIdx.x;
  for (int i = t; i < 640; i += 128) s[i] = 0x7F7F7F7F;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  u64 da = place_of(s) >> 4 | (u64)(1024 >> 4) << 16 | (u64)(128 >> 4) << 32;
  u64 db = place_of(s + 512) >> 4 | (u64)(256 >> 4) << 16 | (u64)(128 >> 4) << 32;
  unsigned d[{REGISTERS}];
  for (int i = 0; i < {REGISTERS}; ++i) d[i] = d_in[i];
  FENCE();
  {wgmma("s32.s8.s8", "shared", "1", 32)}
  {wgmma("s32.s8.s8.satfinite", "shared", "1", 32)}
  DONE(0);
  for (int i = 0; i < {REGISTERS}; ++i) z[{REGISTERS} * t + i] = d[i];
}}"""


def test_a_sum_of_whole_numbers_wraps_or_is_clamped() -> None:
    """A from shared memory; first a sum that wraps, then one that does not."""
    step = 32 * 127 * 127
    start = np.array([0, -step, 2**31 - 1, 2**31 - step - 1, 2**31 - 2 * step, -(2**31), 7, 8], np.int32)
    arrays = {"y": np.zeros(1, np.uint8), "d": start, "z": np.zeros((128, REGISTERS), np.int32)}
    after, _ = run_hopper(SUM, arrays, ("y", "d", "z"), block=(128, 1, 1))
    wrapped = (start.astype(np.int64) + step).astype(np.int32)
    assert (after["z"] == (wrapped.astype(np.int64) + step).clip(-(2**31), 2**31 - 1)).all()


def test_an_accumulator_is_nan_until_the_wait_that_covers_it() -> None:
    """No wait, or one that leaves the group in flight."""
    a, b = operands("f16", 16)
    for when in (0, 1):
        assert np.isnan(registers("f32.f16.f16", 16, a, b, when).view(np.float32)).all()
        halves = registers("f16.f16.f16", 16, a, b, when).view(np.float16)
        assert np.isnan(halves).all()


def test_operands_that_are_overwritten_before_the_wait_show() -> None:
    a, b = operands("f16", 16)
    found = registers("f32.f16.f16", 16, a, b, when=4).view(np.float32)
    assert not found.any()


def test_all_four_warps_have_to_wait() -> None:
    a, b = operands("f16", 16)
    with pytest.raises(KernelFault, match=r"warp 0 has exited; warps 1-3 wait for the other warps of their warpgroup"):
        registers("f32.f16.f16", 16, a, b, when=3)
