"""The sanitizer on mbarriers and bulk copies: an ordered pipeline has no findings, each missing wait has one."""

from __future__ import annotations

import numpy as np
import pytest

from harness.emulator.abi import layout as at
from harness.emulator.launch.messages.sanitizer_recorder import WAITS as WAITS_FOR
from harness.emulator.launch.tensor_maps import encode
from harness.model.tensor_map import TensorMap
from harness.ptx.opcodes import OPCODES
from tests.emulator.hopper_kernel import HEAD
from tests.emulator.sanitized_kernel import find

PIPELINE = """
extern "C" __global__ void k(const __grid_constant__ Map X, const __grid_constant__ Map Y, float* y) {
  __shared__ __align__(1024) float s[512]; __shared__ u64 full, empty; int t = threadIdx.x;
  if (t == 0) { init(&full, 1); init(&empty, 32); }
  __syncthreads();
  for (int i = 0; i < 3; ++i) {
    if (t == 0) {
      if (i) wait(&empty, (i - 1) & 1);
      expect(&full, 2048); load2(s, &X, 0, 16 * i, &full);
    }
    if (t >= 32) {
      wait(&full, i & 1);
      for (int j = t - 32; j < 512; j += 32) s[j] += 1.f;
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      __syncwarp();
      if (t == 32) { store2(s, &Y, 0, 16 * i); COMMIT(); STORED(); }
      __syncwarp();
      arrive(&empty);
    }
  }
}"""


def findings(*changes: tuple[str, str], unwritten: str = "Y", seed: int = 0) -> list[str]:
    """Kinds, in the pipeline after these changes."""
    import cupy

    source = f"{HEAD}{PIPELINE}"
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    arrays = {name: np.ones((64, 32), np.float32) for name in "XY"}
    maps = (TensorMap(name, (32, 48), (128,), (32, 16), "float32", 128) for name in arrays)
    args = (*(encode(m, at.buffer_address(i)) for i, m in enumerate(maps)), "Y")
    kernel = cupy.RawKernel(source, "k", options=("-arch=sm_90a",))
    found = find(kernel, arrays, args, unwritten, block=(64, 1, 1), seed=seed, shuffle=seed > 0)
    return sorted({finding.kind for finding in found})


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_an_ordered_pipeline_has_no_findings(seed: int) -> None:
    assert findings(seed=seed) == []


def test_a_source_that_nobody_wrote() -> None:
    assert findings(unwritten="X Y") == ["uninitialised read"]


LEFT = f"""{HEAD}
#line 1 "planted.cu"
extern "C" __global__ void k(float* y) {{
  __shared__ __align__(128) float s[32];
  s[threadIdx.x] = 1.f;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 5) {{
    store_bytes(y + 32 * blockIdx.x, s, 128);
    AND_THEN
  }}
}}"""
READ = 'asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");'


@pytest.mark.parametrize(
    ("then", "count"), [("", 2), ("COMMIT();", 2), (READ, 2), ("COMMIT(); STORED();", 0), (f"COMMIT(); {READ}", 0)]
)
def test_a_store_that_no_thread_waits_for(then: str, count: int) -> None:
    """Whether it is committed or not. A wait without a commit covers nothing; one for the read of its source does."""
    import cupy

    kernel = cupy.RawKernel(LEFT.replace("AND_THEN", then), "k", options=("-arch=sm_90a",))
    found = find(kernel, {"y": np.zeros(64, np.float32)}, ("y",), "y", grid=(2, 1, 1))
    assert [(each.kind, each.count) for each in found] == ([("store not awaited", count)] if count else [])
    if found:
        assert found[0].place is not None and found[0].place.thread == (5, 0, 0)
        assert "asynchronous copy of 128 bytes at byte offset 0 of shared memory s was under way" in found[0].message


HALF_OVER = f"""{HEAD}
extern "C" __global__ void k(float* y) {{
  __shared__ float s[32]; __shared__ u64 bar; int t = threadIdx.x;
  if (t == 0) init(&bar, ARRIVALS);
  s[t % 32] = t % 32;
  __syncthreads();
  if (t < 32) {{ y[t] = s[t]; __syncwarp(); if (t == 0) arrive(&bar); }}
  else {{ wait(&bar, PARITY); s[t - 32] = 1.f; }}
}}"""


@pytest.mark.parametrize(("arrivals", "parity", "kinds"), [(1, 0, set()), (2, 1, {"WAR race"})])
def test_an_arrival_in_a_phase_that_is_not_over_orders_nothing(arrivals: int, parity: int, kinds: set[str]) -> None:
    """Of two that are missing one has arrived, and who waits for the phase before does not know of it."""
    import cupy

    source = HALF_OVER.replace("ARRIVALS", str(arrivals)).replace("PARITY", str(parity))
    kernel = cupy.RawKernel(source, "k", options=("-arch=sm_90a",))
    found = find(kernel, {"y": np.zeros(32, np.float32)}, ("y",), block=(64, 1, 1))
    assert {finding.kind for finding in found} == kinds


COPIED = f"""{HEAD}
extern "C" __global__ void k(float* x, float* y) {{
  __shared__ __align__(16) float s[32]; __shared__ u64 bar; int t = threadIdx.x;
  if (t == 0) init(&bar, 32);
  __syncthreads();
  if (t < 32) {{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"::"r"(place_of(s + t)), "l"(x + t) : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"::"r"(place_of(&bar)) : "memory");
  }} else {{ WAIT y[t - 32] = s[t - 32]; }}
}}"""


@pytest.mark.parametrize(("wait", "kinds"), [("wait(&bar, 0);", set()), ("", {"RAW race"})])
def test_copies_that_arrive_are_known_behind_the_wait(wait: str, kinds: set[str]) -> None:
    import cupy

    kernel = cupy.RawKernel(COPIED.replace("WAIT", wait), "k", options=("-arch=sm_90a",))
    arrays = {name: np.zeros(32, np.float32) for name in "xy"}
    found = find(kernel, arrays, ("x", "y"), block=(64, 1, 1))
    assert {finding.kind for finding in found} == kinds


def test_whatever_is_in_flight_can_be_waited_for() -> None:
    """And the finding says how."""
    assert set(WAITS_FOR) == {name for name, row in OPCODES.items() if row.memory and row.memory.asynchronous}


WAITS = "wait(&full, i & 1);"
FENCE = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
EARLY = (WAITS, f"{WAITS} arrive(&empty);"), ("      arrive(&empty);\n", "")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        (((WAITS, f"s[0] = 1.f; {WAITS}"),), "WAW race"),
        (EARLY, "WAW race"),
        ((("COMMIT(); STORED();", "COMMIT();"),), "WAR race"),
        ((("__syncthreads();", "if (t >= 32) __nanosleep(1);"),), "RAW race"),
        ((("      __syncwarp();\n      if (t == 32)", "      if (t == 32)"),), "RAW race"),
        (((FENCE, ""),), "missing proxy fence"),
        (((WAITS, "wait(&full, (i + 1) & 1);"),), "RAW race"),
    ],
)
def test_a_missing_wait_is_a_race(changes: tuple[tuple[str, str], ...], kind: str) -> None:
    """Too early, released too early, not waited for, not initialised for all, not met before a store, not fenced before
    it, waited for another phase."""
    assert kind in findings(*changes)


GAPS = f"""{HEAD}
extern "C" __global__ void k(const __grid_constant__ Map X, const __grid_constant__ Map Y, float* y) {{
  __shared__ __align__(1024) float s[256]; __shared__ u64 bar; int t = threadIdx.x;
  if (t == 0) {{ init(&bar, 1); expect(&bar, 256); load2(s, &X, 0, 0, &bar); }}
  __syncthreads();
  if (t >= 8) s[t] = t;
  WAIT
  y[t] = s[32 + (t + 4) % 8];
}}"""
"""A box of 8 x 8 floats, whose rows begin 128 bytes apart."""


@pytest.mark.parametrize(("wait", "kinds"), [("wait(&bar, 0);", []), ("", ["RAW race"])])
def test_gaps_between_the_rows_of_a_box_are_nobodys(wait: str, kinds: list[str]) -> None:
    import cupy

    kernel = cupy.RawKernel(GAPS.replace("WAIT", wait), "k", options=("-arch=sm_90a",))
    arrays = {name: np.ones((64, 32), np.float32) for name in "XY"}
    maps = (TensorMap(name, (32, 8), (128,), (8, 8), "float32", 128) for name in arrays)
    args = (*(encode(m, at.buffer_address(i)) for i, m in enumerate(maps)), "Y")
    assert sorted({finding.kind for finding in find(kernel, arrays, args, "Y")}) == kinds


CLIPPED = """
extern "C" __global__ void k(const __grid_constant__ Map Y, float* y, int columns, int rows, int first_row) {
  __shared__ __align__(1024) float s[512]; int t = threadIdx.x;
  for (int row = 0; row < rows; ++row) if (t < columns) s[32 * row + t] = 1.f;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (t == 0) { store2(s, &Y, 0, first_row); COMMIT(); STORED(); }
}"""


@pytest.mark.parametrize(
    ("columns", "rows", "first_row", "expected"),
    [(24, 16, 0, []), (24, 8, 40, []), (20, 16, 0, ["uninitialised read"]), (24, 7, 40, ["uninitialised read"])],
)
def test_what_a_tensor_store_clips_need_not_be_written(columns: int, rows: int, first_row: int, expected: list[str]):
    """A box of 16 x 32 elements over a tensor of 48 x 24."""
    import cupy

    arrays = {"Y": np.ones((64, 32), np.float32)}
    store = encode(TensorMap("Y", (24, 48), (128,), (32, 16), "float32", 0), at.buffer_address(0))
    args = (store, "Y", np.int32(columns), np.int32(rows), np.int32(first_row))
    kernel = cupy.RawKernel(f"{HEAD}{CLIPPED}", "k", options=("-arch=sm_90a",))
    assert sorted({finding.kind for finding in find(kernel, arrays, args, "Y", block=(32, 1, 1))}) == expected
