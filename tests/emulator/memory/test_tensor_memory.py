"""Tensor memory: allocation and its faults, every shape of loads and stores, and what is too early."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from harness.support.errors import KernelFault
from tests.emulator.tensor_kernels import run_blackwell

ALLOCATION = """
extern "C" __global__ void k(u32* y, int mode) {
  __shared__ u32 place[4]; __shared__ u64 bar; int t = threadIdx.x, w = t / 32;
  if (t == 0) init(&bar, 1);
  __syncthreads();
  if (w == 0) {
    if (mode == 1) alloc(place, 48);
    if (mode == 2) alloc(place, 1024);
    alloc(place, mode == 8 ? 512 : 128);
    alloc(place + 1, 64);
    if (mode == 3) asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    if (mode == 4) dealloc(place[0], 64);
    if (mode == 5) dealloc(place[0] + 32, 128);
    alloc(place + 2, 256);
    if (mode == 6) alloc(place + 3, 512);
    dealloc(place[1], 64);
    if (mode == 7) dealloc(place[1], 64);
    alloc(place + 3, 32);
    dealloc(place[2], 256);
    dealloc(place[0], 128);
    if (mode != 9) dealloc(place[3], 32);
    if (mode == 10 && t == 0) dealloc(place[3], 32);
  }
  __syncthreads();
  if (t < 4) y[t] = place[t];
}"""
ALLOCATION_FAULTS = {
    1: r"planted.cu.*an allocation of 48 columns of tensor memory; it takes 32, 64, 128, 256 or 512",
    2: "an allocation of 1024 columns",
    3: "after the block gave up its right to allocate",
    4: "no allocation of 64 columns of tensor memory begins at address 0x0",
    5: "no allocation of 128 columns of tensor memory begins at address 0x20",
    6: "warp 0 waits for 512 columns of tensor memory to be free.*warp 1 waits at a barrier.*tcgen05.dealloc",
    7: "no allocation of 64 columns of tensor memory begins at address 0x80",
    8: "warp 0 waits for 64 columns of tensor memory to be free",
    9: "the block ends without freeing the 32 columns of tensor memory allocated here",
    10: "must be executed by all lanes of warp 0 together",
}


PREDICATED = """
#define OF_WARP_0(instruction, a, b) asm volatile("{\\n.reg .pred p;\\nsetp.eq.u32 p, %2, 0;\\n" instruction "\\n}" \\
    ::"r"(a), "r"(b), "r"((u32)(threadIdx.x >= warps * 32)) : "memory")
extern "C" __global__ void k(u32* y, u32 warps) {
  __shared__ u32 place; int t = threadIdx.x;
  OF_WARP_0("@p tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;", place_of(&place), 32);
  __syncthreads();
  store_cell(place + (t / 32 * 32 << 16), t);
  WAIT_ST();
  y[t] = load_cell(place + (t / 32 * 32 << 16));
  WAIT_LD();
  __syncthreads();
  OF_WARP_0("setp.ne.u32 p, %2, 0;\\n@!p tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;", place, 32);
}"""


def test_a_predicate_that_all_lanes_of_a_warp_agree_on() -> None:
    after, _ = run_blackwell(PREDICATED, {"y": np.zeros(128, np.uint32)}, ("y", np.uint32(1)), block=(128, 1, 1))
    np.testing.assert_array_equal(after["y"], np.arange(128))


def test_allocations_take_the_first_free_columns() -> None:
    after, _ = run_blackwell(ALLOCATION, {"y": np.zeros(4, np.uint32)}, ("y", np.int32(0)), block=(64, 1, 1))
    assert after["y"].tolist() == [0, 128, 192, 128]


@pytest.mark.parametrize("mode", ALLOCATION_FAULTS)
def test_bad_allocations(mode: int) -> None:
    with pytest.raises(KernelFault, match=ALLOCATION_FAULTS[mode]):
        run_blackwell(ALLOCATION, {"y": np.zeros(4, np.uint32)}, ("y", np.int32(mode)), block=(64, 1, 1))


SHAPES = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
HALF = 48


def forms() -> Iterator[tuple[str, int, bool]]:
    """Shape, `.num` and whether two cells share a register."""
    for shape, each in SHAPES.items():
        for number in (1, 2, 128 // each):
            for packed in (False, True):
                width = number * each * (1 if shape in ("32x32b", "16x32bx2") else 2) * (1 + packed)
                if width <= (256 if shape == "16x32bx2" else 512) and (
                    shape != "16x32bx2" or width <= HALF or not packed
                ):
                    yield shape, number, packed


def cells(shape: str, register: int, thread: int) -> tuple[int, int]:
    """Lane and column of a register of a thread, as CUTLASS's traits of copies have them."""
    if shape == "32x32b":
        return thread, register
    if shape == "16x64b":
        return thread // 4 + 8 * (thread % 2), 2 * register + thread // 2 % 2
    if shape == "16x128b":
        return thread // 4 + 8 * (register % 2), 4 * (register // 2) + thread % 4
    if shape == "16x256b":
        return thread // 4 + 8 * (register // 2 % 2), 8 * (register // 4) + 2 * (thread % 4) + register % 2
    return thread % 16, register


def instruction(shape: str, number: int, packed: bool, loads: bool) -> str:
    """Inline PTX with the registers r[...] and the address in `a`."""
    count = number * SHAPES[shape]
    half = f", {HALF}" if shape == "16x32bx2" else ""
    if loads:
        words = ", ".join(f"%{i}" for i in range(count))
        outputs = ", ".join(f'"=r"(r[{i}])' for i in range(count))
        form = f"tcgen05.ld.sync.aligned.{shape}.x{number}{'.pack::16b' * packed}.b32"
        return f'asm volatile("{form} {{{words}}}, [%{count}]{half};" : {outputs} : "r"(a) : "memory");'
    words = ", ".join(f"%{i}" for i in range(1, count + 1))
    inputs = ", ".join(f'"r"(r[{i}])' for i in range(count))
    form = f"tcgen05.st.sync.aligned.{shape}.x{number}{'.unpack::16b' * packed}.b32"
    return f'asm volatile("{form} [%0]{half}, {{{words}}};" :: "r"(a), {inputs} : "memory");'


def all_shapes() -> str:
    """A kernel that stores 0, 1, ... in columns, loads by one form, stores by it, and dumps tensor memory."""
    cases = []
    for number, form in enumerate(forms()):
        count = form[1] * SHAPES[form[0]]
        cases.append(
            f"case {number}: {{ u32 r[{count}]; {instruction(*form, loads=True)} WAIT_LD();"
            f" for (int i = 0; i < {count}; ++i) y[i * 128 + t] = r[i];"
            f" for (int i = 0; i < {count}; ++i) r[i] = 0x40003000 + (i << 16) + i * 32 + t % 32;"
            f" {instruction(*form, loads=False)} WAIT_ST(); break; }}"
        )
    return f"""
extern "C" __global__ void k(u32* y, u32* z, int form, int shift) {{
  __shared__ u32 place; int t = threadIdx.x, w = t / 32;
  if (w == 1) alloc(&place, 512);
  __syncthreads();
  u32 lane = w * 32 << 16;
  for (int c = 0; c < 512; ++c) store_cell(lane + c, t << 16 | c);
  WAIT_ST();
  u32 a = lane + (shift << 16);
  switch (form) {{ {" ".join(cases)} }}
  for (int c = 0; c < 512; ++c) z[c * 128 + t] = load_cell(lane + c);
  WAIT_LD();
  __syncthreads();
  if (w == 1) dealloc(place, 512);
}}"""


@pytest.mark.parametrize(("number", "form"), [*enumerate(forms())], ids=str)
def test_every_shape(number: int, form: tuple[str, int, bool]) -> None:
    """All four warps; shapes of 16 lanes also in the upper half of the warp's lanes."""
    shape, count, packed = form[0], form[1] * SHAPES[form[0]], form[2]
    shift = 16 * (number % 2) if shape != "32x32b" else 0
    arrays = {"y": np.zeros((count, 128), np.uint32), "z": np.zeros((512, 128), np.uint32)}
    after, _ = run_blackwell(all_shapes(), arrays, ("y", "z", np.int32(number), np.int32(shift)), block=(128, 1, 1))
    held = np.arange(128, dtype=np.uint32)[None] << 16 | np.arange(512, dtype=np.uint32)[:, None]
    loaded, stored = np.zeros_like(arrays["y"]), held.copy()
    for register, thread in np.ndindex(count, 128):
        lane, column = cells(shape, register, thread % 32)
        lane += thread // 32 * 32 + shift
        column = column * (1 + packed) + (HALF if shape == "16x32bx2" and thread % 32 >= 16 else 0)
        value = 0x40003000 + (register << 16) + register * 32 + thread % 32
        if packed:
            loaded[register, thread] = held[column, lane] & 0xFFFF | (held[column + 1, lane] & 0xFFFF) << 16
            stored[column, lane], stored[column + 1, lane] = value & 0xFFFF, value >> 16
        else:
            loaded[register, thread], stored[column, lane] = held[column, lane], value
    assert np.array_equal(after["y"], loaded)
    assert np.array_equal(after["z"], stored)


ACCESS = """
extern "C" __global__ void k(u32* y, int mode) {
  __shared__ u32 place; int t = threadIdx.x, w = t / 32;
  if (w == 0) alloc(&place, 64);
  __syncthreads();
  u32 lane = w * 32 << 16;
  y[t] = load_cell(lane + 5);
  if (mode == 1) store_cell(lane + 64, 1);
  if (mode == 2) store_cell(lane + 512, 1);
  if (mode == 3) store_cell(0, 1);
  if (mode == 4) store_cell((w * 32 + 16) << 16, 1);
  store_cell(lane + 5, t);
  y[128 + t] = load_cell(lane + 5);
  WAIT_ST();
  y[256 + t] = load_cell(lane + 5);
  if (mode == 5 && t % 2) store_cell(lane, 1);
  if (mode == 7) store_cell(lane + t / 16 % 2, 1);
  __syncthreads();
  if (w == 0) dealloc(place, 64);
  if (mode == 6) { __syncthreads(); store_cell(lane + 5, 1); }
}"""
ACCESS_FAULTS = {
    1: r"lane \d+, column 64 of tensor memory reaches columns that are not allocated",
    2: r"lane \d+, column 512 of tensor memory reaches beyond the last of 512 columns",
    3: "lane 0, column 0 of tensor memory; a warp reaches a quarter of the lanes",
    4: r"lane \d+, column 0 of tensor memory; a warp reaches a quarter of the lanes",
    5: r"must be executed by all lanes of warp \d together",
    7: r"lanes 16-31 of warp \d give another value than lane 0",
    6: r"lane \d+, column 5 of tensor memory reaches columns that are not allocated",
}


def test_cells_are_nan_before_a_store_and_until_its_wait() -> None:
    after, _ = run_blackwell(ACCESS, {"y": np.zeros((3, 128), np.uint32)}, ("y", np.int32(0)), block=(128, 1, 1))
    assert (after["y"][:2] == 0xFFFFFFFF).all()
    assert np.array_equal(after["y"][2], np.arange(128))


@pytest.mark.parametrize("mode", ACCESS_FAULTS)
def test_bad_accesses(mode: int) -> None:
    with pytest.raises(KernelFault, match=ACCESS_FAULTS[mode]):
        run_blackwell(ACCESS, {"y": np.zeros((3, 128), np.uint32)}, ("y", np.int32(mode)), block=(128, 1, 1))
