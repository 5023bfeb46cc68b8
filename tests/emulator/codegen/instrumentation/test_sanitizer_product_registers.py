"""The sanitizer on registers of products: fences of `wgmma` that are missing, registers that are touched too early."""

from __future__ import annotations

import numpy as np
import pytest

from harness.model.finding import Finding
from tests.emulator.hopper_kernel import HEAD
from tests.emulator.sanitized_kernel import find, lines
from tests.emulator.warpgroup_kernels import REGISTERS, WAY, wgmma

PRODUCT = wgmma("f32.f16.f16", "registers", "1, 1, 1, 0")
NARROW = (
    'asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, '
    '1, 1, 1, 0;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) '
    ': "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "l"(db));'
)
COMMIT = 'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'
OPERANDS = f"""__shared__ __align__(128) unsigned b[128]; int t = threadIdx.x; b[t] = 0x3C003C00;
  u64 da = 0, db = place_of(b) >> 4 | (u64)(256 >> 4) << 16 | (u64)(128 >> 4) << 32;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); __syncthreads(); float d[{REGISTERS}]; unsigned ra[4];"""
FENCES = f"""{HEAD}{WAY}
#define STEP(number) if constexpr (number != SKIPS) FENCE();
#define EACH for (int i = 0; i < {REGISTERS}; ++i)
#line 1 "planted.cu"
extern "C" __global__ void k(const float* x, float* y) {{
  {" ".join(OPERANDS.split(chr(10)))}
  EACH d[i] = x[t] * (i + 3);
  for (int i = 0; i < 4; ++i) ra[i] = __float_as_uint(x[t + i]) + 1;
  STEP(1)
  {PRODUCT}
  DONE(0);
  EACH d[i] *= x[t];
  STEP(2)
  {PRODUCT}
  DONE(0);
  for (int i = 0; i < 4; ++i) ra[i] += ra[i] * 2;
  STEP(3)
  {PRODUCT}
  {PRODUCT}
  DONE(0);
  EACH y[i] = d[i];
  STEP(4)
  {PRODUCT}
  DONE(0);
  for (int i = 0; i < 4; ++i) y[i] = ra[i];
  STEP(5)
  {PRODUCT}
  DONE(0);
  STEP(6)
  {NARROW}
  DONE(0);
  EACH y[{REGISTERS} * t + i] = d[i];
}}"""
"""Sums: begun in line 3, multiplied in 8, read in 17. A: begun in line 4, changed in 12, read in 21. The products are
in lines 6, 10, 14 and 15 (of one group), 19, 23 and, of another shape, 26; `SKIPS` is the fence that is left out."""


def without_fence(number: int) -> str:
    return FENCES.replace("SKIPS", str(number))


def findings(source: str, *values: int, threads: int = 128) -> tuple[Finding, ...]:
    import cupy

    kernel = cupy.RawKernel(source, "k", options=("-arch=sm_90a",))
    arrays = {name: np.ones(128 * REGISTERS, np.float32) for name in "xy"}
    args = ("x", "y", *map(np.int32, values))
    return tuple(f for f in find(kernel, arrays, args, block=(threads, 1, 1)) if "race" not in f.kind)


def told(found: tuple[Finding, ...]) -> set[tuple[str, int, int | None]]:
    return {lines(finding) for finding in found}


@pytest.mark.parametrize(
    ("skips", "pairs"),
    [
        (0, set()),
        (1, {(6, 3), (6, 4)}),
        (2, {(10, 8)}),
        (3, {(14, 12)}),
        (4, {(19, 17)}),
        (5, set()),
        (6, {(26, 23)}),
    ],
)
def test_a_fence_is_missing_where_a_register_was_touched(skips: int, pairs: set[tuple[int, int]]):
    """Not between products of one shape, nor where A was only read."""
    assert told(findings(without_fence(skips))) == {("missing wgmma fence", *pair) for pair in pairs}


def test_both_lines_are_told():
    (found,) = findings(without_fence(2))
    for words in (
        "planted.cu:10",
        "'wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16' takes a register that the 'mul.ftz.f32' at ",
        "planted.cu:8",
        "no wgmma.fence lies between",
    ):
        assert words in found.message


FIRST = f"""{HEAD}{WAY}
#line 1 "planted.cu"
extern "C" __global__ void k(const float* x, float* y, int fences) {{
  {" ".join(OPERANDS.split(chr(10)))}
  for (int i = 0; i < 4; ++i) ra[i] = 0;
  for (int i = 0; i < {REGISTERS}; ++i) d[i] = 0;
  if (fences) FENCE();
  {PRODUCT}
  DONE(0);
  for (int i = 0; i < {REGISTERS}; ++i) y[{REGISTERS} * t + i] = d[i];
}}"""
"""Zeros are put into registers behind the fence, wherever they are written."""


@pytest.mark.parametrize("fences", [0, 1])
def test_the_first_product_needs_a_fence(fences: int):
    found = findings(FIRST, fences)
    assert {(kind, here) for kind, here, _ in told(found)} == (set() if fences else {("missing wgmma fence", 6)})


MOVED = f"""{HEAD}{WAY}
#line 1 "planted.cu"
extern "C" __global__ void k(const float* x, float* y, int fences) {{
  {" ".join(OPERANDS.split(chr(10)))}
  float one = x[t];
  for (int i = 0; i < 4; ++i) ra[i] = 0;
  for (int i = 0; i < {REGISTERS}; ++i) d[i] = one;
  if (fences) FENCE();
  {PRODUCT}
  DONE(0);
  for (int i = 0; i < {REGISTERS}; ++i) y[{REGISTERS} * t + i] = d[i] + one;
}}"""
"""What line 3 loads goes to eight registers of sums, and stays in one of its own."""


@pytest.mark.parametrize("fences", [0, 1])
def test_what_is_moved_to_another_register_was_touched_where_it_was_made(fences: int):
    found = told(findings(MOVED, fences))
    assert ("missing wgmma fence", 7, 3) in found if not fences else not found


EARLY = f"""{HEAD}{WAY}
#line 1 "planted.cu"
extern "C" __global__ void k(const float* x, float* y, int early, int late) {{
  {" ".join(OPERANDS.split(chr(10)))}
  for (int i = 0; i < {REGISTERS}; ++i) d[i] = x[t];
  for (int i = 0; i < 4; ++i) ra[i] = __float_as_uint(x[t + i]);
  #pragma unroll 1
  for (int round = 0; round < 2; ++round) {{
    FENCE();
    {PRODUCT}
    {COMMIT}
    if (early == 1) asm volatile("add.u32 %0, %0, 1;" : "+r"(ra[1]));
    if (early == 2) asm volatile("mov.b32 %0, 0f00000000;" : "+f"(d[3]));
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (late == 1) asm volatile("add.u32 %0, %0, 1;" : "+r"(ra[1]));
    if (late == 2) asm volatile("mov.b32 %0, 0f00000000;" : "+f"(d[3]));
  }}
  for (int i = 0; i < {REGISTERS}; ++i) y[{REGISTERS} * t + i] = d[i];
}}"""
"""A is written in line 10 or 13, a sum in 11 or 14; the product is in line 8."""


@pytest.mark.parametrize(("early", "late", "line"), [(1, 0, 10), (2, 0, 11), (0, 1, None), (0, 2, None)])
def test_a_register_is_written_while_a_product_has_it(early: int, late: int, line: int | None):
    found = findings(EARLY, early, late)
    assert told(found) == ({("register written early", line, 8)} if line else set())
    assert all("which is under way; wait for it first" in finding.message for finding in found)
