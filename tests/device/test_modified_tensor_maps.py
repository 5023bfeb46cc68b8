"""Tensor maps that kernels make and modify: tensormap.replace, tensormap.cp_fenceproxy, and copies that use them."""

from __future__ import annotations

import re

import cupy
import numpy as np
import pytest

from harness import Device, KernelFault
from tests.emulator.hopper_kernel import HEAD

pytestmark = pytest.mark.compiles

ROWS, COLUMNS = 8, 32
FIELDS = r"""
#define FIELD(map, field, type, value) \
    asm volatile("tensormap.replace.tile." field ".shared::cta.b1024." type " [%0], " value ";" ::"r"(place_of(map)))
#define NUMBER(map, field, type, value, kind) \
    asm volatile("tensormap.replace.tile." field ".shared::cta.b1024." type ", %1;" \
        ::"r"(place_of(map)), kind(value) : "memory")
#define SET32(map, field, order, value) \
    asm volatile("tensormap.replace.tile." field ".shared::cta.b1024.b32 [%0], " order "%1;" \
        ::"r"(place_of(map)), "r"(value) : "memory")
#define SET64(map, field, order, value) \
    asm volatile("tensormap.replace.tile." field ".shared::cta.b1024.b64 [%0], " order "%1;" \
        ::"r"(place_of(map)), "l"(value) : "memory")
__device__ void publish(Map* to, Map* from) {
  asm volatile(
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;"
    ::"l"(to), "r"(place_of(from)) : "memory");
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(to) : "memory");
}
__device__ void build(Map* map, const float* x, int rows, int columns, int box_rows) {
  SET64(map, "global_address", "", x);
  SET32(map, "rank", "", 1);
  SET32(map, "box_dim", "0, ", 32);
  SET32(map, "box_dim", "1, ", box_rows);
  SET32(map, "global_dim", "0, ", columns);
  SET32(map, "global_dim", "1, ", rows);
  SET64(map, "global_stride", "0, ", (u64)columns * 4);
  SET32(map, "element_stride", "0, ", STRIDE);
  SET32(map, "element_stride", "1, ", 1);
  FIELD(map, "elemtype", "b32", "7");
  FIELD(map, "interleave_layout", "b32", "0");
  FIELD(map, "swizzle_mode", "b32", SWIZZLE);
  FIELD(map, "fill_mode", "b32", FILL);
}
"""
MADE = r"""
extern "C" __global__ void k(const float* x, float* y, Map* maps, int rows, int columns, int box_rows, int row) {
  __shared__ __align__(1024) float box[8 * 32];
  __shared__ __align__(128) Map map;
  __shared__ u64 bar;
  ((u32*)&map)[threadIdx.x] = 0;
  __syncwarp();
  if (threadIdx.x == 0) { init(&bar, 1); build(&map, x, rows, columns, box_rows); }
  __syncwarp();
  publish(maps + blockIdx.x, &map);
  if (threadIdx.x == 0) { expect(&bar, box_rows * 128); load2(box, maps + blockIdx.x, 0, row, &bar); }
  wait(&bar, 0);
  for (int i = 0; i < box_rows; ++i) y[32 * i + threadIdx.x] = box[32 * i + threadIdx.x];
}
"""


def kernel(
    body: str, stride: int = 1, swizzle: int = 0, fill: int = 0, fences: bool = True, typed: bool = True
) -> cupy.RawKernel:
    words = f'#define STRIDE {stride}\n#define SWIZZLE "{swizzle}"\n#define FILL "{fill}"\n'
    text = f'{HEAD}\n{words}{FIELDS}\n#line 1 "planted.cu"{body}'
    if not fences:
        text = re.sub(r'asm volatile\("fence.proxy.tensormap[^;]*;" [^;]*;', "", text)
    if not typed:
        text = text.replace('  FIELD(map, "elemtype", "b32", "7");\n', "")
    return cupy.RawKernel(text, "k", options=("-arch=sm_90a",))


def load(device: Device, row: int = 0, columns: int = COLUMNS, box_rows: int = ROWS, **fields: int):
    x = np.arange(16 * columns, dtype=np.float32).reshape(16, columns)
    y, maps = device.zeros((ROWS, COLUMNS)), device.empty(128, np.uint8, name="maps")
    sizes = [np.int32(n) for n in (16, columns, box_rows, row)]
    result = device.launch(kernel(MADE, **fields), 1, 32, (device.array(x), y, maps, *sizes))
    return x, y.numpy(), result


@pytest.mark.parametrize("sanitize", [False, True])
def test_a_map_made_of_zeros_loads_a_box(sanitize: bool) -> None:
    x, y, result = load(Device(sanitize=sanitize), row=5)
    np.testing.assert_array_equal(y, x[5:13])
    assert not result.findings
    assert result.by_buffer("requested")["maps"].written == 128


def test_a_map_made_of_zeros_without_a_type_has_bytes() -> None:
    device = Device()
    x = np.random.default_rng(0).integers(0, 256, (16, COLUMNS * 4)).astype(np.uint8)
    y, maps = device.zeros((ROWS, COLUMNS)), device.empty(128, np.uint8)
    body = MADE.replace("box_rows * 128", "box_rows * 32")
    sizes = [np.int32(n) for n in (16, COLUMNS, ROWS, 5)]
    device.launch(kernel(body, typed=False), 1, 32, (device.array(x).view(np.float32), y, maps, *sizes))
    np.testing.assert_array_equal(y.view(np.uint8).numpy().reshape(-1, 32)[:ROWS], x[5:13, :32])


def test_bytes_are_counted_for_the_buffer_that_holds_the_rows_and_not_for_the_maps_address() -> None:
    """A map may begin far before its array, so that one map limits boxes to any of the array's documents."""
    device = Device()
    before = device.array(np.zeros((16, COLUMNS), np.float32), name="before")
    x = device.array(np.arange(16 * COLUMNS, dtype=np.float32).reshape(16, COLUMNS), name="x")
    y, maps = device.zeros((ROWS, COLUMNS)), device.empty(128, np.uint8)
    row = (x.address - before.address) // x.strides[0] + 3
    sizes = [np.int32(n) for n in (row + ROWS, COLUMNS, ROWS, row)]
    result = device.launch(kernel(MADE), 1, 32, (before, y, maps, *sizes))
    np.testing.assert_array_equal(y.numpy(), x.numpy()[3:11])
    read = {name: moved.read for name, moved in result.by_buffer("requested").items() if moved.read}
    assert read == {"x": ROWS * COLUMNS * 4}


@pytest.mark.parametrize("modifies", ["tensormap.cp_fenceproxy", "tensormap.replace"])
def test_a_missing_fence_of_the_map_is_found(modifies: str) -> None:
    device = Device(sanitize=True)
    x, y = device.array(np.arange(512, dtype=np.float32).reshape(16, 32)), device.zeros((ROWS, COLUMNS))
    maps = device.empty(128, np.uint8, name="maps")
    made = (MADE, (x, y, maps, *(np.int32(n) for n in (16, 32, 8, 0))))
    reused = (REUSED, (device.tensor_map(x, (32, 1)), x, y, maps))
    body, arguments = made if modifies == "tensormap.cp_fenceproxy" else reused
    result = device.launch(kernel(body, fences=False), 1, 32, arguments)
    (found,) = [each for each in result.findings or () if each.kind == "missing tensor map fence"]
    assert f"may not see what '{modifies}' wrote" in found.message and "byte offset " in found.message
    assert found.other is not None and found.other.line < found.place.line


def test_what_lies_outside_is_zero_or_nan() -> None:
    for fill, outside in ((0, 0.0), (1, np.nan)):
        x, y, _ = load(Device(), row=12, columns=28, fill=fill)
        np.testing.assert_array_equal(y[:4, :28], x[12:])
        np.testing.assert_array_equal(y[4:], np.full((4, 32), outside, np.float32))
        np.testing.assert_array_equal(y[:4, 28:], np.full((4, 4), outside, np.float32))


def test_a_swizzle_of_128_bytes() -> None:
    x, y, _ = load(Device(), swizzle=3)
    pieces = x[:8].reshape(8, 8, 4)
    expected = np.stack([pieces[row, np.arange(8) ^ row] for row in range(8)]).reshape(8, 32)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"box_rows": 0}, "a box_dim into .* that no GPU"), ({"columns": 30}, "a global_stride into .* that no GPU"),
     ({"swizzle": 2}, "a swizzle_mode into .* that no GPU"), ({"stride": 2}, "an element_stride of 2")],
)  # fmt: skip
def test_fields_that_no_gpu_accepts_are_faults(fields: dict[str, int], words: str) -> None:
    with pytest.raises(KernelFault, match=words) as caught:
        load(Device(), **fields)
    assert caught.value.kind == "tensor map field"


REUSED = r"""
extern "C" __global__ void k(const __grid_constant__ Map given, float* x, float* y, Map* maps) {
  __shared__ __align__(128) float boxes[2][32];
  __shared__ u64 bar;
  if (threadIdx.x == 0) {
    init(&bar, 1);
    expect(&bar, 256);
    maps[0] = given;
    for (int i = 0; i < 2; ++i) {
      asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;"
        ::"l"(maps), "l"(x + 64 * i) : "memory");
      asm volatile("fence.proxy.tensormap::generic.acquire.cta [%0], 128;" ::"l"(maps) : "memory");
      load2(boxes[i], maps, 0, 0, &bar);
    }
  }
  __syncwarp();
  wait(&bar, 0);
  for (int i = 0; i < 2; ++i) y[32 * i + threadIdx.x] = boxes[i][threadIdx.x];
}
"""


def test_a_copy_uses_its_map_as_of_its_issue() -> None:
    """The first copy completes after the kernel has given the map in global memory another address."""
    device = Device()
    x = device.array(np.arange(128, dtype=np.float32).reshape(4, 32))
    y, maps = device.empty((2, 32)), device.empty(128, np.uint8)
    device.launch(kernel(REUSED), 1, 32, (device.tensor_map(x, (32, 1)), x, y, maps))
    np.testing.assert_array_equal(y, x.numpy()[[0, 2]])


UNWRITTEN = """
extern "C" __global__ void k(float* x, Map* maps) {
  asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" ::"l"(maps), "l"(x) : "memory");
}
"""


def test_a_map_that_nobody_wrote_and_lanes_that_modify_the_same_are_findings() -> None:
    with Device(sanitize=True) as device:
        x, maps = device.zeros(4), device.empty(128, np.uint8, name="maps")
        result = device.launch(kernel(UNWRITTEN), 1, 2, (x, maps))
    assert {(f.kind, f.target) for f in result.findings} == {
        ("uninitialised read", "buffer maps"), ("WAW race", "buffer maps")
    }  # fmt: skip


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "int64", "uint8"])
def test_maps_of_all_types_and_of_rows_that_repeat(dtype: str) -> None:
    """A stride of 0 repeats a row; a box narrower than its swizzle leaves gaps between its rows."""
    device = Device()
    width = 32 // np.dtype(dtype).itemsize
    x = device.array(np.arange(1, 2 * width + 1).reshape(2, width), dtype)
    body = """
extern "C" __global__ void k(const __grid_constant__ Map map, u64* y) {
  __shared__ __align__(1024) u64 box[64];
  __shared__ u64 bar;
  for (int i = threadIdx.x; i < 64; i += 32) box[i] = 0;
  __syncwarp();
  if (threadIdx.x == 0) { init(&bar, 1); expect(&bar, 96); load2(box, &map, 0, 0, &bar); }
  __syncwarp();
  wait(&bar, 0);
  for (int i = threadIdx.x; i < 64; i += 32) y[i] = box[i];
}
"""
    y = device.zeros(64, np.uint64)
    repeated = device.tensor_map(x, (width, 3), extents=(width, 3), strides=(0,), swizzle=64)
    device.launch(kernel(body), 1, 32, (repeated, y))
    row = x.numpy()[0].view(np.uint64)
    expected = np.zeros(64, np.uint64).reshape(8, 8)
    for number in range(3):  # rows begin 64 bytes apart; two of them share an exchange of pieces
        expected[number] = np.concatenate([row, np.zeros(4, np.uint64)])
        pieces = expected[number].reshape(4, 2)
        expected[number] = pieces[np.arange(4) ^ (number // 2 % 4)].ravel()
    np.testing.assert_array_equal(y.numpy().reshape(8, 8), expected)
