"""The sanitizer where one lane speaks, or listens, for its warp: only `__syncwarp` orders what the others did."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.emulator.abi.layout import FULL_MASK
from harness.emulator.sanitizer import clock_words as clock
from tests.emulator.hopper_kernel import HEAD
from tests.emulator.sanitized_kernel import find, lines

STAGES = f"""{HEAD}
#line 1 "planted.cu"
extern "C" __global__ void k(float* x, float* y, int hears, int tells) {{
  __shared__ __align__(16) float s[32]; __shared__ u64 full, empty, seen; int t = threadIdx.x;
  if (t == 0) {{ init(&full, 1); init(&empty, 1); init(&seen, 32); }}
  __syncthreads();
  for (int i = 0; i < 2; ++i) {{
    if (t == 0) {{
      if (i) {{ wait(&empty, 0); if (tells == 3) wait(&seen, 0); }}
      expect(&full, 128);
      load_bytes(s, x, 128, &full);
    }}
    if (t >= 32) {{
      if (hears == 0 || t == 32) wait(&full, i & 1);
      if (hears == 2) __syncwarp();
      if (hears == 3 && t < 40) __syncwarp(0xff);
      if (t < 40 || hears < 3) y[t - 32] = s[t - 32] + s[5];
      if (tells == 1) __syncwarp();
      if (tells == 2 && t < 40) __syncwarp(0xff);
      if (tells == 3) arrive(&seen);
      if (tells == 3 && t == 32) y[0] += s[5];
      if (t == 32) arrive(&empty);
    }}
  }}
}}"""
"""A warp brings a tile, in line 9, twice; another reads it in 15. `hears` and `tells`: which lanes wait for it, or tell
that it is free, or how the others do."""
ALL, ALONE, WARP, EIGHT = 0, 1, 2, 3
TELLS_ALONE, TELLS_BEHIND, TELLS_FOR_EIGHT, ALL_TELL = 0, 1, 2, 3


def findings(hears: int, tells: int, seed: int = 0) -> set[tuple[str, int, int | None]]:
    import cupy

    kernel = cupy.RawKernel(STAGES, "k", options=("-arch=sm_90a",))
    arrays = {name: np.zeros(32, np.float32) for name in "xy"}
    args = ("x", "y", np.int32(hears), np.int32(tells))
    return {lines(finding) for finding in find(kernel, arrays, args, block=(64, 1, 1), seed=seed, shuffle=seed > 0)}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("hears", "tells"), [(ALL, TELLS_BEHIND), (WARP, TELLS_BEHIND), (EIGHT, TELLS_FOR_EIGHT), (ALL, ALL_TELL)]
)
def test_lanes_that_meet_before_one_speaks_and_behind_one_that_hears_are_ordered(hears: int, tells: int, seed: int):
    """Or who tell it themselves, though one of them reads on and tells that by itself."""
    assert findings(hears, tells, seed) == set()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("hears", "tells"), [(ALL, TELLS_ALONE), (ALL, TELLS_FOR_EIGHT)])
def test_one_lane_speaks_for_others_that_it_has_not_met(hears: int, tells: int, seed: int):
    assert findings(hears, tells, seed) == {("WAR race", 9, 15)}


@pytest.mark.parametrize("seed", [0, 1])
def test_one_lane_waits_and_the_others_do_not_know_of_it(seed: int):
    assert findings(ALONE, TELLS_BEHIND, seed) == {("RAW race", 15, 9)}


FLAG = """
extern "C" __global__ void k(float* y, int meet) {
  __shared__ float s[64]; __shared__ volatile int flag; int t = threadIdx.x;
  if (t == 0) flag = 0;
  __syncthreads();
  if (t < 32) {
    s[t] = t;
    if (meet & 1) __syncwarp();
    if (t == 0) flag = 1;
  } else {
    if (t == 32) while (flag == 0) __nanosleep(1);
    if (meet & 2) __syncwarp();
    y[t] = s[63 - t];
  }
}"""
"""The same with a flag: written in line 6, read in 12."""


@pytest.mark.parametrize(("meet", "races"), [(3, False), (1, True), (2, True)])
def test_a_flag_speaks_for_the_lane_that_sets_it_and_to_the_lane_that_sees_it(meet: int, races: bool):
    found = find(FLAG, {"y": np.zeros(64, np.float32)}, ("y", np.int32(meet)), block=(64, 1, 1))
    assert {lines(finding) for finding in found} == ({("RAW race", 12, 6)} if races else set())


TOLD = st.tuples(st.integers(0, 1), st.integers(1, 9), st.sampled_from([1, 2, 3, 12, FULL_MASK]))
"""To which of two clocks, up to when, of which lanes."""


@settings(deadline=None)
@given(st.lists(TOLD))
def test_a_clock_never_forgets_and_knows_nothing_that_nobody_told(told: list[tuple[int, int, int]]) -> None:
    """Held against a time for each lane; exact where one lane speaks, or all do."""
    clocks = np.zeros((2, 2 * clock.CLOCK_WORDS), np.int64)
    exact = np.zeros((2, 32), np.int64)
    for into, time, mask in told:
        clock.tell(clocks[into].ctypes.data, 2, 1, time, mask)
        of = [lane for lane in range(32) if mask >> lane & 1]
        exact[into, of] = np.maximum(exact[into, of], time)
    clock.merge(clocks[0].ctypes.data, clocks[1].ctypes.data, 2)
    until = exact.max(axis=0)
    simple = {mask for *_, mask in told} <= {1, FULL_MASK}
    for when in range(1, 11):
        known = clock.lanes_known(clocks[0].ctypes.data, 2, 1, when)
        must = sum(1 << lane for lane in range(32) if until[lane] >= when)
        assert known & must == must
        assert known == must or (not simple and when <= until.max())
    assert clock.latest(clocks[0].ctypes.data, 2, 1) == until.max()
