"""The sanitizer on tensor memory and Blackwell's products: what is read too early, written over, or freed in use."""

from __future__ import annotations

import numpy as np
import pytest

from harness.model.finding import Finding
from tests.emulator.hopper_kernel import HEAD
from tests.emulator.sanitized_kernel import find, lines
from tests.emulator.tensor_kernels import WAY
from tests.emulator.tensor_operands import Layout, instruction_descriptor

KIND = Layout(False, "none", 2048, 128).descriptor()
WORD = instruction_descriptor(128, 64, 0, 0, 1)
KERNEL = f"""{HEAD}{WAY}
#line 1 "planted.cu"
extern "C" __global__ void k(float* y) {{
  __shared__ __align__(128) u32 a[1024], b[1024]; __shared__ u32 place; __shared__ u64 bar;
  int t = threadIdx.x, w = t / 32; u32 own = w * 32 << 16;
  for (int i = t; i < 1024; i += 128) a[i] = b[i] = 0x3C003C00;
  if (t == 0) init(&bar, 1);
  if (w == 0) alloc(&place, 128);
  PROXY();
  __syncthreads();
  u32 d = place;
  u64 da = {KIND}ull + (place_of(a) >> 4), db = {KIND}ull + (place_of(b) >> 4);
  for (int c = 0; c < 8; ++c) store_cell(own + d + 64 + c, 0x3C003C00);
  WAIT_ST();
  BEFORE(); __syncthreads(); AFTER();
  if (t == 0) {{
    mma_f16(d, da, db, {WORD}, 0);
    mma_f16_ts(d, d + 64, db, {WORD}, 1);
    commit(&bar);
  }}
  wait(&bar, 0); AFTER();
  float sum = __uint_as_float(load_cell(own + d)) + __uint_as_float(load_cell(own + d + 63));
  WAIT_LD();
  a[t] = 0;
  y[t] = sum;
  BEFORE(); __syncthreads(); AFTER();
  store_cell(own + d, 0);
  WAIT_ST();
  BEFORE(); __syncthreads(); AFTER();
  if (w == 0) dealloc(d, 128);
}}"""
"""Lines: operands 4, alloc 6, stores 11, products 15 and 16, commit 17, wait 19, loads 20, the write over A 22, the
store over D 25, dealloc 28."""


def findings(*changes: tuple[str, str], seed: int = 0) -> tuple[Finding, ...]:
    """In the kernel after these changes."""
    import cupy

    source = KERNEL
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    kernel = cupy.RawKernel(source, "k", options=("-arch=sm_100a",))
    arrays = {"y": np.zeros(128, np.float32)}
    return find(kernel, arrays, ("y",), block=(128, 1, 1), seed=seed, shuffle=seed > 0, arch="sm_100")


def has(found: tuple[Finding, ...], kind: str, line: int, other: int | None) -> bool:
    return (kind, line, other) in {lines(finding) for finding in found}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_kernel_in_order_has_no_findings(seed: int) -> None:
    assert findings(seed=seed) == ()


def test_a_commit_releases_what_its_thread_knows() -> None:
    """What the issuing thread has seen at a barrier before, another may write over after the wait for the commit."""
    early = "commit(&bar);", "commit(&bar); }\n if (t < 32) { wait(&bar, 0); b[t] = 0; PROXY();"
    reads = "u32 d = place;", "u32 d = place; if (t > 96) y[t] = b[t - 96];"
    assert findings(early, reads) == ()


def test_an_accumulator_that_is_read_before_the_wait() -> None:
    found = findings(
        ("wait(&bar, 0); AFTER();", "__syncthreads();"), ("if (w == 0) dealloc", "wait(&bar, 0); if (w == 0) dealloc")
    )
    assert has(found, "RAW race", 20, 16)
    message = next(finding.message for finding in found if finding.kind == "RAW race")
    assert "load of 4 bytes at lane" in message
    assert "of tensor memory at line 20 races with the product at line 16" in message and "planted.cu:16" in message
    assert "a tcgen05.commit of its thread has to come first" in message


def test_a_store_that_is_not_waited_for() -> None:
    meeting = "  BEFORE(); __syncthreads(); AFTER();\n  if (t == 0) {"
    found = findings((f"  WAIT_ST();\n{meeting}", meeting))
    assert has(found, "RAW race", 15, 11)
    assert "has to wait for it first (tcgen05.wait::st)" in found[0].message


def test_a_load_that_is_not_waited_for() -> None:
    found = findings(("WAIT_LD();\n", "\n"))
    assert has(found, "WAR race", 25, 20)
    assert any("has to wait for it first (tcgen05.wait::ld)" in finding.message for finding in found)


def test_threads_that_do_not_meet_before_a_product() -> None:
    found = findings(("  BEFORE(); __syncthreads(); AFTER();\n  if (t == 0) {", "  if (t == 0) {"), seed=1)
    assert any(has(found, "RAW race", line, other) for line, other in ((15, 11), (16, 11)))


def test_a_product_of_another_shape_does_not_wait_for_the_first() -> None:
    found = findings((f"mma_f16_ts(d, d + 64, db, {WORD}, 1)", f"mma_f16_ts(d, d + 64, db, {WORD - (4 << 17)}, 1)"))
    assert {lines(finding) for finding in found} == {("WAW race", 16, 15)}


def test_an_operand_that_is_written_over_in_flight() -> None:
    found = findings(("commit(&bar);", "commit(&bar); b[0] = 0;"))
    assert has(found, "WAR race", 17, 16)


def test_an_operand_without_a_proxy_fence() -> None:
    found = findings(("PROXY();\n", "\n"))
    assert {lines(finding) for finding in found} >= {("missing proxy fence", 15, 4)}


def test_cells_that_nobody_has_written() -> None:
    found = findings((f"mma_f16(d, da, db, {WORD}, 0)", f"mma_f16(d, da, db, {WORD}, 1)"))
    assert has(found, "uninitialised read", 15, None)
    assert "product of 4 bytes at lane 0, column 0 of tensor memory" in found[0].message


def test_memory_that_is_freed_in_use() -> None:
    found = findings(("  WAIT_ST();\n  BEFORE(); __syncthreads(); AFTER();\n  if (w == 0)", "  if (w == 3)"))
    assert any(finding.kind == "WAW race" and "deallocation" in finding.message for finding in found)


def test_the_address_that_alloc_stores_is_ordered_by_a_barrier() -> None:
    found = findings(("PROXY();\n", "PROXY(); y[t] = place;\n"))
    assert has(found, "RAW race", 7, 6)
