"""wgmma: every layout of its operands in shared memory, registers of A, types, and what is too early."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from harness.model.tensor_map import TensorMap
from harness.support.errors import KernelFault
from tests.emulator.hopper_kernel import run_hopper
from tests.emulator.tensor_core import dot_product
from tests.emulator.warpgroup_kernels import COLUMNS, DEPTH, REGISTERS, ROWS, TYPES, WAY, fragments, wgmma

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


def registers(types: str, depth: int, a: np.ndarray, b: np.ndarray, when: int = 2) -> np.ndarray:
    """D's patterns, (128 threads, registers)."""
    half = types.startswith("f16")
    count = REGISTERS // 2 if half else REGISTERS
    arrays = {"a": a.view(np.uint32), "b": b.view(np.uint32), "y": np.zeros((128, count), np.uint32)}
    after, _ = run_hopper(fragments(types, depth), arrays, ("a", "b", "y", np.int32(when)), block=(128, 1, 1))
    return after["y"]


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


@pytest.mark.parametrize(("types", "depth"), TYPES)
def test_bits_of_a_product(types: str, depth: int) -> None:
    """Those of `mma`, whose rules a model in whole numbers has, too."""
    accumulator, kind, _ = types.split(".")
    a, b = operands(kind, depth)
    found = registers(types, depth, a, b)
    shift = 13 if kind == "tf32" else 0
    for thread in range(0, 128, 5):
        for column in (0, 3, 9, 14):
            row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (column % 2)
            column = 8 * (column // 8) + 2 * (thread % 4) + column % 2
            expected = dot_product(kind, accumulator, (a[row] >> shift).tolist(), (b[column] >> shift).tolist(), 0)
            register = 4 * (column // 8) + 2 * (row % 16 // 8) + column % 2
            if accumulator == "f16":
                word = int(found[thread, register // 2]) >> (16 * (register % 2)) & 0xFFFF
            else:
                word = int(found[thread, register])
            assert word == expected, (thread, column)


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
    with pytest.raises(
        KernelFault, match=r"warps 0 have exited; warps 1-3 wait for the other warps of their warpgroup"
    ):
        registers("f32.f16.f16", 16, a, b, when=3)
