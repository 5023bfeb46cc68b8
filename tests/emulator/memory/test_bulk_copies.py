"""Bulk copies and boxes of tensors: what lands where and when, what is counted, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.emulator.launch.tensor_maps import encode
from harness.model.tensor_map import TensorMap
from harness.support.errors import KernelFault, PlanError
from tests.emulator.bulk_copies import WHOLE, X, swizzled
from tests.emulator.hopper_kernel import run_hopper


@pytest.mark.parametrize(
    ("columns", "rows", "swizzle", "x", "y"),
    [(16, 8, 0, 4, 3), (32, 16, 128, 0, 8), (16, 16, 64, 16, 1), (8, 16, 32, 8, 0), (32, 16, 128, 44, 60),
     (16, 8, 0, 72, 2)],
)  # fmt: skip
def test_a_box_comes_and_goes(columns: int, rows: int, swizzle: int, x: int, y: int) -> None:
    """Outside the tensor, which ends before its buffer does, it has zeros, which are not stored."""
    width, height = 60, 62
    arrays = {"X": X, "Z": np.full((64, 64), -1, np.float32), "Y": np.zeros(4096, np.float32)}
    arrays["early"] = np.zeros(32, np.float32)
    maps = (TensorMap(name, (width, height), (256,), (columns, rows), "float32", swizzle) for name in "XZ")
    scalars = (np.int32(x), np.int32(y), np.int32(columns * rows * 4))
    after, counts = run_hopper(WHOLE, arrays, (*maps, "Y", "early", *scalars), shared_bytes=8192)
    padded = np.zeros((160, 160), np.float32)
    padded[40 : 40 + height, 40 : 40 + width] = X[:height, :width]
    box = padded[40 + y : 40 + y + rows, 40 + x : 40 + x + columns]
    assert np.isnan(after["early"]).all()
    assert np.array_equal(after["Y"][: box.size], swizzled(np.ascontiguousarray(box), swizzle))
    stored = np.full((64, 64), -1, np.float32)
    ys, xs = slice(max(y, 0), min(y + rows, height)), slice(max(x, 0), min(x + columns, width))
    stored[ys, xs] = X[ys, xs]
    assert np.array_equal(after["Z"], stored)
    traffic = {site.buffer: site for site in counts.sites}
    inside = X[ys, xs]
    for buffer, kind in (("X", "load"), ("Z", "store")):
        # Pieces of 16 bytes: those of one sector count once for each line of shared memory, zeros by sectors there.
        pieces = [(row, 4 * column) for row in range(rows) for column in range(0, columns, 4)]
        is_inside = [0 <= y + row < height and 0 <= 4 * x + at < 4 * width for row, at in pieces]
        places = [((y + row) * 256 + 4 * x + at, 4 * columns * row + at) for row, at in pieces]
        sectors = len({(row, a // 32, b // 128) for (a, b), i, (row, _) in zip(places, is_inside, pieces) if i})
        if kind == "load":
            sectors += len({(row, b // 32) for (_, b), i, (row, _) in zip(places, is_inside, pieces) if not i})
        found = traffic[buffer]
        assert (found.kind, found.requests, found.requested_bytes) == (kind, 1, inside.nbytes)
        assert (found.sectors, found.line) == (sectors, 6 if kind == "load" else 12)


RUNS = """extern "C" __global__ void k(float* x, float* y, int bytes, int shift) {
  extern __shared__ __align__(128) float s[]; __shared__ u64 bar;
  init(&bar, 1); load_bytes(s, x + shift, bytes, &bar); expect(&bar, bytes); wait(&bar, 0);
  s[0] = -s[0];
  store_bytes(y, s, bytes); COMMIT(); y[1023] = y[0]; STORED();
}"""


def run_runs(size: int, shift: int = 0) -> np.ndarray:
    arrays = {"X": X.reshape(-1)[:1024] + 1, "Y": np.zeros(1024, np.float32)}
    args = ("X", "Y", np.int32(size), np.int32(shift))
    return run_hopper(RUNS, arrays, args, block=(1, 1, 1), shared_bytes=4096)[0]["Y"]


def test_a_run_of_bytes_is_stored_at_the_wait() -> None:
    expected = np.zeros(1024, np.float32)
    expected[:8] = [-5, 6, 7, 8, 9, 10, 11, 12]
    assert np.array_equal(run_runs(32, 4), expected)


LEFT = """extern "C" __global__ void k(float* x, int* y, int commits) {
  extern __shared__ __align__(128) int s[]; int t = threadIdx.x, place = 32 * blockIdx.x;
  if (t < 32) { s[t] = place + t + 1; asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); __syncwarp(); }
  if (t == 0) {
    store_bytes(y + place, s, 128);
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], 128;"
      ::"l"(x + place), "r"(place_of(s)) : "memory");
    if (commits) COMMIT();
  }
  __syncthreads();
  if (t == 32 && s[0] == 0) y[0] = 7;
}"""


@pytest.mark.parametrize("cluster", [None, (2, 1, 1)])
@pytest.mark.parametrize("commits", [0, 1])
def test_a_store_that_no_thread_waits_for_lands_at_the_end_of_its_block(
    commits: int, cluster: tuple[int, int, int] | None
) -> None:
    """With and without a commit."""
    arrays = {"x": np.full(128, 1000, np.int32), "y": np.zeros(128, np.int32)}
    launch = {"grid": (4, 1, 1), "block": (64, 1, 1), "cluster": cluster, "shared_bytes": 128}
    after, _ = run_hopper(LEFT, arrays, ("x", "y", np.int32(commits)), **launch)
    assert np.array_equal(after["y"], np.arange(1, 129))
    assert np.array_equal(after["x"], np.arange(1001, 1129))


@pytest.mark.parametrize(
    ("size", "shift", "told"),
    [
        (24, 0, "bulk copy of 24 bytes; the size must be a multiple of 16"),
        (32, 1, "misaligned asynchronous copy of 16 bytes at byte offset 4 of buffer X"),
        (32, 1020, "out-of-bounds asynchronous copy of 32 bytes at byte offset 4,080 of buffer X"),
        (4112, 0, "out-of-bounds asynchronous copy of 4,112 bytes at byte offset 0 of buffer X"),
    ],
)
def test_strays_are_faults(size: int, shift: int, told: str) -> None:
    with pytest.raises(KernelFault, match=told):
        run_runs(size, shift)


VARIABLES = """__device__ int first; __constant__ __align__(16) int fixed[8]; __device__ __align__(16) int last[8];
extern "C" __global__ void k(int* y, int which) {
  extern __shared__ __align__(128) int s[]; __shared__ u64 bar; int t = threadIdx.x;
  if (t < 8) last[t] = t; else s[t] = -t;
  __syncwarp();
  if (t == 0) {
    first = which;
    init(&bar, 1); load_bytes(s, last, 32, &bar); expect(&bar, 32); wait(&bar, 0);
    store_bytes(which ? fixed : last, s + 8, 32); COMMIT(); STORED();
    for (int i = 0; i < 8; ++i) { y[i] = s[i]; y[8 + i] = last[i]; }
  }
}"""


def test_runs_to_and_from_variables_of_the_module() -> None:
    launch: dict[str, Any] = {"block": (16, 1, 1), "shared_bytes": 64}
    after, counts = run_hopper(VARIABLES, {"y": np.zeros(16, np.int32)}, ("y", np.int32(0)), **launch)
    assert after["y"].tolist() == [*range(8), *range(-8, -16, -1)]
    copied = [site for site in counts.sites if (site.buffer, site.requested_bytes) == ("variable last", 32)]
    assert {(site.kind, site.sectors, site.line) for site in copied} >= {("load", 1, 8), ("store", 1, 9)}
    with pytest.raises(KernelFault, match="store of 32 bytes at byte offset 0 of variable fixed") as caught:
        run_hopper(VARIABLES, {"y": np.zeros(16, np.int32)}, ("y", np.int32(1)), **launch)
    assert caught.value.kind == "read-only memory"


@pytest.mark.parametrize(("x", "y", "coordinate"), [(-4, 0, -4), (4, -1, -1), (0, -30, -30)])
def test_only_a_box_that_is_loaded_begins_before_its_tensor(x: int, y: int, coordinate: int) -> None:
    """The load, which comes first, is fine."""
    arrays = {"X": X, "Z": X, "Y": np.zeros(4096, np.float32), "early": np.zeros(32, np.float32)}
    maps = (TensorMap(name, (60, 62), (256,), (16, 16), "float32", 64) for name in "XZ")
    args = (*maps, "Y", "early", np.int32(x), np.int32(y), np.int32(1024))
    told = rf"planted.cu:12 .*a stored box begins at coordinate {coordinate}; only loaded boxes may"
    with pytest.raises(KernelFault, match=told) as caught:
        run_hopper(WHOLE, arrays, args, shared_bytes=8192)
    assert caught.value.kind == "tensor coordinate"


def test_a_store_beyond_the_tensor_that_leaves_the_buffer() -> None:
    """Rows of 57 elements have 15 whole pieces: the last one ends behind the buffer's last byte."""
    arrays = {"X": X, "Z": np.zeros(64 * 61 + 57, np.float32), "Y": np.zeros(4096, np.float32)}
    arrays["early"] = np.zeros(32, np.float32)
    maps = (TensorMap(name, (57, 62), (256,), (16, 16), "float32", 64) for name in "XZ")
    args = (*maps, "Y", "early", np.int32(48), np.int32(50), np.int32(1024))
    with pytest.raises(KernelFault, match=r"planted.cu:12 .*out-of-bounds .* of 48 bytes at byte offset 15,808"):
        run_hopper(WHOLE, arrays, args, shared_bytes=8192)


@pytest.mark.parametrize(("x", "first"), [(-3, -12), (6, 24)])
def test_a_box_begins_at_a_multiple_of_sixteen_bytes(x: int, first: int) -> None:
    """Whatever the swizzle. Other dimensions may begin anywhere."""
    arrays = {"X": X, "Z": X, "Y": np.zeros(4096, np.float32), "early": np.zeros(32, np.float32)}
    maps = (TensorMap(name, (60, 62), (256,), (16, 16), "float32", 64) for name in "XZ")
    told = f"the box begins at element {x} of the innermost dimension, which is byte {first}; the byte must be a"
    with pytest.raises(KernelFault, match=told) as caught:
        run_hopper(WHOLE, arrays, (*maps, "Y", "early", np.int32(x), np.int32(-1), np.int32(1024)), shared_bytes=8192)
    assert caught.value.kind == "tensor coordinate"


NARROW = """extern "C" __global__ void k(
  const __grid_constant__ Map from, const __grid_constant__ Map to, unsigned char* y, int bytes) {
  __shared__ __align__(1024) unsigned char s[2048]; __shared__ u64 bar; int t = threadIdx.x;
  if (t == 0) init(&bar, 1);
  for (int i = t; i < 2048; i += 32) s[i] = 238;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (t == 0) { load2(s, &from, 0, 0, &bar); expect(&bar, bytes); }
  wait(&bar, 0);
  for (int i = t; i < 2048; i += 32) y[i] = s[i];
  if (t == 0) { store2(s, &to, 0, 0); COMMIT(); STORED(); }
}"""
_H100 = {
    (128, 128, 128, 2): [0, 1, 2, 3, 4, 5, 6, 7, 9, 8, 11, 10, 13, 12, 15, 14],
    (128, 32, 128, 3): [0, 1, *[238] * 6, 9, 8, *[238] * 8, 16, 17],
    (128, 16, 128, 3): [0, *[238] * 8, 8, *[238] * 8, 16],
    (128, 48, 128, 3): [0, 1, 2, *[238] * 5, 9, 8, 238, 10, *[238] * 4, 18, 238, 16, 17],
    (128, 32, 64, 5): [0, 1, 238, 238, 8, 9, 238, 238, 17, 16, 238, 238, 25, 24, 238, 238, 238, 238, 32, 33],
    (128, 16, 32, 5): [0, 238, 8, 238, 16, 238, 24, 238, 238, 32],
    (0, 128, 0, 2): [*range(8), *range(8)],
    (0, 128, 128, 2): [*range(8), 1, 0, 3, 2, 5, 4, 7, 6],
}
"""Stride, columns, swizzle and rows -> the first byte of each piece of 16 in shared memory, as an H100 leaves it."""


@pytest.mark.parametrize("shape", _H100)
def test_boxes_narrower_than_their_swizzle_and_rows_that_are_all_the_same(shape: tuple[int, int, int, int]) -> None:
    """Each piece of the tensor has its number in all bytes. What comes back is what was loaded."""
    stride, columns, swizzle, rows = shape
    x = np.repeat(np.arange(128, dtype=np.uint8), 16)
    arrays = {"X": x, "Z": np.full(2048, 255, np.uint8), "Y": np.zeros(2048, np.uint8)}
    maps = [TensorMap(name, (128, rows), (stride,), (columns, rows), "uint8", swizzle) for name in "XZ"]
    after, counts = run_hopper(NARROW, arrays, (*maps, "Y", np.int32(columns * rows)))
    pieces = after["Y"].reshape(-1, 16)
    assert (pieces == pieces[:, :1]).all()
    expected = _H100[shape]
    assert pieces[:, 0].tolist() == expected + [238] * (128 - len(expected))
    moved = np.full((16, 128), 255, np.uint8)
    for row in range(rows):
        moved[row if stride else 0, :columns] = x.reshape(16, 128)[row if stride else 0, :columns]
    assert np.array_equal(after["Z"].reshape(16, 128), moved)
    assert {site.requested_bytes for site in counts.sites if site.buffer in "XZ"} == {columns * rows}


def test_no_tensor_map_no_copy() -> None:
    """A map of other dimensions than the instruction's, and one that is none."""
    arrays = {"X": X}
    other = TensorMap("X", (64, 8, 8), (256, 2048), (8, 8, 1), "float32")
    scalars = (np.int32(0), np.int32(0), np.int32(256))
    for wrong in (other, np.void(bytes(128))):
        with pytest.raises(KernelFault, match="there is no tensor map of 2 dimensions"):
            run_hopper(WHOLE, arrays, (wrong, wrong, "X", "X", *scalars), shared_bytes=4096)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"box": (512, 1)}, "each extent has to be from 1 to 256"),
        ({"box": (6, 8)}, "has rows of 24 bytes in its box"),
        ({"strides": (40,)}, "multiple of 16 bytes"),
        ({"swizzle": 64}, "has rows of 128 bytes in its box; with this swizzle they have at most 64"),
        ({"swizzle": 48}, "swizzle 48"),
        ({"extents": (64,)}, "1 strides and a box of 2 for 1 dimensions"),
        ({"extents": (0, 64)}, "at least 1"),
        ({"dtype": "float8"}, "dtype 'float8'"),
    ],
)
def test_a_map_that_no_gpu_has_is_refused(change: dict[str, Any], told: str) -> None:
    fields: dict[str, Any] = {"buffer": "Q", "extents": (64, 64), "strides": (256,), "box": (32, 8), "dtype": "float32"}
    assert len(bytes(encode(TensorMap(**fields), 0))) == 128
    with pytest.raises(PlanError, match=told):
        TensorMap(**{**fields, **change})
