"""The sanitizer on products of warpgroups: proxy fences, operands that are written over, sums that are read early."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.emulator.abi import layout as at
from harness.emulator.launch.tensor_maps import encode
from harness.model.finding import Finding
from harness.model.tensor_map import TensorMap
from tests.emulator.hopper_kernel import HEAD
from tests.emulator.sanitized_kernel import find, lines
from tests.emulator.warpgroup_kernels import REGISTERS, WAY, wgmma

PRODUCT = wgmma("f32.f16.f16", "shared", "1, 1, 1, 0, 0")
FENCE = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
COMMIT = 'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'
WAIT = 'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");'
DESCRIPTORS = """u64 da = place_of(a) >> 4 | (u64)(1024 >> 4) << 16 | (u64)(128 >> 4) << 32;
  u64 db = place_of(b) >> 4 | (u64)(256 >> 4) << 16 | (u64)(128 >> 4) << 32;"""
ORDINARY = f"""{HEAD}{WAY}
#line 1 "planted.cu"
extern "C" __global__ void k(float* y) {{
  __shared__ __align__(128) unsigned a[512], b[128]; int t = threadIdx.x;
  {" ".join(DESCRIPTORS.split(chr(10)))}
  for (int i = t; i < 512; i += 128) a[i] = 0x3C003C00;
  b[t] = 0x3C003C00;
  {FENCE}
  __syncthreads();
  float d[{REGISTERS}] = {{}};
  FENCE();
  {PRODUCT}
  {COMMIT}
  float early = 0.f;
  {WAIT}
  __syncthreads();
  b[t] = 0;
  for (int i = 0; i < {REGISTERS}; ++i) y[{REGISTERS} * t + i] = d[i] + early;
}}"""
"""A and B written by the threads: lines 4 and 5. The product 10, `early` 12, the write over B 15."""


def findings(
    source: str, *changes: tuple[str, str], arrays: dict[str, np.ndarray] | None = None, args: tuple[Any, ...] = ("y",),
    block: int = 128, seed: int = 0,
) -> tuple[Finding, ...]:  # fmt: skip
    """In the kernel after these changes."""
    import cupy

    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    arrays = arrays or {"y": np.zeros(128 * REGISTERS, np.float32)}
    kernel = cupy.RawKernel(source, "k", options=("-arch=sm_90a",))
    return find(kernel, arrays, args, block=(block, 1, 1), seed=seed, shuffle=seed > 0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_product_in_order_has_no_findings(seed: int) -> None:
    assert findings(ORDINARY, seed=seed) == ()


def test_a_fence_of_whoever_issues_the_product_will_do() -> None:
    behind = ("__syncthreads();\n  float d", f"__syncthreads();\n {FENCE} float d")
    assert findings(ORDINARY, (FENCE, ""), behind) == ()


def test_a_missing_proxy_fence() -> None:
    """Both lines: of the product, and of the stores to A and to B."""
    found = findings(ORDINARY, (FENCE, ""))
    assert {lines(finding) for finding in found} == {
        ("missing proxy fence", 10, 4),
        ("missing proxy fence", 10, 5),
    }
    assert "operand read of 16 bytes" in found[0].message
    assert "by the asynchronous proxy, which has not seen the store at" in found[0].message
    assert "shared memory" in (found[0].target or "")


@pytest.mark.parametrize("fence", ["fence.proxy.async.global;", "fence.acq_rel.cta;", "fence.proxy.alias;"])
def test_another_fence_is_none(fence: str) -> None:
    found = findings(ORDINARY, ("fence.proxy.async.shared::cta;", fence))
    assert {finding.kind for finding in found} == {"missing proxy fence"}


def test_a_fence_before_the_store_is_none() -> None:
    moved = (f"b[t] = 0x3C003C00;\n  {FENCE}", f"{FENCE} b[t] = 0x3C003C00;\n")
    assert {lines(finding) for finding in findings(ORDINARY, moved)} == {("missing proxy fence", 10, 5)}


@pytest.mark.parametrize(
    ("lanes", "fenced"), [("t % 32 == 0", False), ("t % 2", False), ("t % 32 < 16", False), ("t >= 0", True)]
)
@pytest.mark.parametrize("meet", ["", "__syncwarp(); "])
def test_a_fence_of_some_lanes_is_for_those_that_they_have_met(lanes: str, fenced: bool, meet: str) -> None:
    found = findings(ORDINARY, (FENCE, f"{meet}if ({lanes}) {FENCE}"))
    assert {finding.kind for finding in found} == (set() if fenced or meet else {"missing proxy fence"})


def test_an_operand_that_nobody_wrote() -> None:
    half = ("for (int i = t; i < 512; i += 128)", "for (int i = t; i < 256; i += 128)")
    (found,) = findings(ORDINARY, half)
    assert (found.kind, found.place.line if found.place else 0) == ("uninitialised read", 10)


def test_threads_that_have_not_met_before_the_product() -> None:
    """A warp reads what others write in the meantime."""
    kinds = {lines(f) for f in findings(ORDINARY, (f"{FENCE}\n  __syncthreads();", f"{FENCE}\n"), seed=1)}
    assert ("RAW race", 10, 5) in kinds


def test_an_operand_is_written_over_before_the_wait() -> None:
    """By the warpgroup itself; behind the wait its warps know that all four are done."""
    early = ("float early = 0.f;", "float early = 0.f; b[t] = 0;")
    found = {lines(finding): finding.message for finding in findings(ORDINARY, early)}
    told = "still in flight: its warpgroup has to wait for it first (wgmma.wait_group)"
    assert told in found["WAR race", 12, 10]
    # A warp that is late reads what the first has written.
    assert set(found) == {("WAR race", 12, 10), ("RAW race", 10, 12)}
    assert findings(ORDINARY, (f"{WAIT}\n  __syncthreads();", WAIT), ("b[t] = 0;", "if (t < 32) b[t] = 0;")) == ()


def test_a_sum_is_read_early() -> None:
    (found,) = findings(ORDINARY, ("float early = 0.f;", "float early = d[3] * 2.f;"))
    assert lines(found) == ("accumulator read early", 12, 10)
    assert "reads an accumulator of the 'wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16'" in found.message


STAGES = f"""{HEAD}{WAY}
#line 1 "planted.cu"
extern "C" __global__ void k(const __grid_constant__ Map A, float* x, float* y) {{
  __shared__ __align__(128) unsigned a[512], b[128]; __shared__ u64 full, empty; int t = threadIdx.x;
  if (t == 0) {{ init(&full, 1); init(&empty, RELEASES); }}
  __syncthreads();
  if (t >= 128) {{
    if (t == 128) for (int i = 0; i < 3; ++i) {{
      if (i) wait(&empty, (i - 1) & 1);
      expect(&full, BYTES);
      load2(a, &A, 0, 0, &full);
      load2(a + 256, &A, 8, 0, &full);
      load_bytes(b, x, 512, &full);
    }}
  }} else {{
    float d[{REGISTERS}] = {{}};
    {" ".join(DESCRIPTORS.split(chr(10)))}
    for (int i = 0; i < 3; ++i) {{
      wait(&full, PARITY);
      FENCE();
      {PRODUCT}
      {COMMIT}
      {WAIT}
      if (t % 128 < RELEASES) arrive(&empty);
    }}
    for (int i = 0; i < {REGISTERS}; ++i) y[{REGISTERS} * t + i] = d[i];
  }}
}}"""
"""A and B brought by copies: lines 9 to 11; the product 19, the release 22."""


def staged(*changes: tuple[str, str], releases: int = 128, seed: int = 0) -> tuple[Finding, ...]:
    source = STAGES.replace("RELEASES", str(releases))
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    source = source.replace("PARITY", "i & 1").replace("BYTES", "2560")
    arrays = {"A": np.ones((64, 16), np.float16), "x": np.ones(128, np.float32), "y": np.zeros(128 * 8, np.float32)}
    tensor = TensorMap("A", (16, 64), (32,), (8, 64), "float16")
    args = (encode(tensor, at.buffer_address(0)), "x", "y")
    return findings(source, arrays=arrays, args=args, block=160, seed=seed)


@pytest.mark.parametrize(("releases", "seed"), [(128, 0), (128, 1), (128, 2), (1, 0), (1, 3)])
def test_a_pipeline_in_order_has_no_findings(releases: int, seed: int) -> None:
    """All threads release a stage, or the first for all four warps."""
    assert staged(releases=releases, seed=seed) == ()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("place", [COMMIT, WAIT])
def test_who_reads_what_a_product_reads_speaks_for_its_warpgroup_all_the_same(place: str, seed: int) -> None:
    """One thread does, beside the product or behind it, and then gives the tile back for all four warps."""
    beside = (place, f"{place} if (t == 0) y[0] = b[5];")
    assert staged(beside, releases=1, seed=seed) == ()


@pytest.mark.parametrize(
    ("threads", "meet", "ordered"),
    [
        ("true", 'asm volatile("bar.sync 1, 128;" ::: "memory");', True),
        ("true", "__syncwarp();", False),
        ("t < 32", "__syncwarp();", True),
        ("t < 32", "", False),
    ],
)
def test_one_thread_gives_a_tile_back_for_those_that_it_has_met(threads: str, meet: str, ordered: bool) -> None:
    """What a warpgroup, or a warp, has read of the tile by itself."""
    found = staged((WAIT, f"{WAIT} if ({threads}) y[t] = b[5]; {meet}"), releases=1)
    of_the_tile = {lines(finding) for finding in found if finding.target != "buffer y"}
    assert of_the_tile == (set() if ordered else {("WAR race", 11, 21)})


def test_a_wait_for_the_other_parity() -> None:
    """The first phase seems to be over at once: the product reads what the copies have not brought."""
    kinds = {lines(finding) for finding in staged(("PARITY", "(i + 1) & 1"), ("i < 3", "i < 1"))}
    assert {("RAW race", 19, line) for line in (9, 10, 11)} <= kinds
    (message,) = {
        f.message.splitlines()[0].split("; ")[-1] for f in staged(("PARITY", "(i + 1) & 1"), ("i < 3", "i < 1"))
    }
    assert (
        message
        == "that is still in flight: whoever uses it has to wait first at its mbarrier, for the phase that counts it"
    )


def test_a_tile_is_released_before_the_wait() -> None:
    """The copy of the next stage writes over what the product reads."""
    moved = (WAIT, f"if (t % 128 < 128) arrive(&empty); {WAIT}"), ("if (t % 128 < 128) arrive(&empty);\n    }", "}")
    kinds = {lines(finding) for finding in staged(*moved)}
    assert {("WAR race", line, 19) for line in (9, 10, 11)} <= kinds


def test_a_phase_that_expects_too_few_bytes() -> None:
    """It is over when those have come; what the rest brings is read before it is there."""
    kinds = {lines(finding) for finding in staged(("BYTES", "2048"), ("i < 3", "i < 1"))}
    assert kinds == {("RAW race", 19, 11)}
