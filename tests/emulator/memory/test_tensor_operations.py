"""When operations of Blackwell's tensor cores complete, in one block and in two; copies and shifts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from operands import Array

from harness.emulator.launch.kernel_launch import LaunchCounts
from harness.execution.traffic.counts import by_place
from harness.support.errors import KernelFault
from tests.emulator.tensor_kernels import WAY, run_blackwell
from tests.emulator.tensor_operands import Layout, instruction_descriptor

PLAIN = Layout(False, "none", 2048, 128)
"""128 rows of 32 bytes, without a swizzle."""
ORDER = """
extern "C" __global__ void k(const unsigned char* a, const unsigned char* b, float* y, u64 kind, u32 descriptor,
  int mode) {
  extern __shared__ __align__(1024) unsigned char s[]; __shared__ u32 place; __shared__ u64 bar[3];
  int t = threadIdx.x, w = t / 32;
  for (int i = t; i < 4096; i += 128) { s[i] = a[i]; s[4096 + i] = b[i]; }
  if (t == 0) { init(bar, 1); init(bar + 1, 1); init(bar + 2, 2); }
  if (w == 0) alloc(&place, 512);
  PROXY();
  __syncthreads();
  u64 da = kind + (place_of(s) >> 4), db = kind + (place_of(s + 4096) >> 4);
  u32 own = w * 32 << 16;
  if (mode == 1) { for (int c = 0; c < 128; ++c) store_cell(own + c, 0); }
  if (mode == 2) { for (int c = 0; c < 128; ++c) store_cell(own + c, 0x3F800000); WAIT_ST(); }
  if (mode == 12) { for (int c = 0; c < 128; ++c) store_cell(own + 128 + c, 0); }
  BEFORE(); __syncthreads(); AFTER();
  if (t == 0) {
    mma_f16(0, da, db, descriptor, mode == 1 || mode == 2);
    if (mode == 3) mma_f16(0, da, db, descriptor, 1);
    if (mode != 4) commit(bar);
    if (mode == 5) { mma_f16(128, da, db, descriptor, 0); commit(bar + 1); }
    if (mode == 6) { commit(bar + 2); arrive(bar + 2); }
    if (mode == 7) commit(bar);
    if (mode == 14) {
      asm volatile("tcgen05.cp.cta_group::1.128x256b [%0], %1;" :: "r"(256), "l"(da) : "memory");
      mma_f16_ts(128, 256, db, descriptor, 0); commit(bar + 1);
    }
    if (mode == 15) { commit(bar + 1); mma_f16(128, da, db, descriptor, 0); commit(bar); }
    if (mode == 13) { mma_f16_ts(128, 0, db, descriptor, 0); commit(bar + 1); }
  }
  if (mode == 8) { if (t < 16) ((u32*)s)[t] = 0; PROXY(); __syncthreads(); }
  if (mode == 10) { BEFORE(); __syncthreads(); AFTER(); }
  if (mode == 10 && t == 32) { mma_f16(0, da, db, descriptor, 1); commit(bar + 1); }
  if (mode == 9) { BEFORE(); __syncthreads(); AFTER(); }
  else if (mode == 10 || mode == 5 || mode > 12) wait(bar + 1, 0);
  else if (mode == 6) wait(bar + 2, 0);
  else if (mode == 11) wait(bar, 1);
  else wait(bar, 0);
  if (mode == 15) wait(bar, 1);
  AFTER();
  u32 from = mode > 12 ? 128 : 0;
  for (int c = 0; c < 128; ++c) y[t * 128 + c] = __uint_as_float(load_cell(own + from + c));
  WAIT_LD(); BEFORE(); __syncthreads();
  if (mode == 9 || mode == 11) wait(bar, 0);
  if (w == 0) dealloc(place, 512);
}"""


def operands() -> tuple[Array, Array, Array]:
    """A and B, (128, 16) float16, and A B^T."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, (128, 16)).astype(np.float16) for _ in range(2))
    return a, b, a.astype(np.float32) @ b.astype(np.float32).T


def in_order(mode: int) -> Array:
    a, b, _ = operands()
    return run_in_order(mode, a, b)[0]


def run_in_order(mode: int, a: Array, b: Array) -> tuple[Array, LaunchCounts]:
    arrays = {"a": PLAIN.image(a.view(np.uint16), 4096), "b": PLAIN.image(b.view(np.uint16), 4096),
              "y": np.zeros((128, 128), np.float32)}  # fmt: skip
    word = instruction_descriptor(128, 128, 0, 0, 1)
    args = ("a", "b", "y", np.uint64(PLAIN.descriptor()), np.uint32(word), np.int32(mode))
    after, counts = run_blackwell(ORDER, arrays, args, block=(128, 1, 1), shared_bytes=8192)
    return after["y"], counts


@pytest.mark.parametrize(
    ("mode", "factor", "constant"),
    [(0, 1, 0), (2, 1, 1), (3, 2, 0), (5, 1, 0), (6, 1, 0), (10, 2, 0)],
    ids=["one", "added to what was stored", "two in order", "an earlier commit", "with an arrival", "two threads"],
)
def test_a_product_is_complete_after_the_wait_for_its_commit(mode: int, factor: int, constant: int) -> None:
    assert np.array_equal(in_order(mode), factor * operands()[2] + constant)


@pytest.mark.parametrize(
    "mode", [1, 9, 11, 13], ids=["D stored without a wait", "no wait", "wait for another phase", "A in flight"]
)
def test_what_is_too_early_is_nan(mode: int) -> None:
    assert np.isnan(in_order(mode)).all()


def test_commits_of_a_thread_arrive_in_their_order() -> None:
    """Nobody waits for the first phase of the first mbarrier, but for the commit after it, and then for the second."""
    assert np.array_equal(in_order(15), operands()[2])


def test_a_copy_to_a_is_executed_before_the_product_that_follows() -> None:
    assert np.array_equal(in_order(14), operands()[2])


def test_operands_that_are_overwritten_before_the_wait_show() -> None:
    a, b, _ = operands()
    a = a.copy()
    a[:4, :8] = 0
    assert np.array_equal(in_order(8), a.astype(np.float32) @ b.astype(np.float32).T)


def test_bytes_of_tensor_memory_by_line() -> None:
    """Two products of 128 x 128 x 16, of which the second reads D; then 128 columns are loaded."""
    a, b, _ = operands()
    _, counts = run_in_order(3, a, b)
    rows = {(row.line, row.kind): (row.requests, row.requested_bytes) for row in by_place(counts.tensor)}
    first, second, loads = (line_of(ORDER, text) for text in ("mma_f16(0, da, db", "mode == 3", "load_cell(own"))
    d, operand = 4 * 128 * 128, 2 * 128 * 32
    assert rows == {
        (first, "store"): (1, d), (first, "operand"): (1, operand), (second, "load"): (1, d), (second, "store"): (1, d),
        (second, "operand"): (1, operand), (loads, "load"): (4 * 128, 4 * 128 * 128),
    }  # fmt: skip


def line_of(source: str, text: str) -> int:
    """The line of a source in which the text first occurs."""
    return 1 + source[: source.index(text)].count("\n")


def test_a_store_to_other_columns_does_not_matter() -> None:
    assert np.array_equal(in_order(12), operands()[2])


def test_a_wait_without_a_commit_is_a_deadlock() -> None:
    with pytest.raises(KernelFault, match=r"warps 0-3 wait at the mbarrier.*1 arrivals and 0 bytes are missing"):
        in_order(4)


def test_each_phase_counts_its_own_commit() -> None:
    assert np.array_equal(in_order(7), operands()[2])


FREED = """
extern "C" __global__ void k(u64 kind, u32 descriptor) {
  extern __shared__ __align__(1024) unsigned char s[]; __shared__ u32 place; __shared__ u64 bar;
  if (threadIdx.x == 0) init(&bar, 1);
  alloc(&place, 64);
  __syncthreads();
  u64 a = kind + (place_of(s) >> 4);
  if (threadIdx.x == 0) { mma_f16(0, a, a, descriptor, 0); commit(&bar); }
  dealloc(place, 64);
}"""


def test_memory_is_not_freed_while_a_product_writes_it() -> None:
    args = (np.uint64(PLAIN.descriptor()), np.uint32(instruction_descriptor(128, 64, 0, 0, 1)))
    with pytest.raises(
        KernelFault, match=r"planted.cu:9.* is freed while .* at .*planted.cu:8 .* may still write there"
    ):
        run_blackwell(FREED, {}, args, block=(32, 1, 1), shared_bytes=4096)


BAD = """
extern "C" __global__ void k(u64 a, u64 b, u32 descriptor, u32 d) {
  extern __shared__ __align__(1024) unsigned char s[]; __shared__ u32 place; __shared__ u64 bar;
  if (threadIdx.x == 0) init(&bar, 1);
  alloc(&place, 64);
  __syncthreads();
  if (threadIdx.x == 0) { mma_f16(d, a, b, descriptor, 0); commit(&bar); }
  wait(&bar, 0);
  dealloc(place, 64);
}"""
GOOD_WORD, GOOD_PLACE = instruction_descriptor(128, 64, 0, 0, 1), PLAIN.descriptor()
BAD_PRODUCTS: dict[str, tuple[dict[str, int], str]] = {
    "N": ({"word": instruction_descriptor(128, 264, 0, 0, 1)}, "has M = 128 and N = 264"),
    "M": ({"word": instruction_descriptor(32, 64, 0, 0, 1)}, "has M = 32 and N = 64"),
    "types": ({"word": instruction_descriptor(128, 64, 0, 1, 1)}, "has types 0 of A, 1 of B and 1 of D"),
    "D of bf16": ({"word": instruction_descriptor(128, 64, 1, 1, 0)}, "has types 1 of A, 1 of B and 0 of D"),
    "sparse": ({"word": GOOD_WORD | 4}, "describes a sparse product"),
    "reserved": ({"word": GOOD_WORD | 1 << 23}, "sets bits that have to be 0"),
    "saturates": ({"word": GOOD_WORD | 8}, "sets bits that have to be 0"),
    "shift": ({"word": GOOD_WORD | 1 << 30}, "has a maximum shift of B"),
    "constant": ({"a": GOOD_PLACE & ~(1 << 46)}, "needs 0b001 in bits 46 to 48"),
    "mode 3": ({"b": GOOD_PLACE | 3 << 61}, "has swizzling mode 3"),
    "mode 1": ({"b": GOOD_PLACE | 1 << 61}, "has swizzling mode 1"),
    "absolute": ({"a": GOOD_PLACE | 1 << 52}, "an absolute address"),
    "beyond": ({"b": GOOD_PLACE | 0x3FFF}, "reaches beyond shared memory"),
    "lane": ({"d": 16 << 16}, "an operand at lane 16, column 0"),
    "columns": ({"d": 32}, "lane 0, column 32 of tensor memory reaches columns that are not allocated"),
}


@pytest.mark.parametrize("name", BAD_PRODUCTS)
def test_bad_products(name: str) -> None:
    given, message = BAD_PRODUCTS[name]
    args = (np.uint64(given.get("a", GOOD_PLACE)), np.uint64(given.get("b", GOOD_PLACE)),
            np.uint32(given.get("word", GOOD_WORD)), np.uint32(given.get("d", 0)))  # fmt: skip
    with pytest.raises(KernelFault, match=f"planted.cu.*{message}"):
        run_blackwell(BAD, {}, args, block=(32, 1, 1), shared_bytes=8192)


# Two blocks -----------------------------------------------------------------------------------------------------------

PAIR = WAY.replace("cta_group::1", "cta_group::2").replace("mma_f16", "mma2").replace("void commit", "void commit2")
PAIR = "\n".join(PAIR.split("#define")[0].split("\n"))
PAIR = PAIR.replace("void alloc", "void alloc2").replace("void dealloc", "void dealloc2")
PAIR = PAIR[: PAIR.index("__device__ u32 load_cell")]
TWO_BLOCKS = f"""{PAIR}
__device__ void commit_both(u64* bar) {{
  asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
    ::"r"(place_of(bar)), "h"((unsigned short)3) : "memory");
}}
__device__ void meet() {{
  asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");
}}
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const unsigned char* a, const unsigned char* b, float* y,
  u64 kind, u32 descriptor, int mode) {{
  extern __shared__ __align__(1024) unsigned char s[]; __shared__ u32 place; __shared__ u64 bar;
  int t = threadIdx.x, w = t / 32, rank = blockIdx.x;
  for (int i = t; i < 4096; i += 128) {{ s[i] = a[4096 * rank + i]; s[4096 + i] = b[4096 * rank + i]; }}
  if (t == 0) init(&bar, 1);
  if (mode == 1 && rank == 1) {{ meet(); return; }}
  if (w == 0) alloc2(&place, 256);
  PROXY();
  __syncthreads();
  u64 da = kind + (place_of(s) >> 4 & 0x3FFF), db = kind + (place_of(s + 4096) >> 4 & 0x3FFF);
  u32 own = w * 32 << 16;
  for (int c = 0; c < 256; ++c) store_cell(own + c, 0x7F000000);
  WAIT_ST(); BEFORE(); meet(); AFTER();
  if (rank == (mode == 2) && t == 0) {{ mma2(0, da, db, descriptor, 0); commit_both(&bar); }}
  wait(&bar, 0); AFTER();
  for (int c = 0; c < 256; ++c) y[rank * 32768 + c * 128 + t] = __uint_as_float(load_cell(own + c));
  WAIT_LD(); BEFORE(); meet();
  if (w == 0) dealloc2(place, 256);
}}"""


def in_two_blocks(rows: int, columns: int, mode: int = 0) -> tuple[Array, Array]:
    """Cells of both blocks, and A B^T."""
    rng = np.random.default_rng(rows)
    a, b = (rng.integers(-4, 5, (count, 16)).astype(np.float16) for count in (rows, columns))
    images = {}
    for name, matrix in (("a", a), ("b", b)):
        halves = np.split(matrix.view(np.uint16), 2)
        images[name] = np.concatenate([PLAIN.image(half, 4096) for half in halves])
    word = instruction_descriptor(rows, columns, 0, 0, 1)
    args = ("a", "b", "y", np.uint64(PLAIN.descriptor()), np.uint32(word), np.int32(mode))
    arrays: dict[str, Any] = {**images, "y": np.zeros((2, 256, 128), np.float32)}
    launch: dict[str, Any] = {"grid": (2, 1, 1), "block": (128, 1, 1), "shared_bytes": 8192}
    after, _ = run_blackwell(TWO_BLOCKS, arrays, args, **launch)
    return after["y"], a.astype(np.float32) @ b.astype(np.float32).T


@pytest.mark.parametrize("mode", [0, 2])
@pytest.mark.parametrize("columns", [256, 48])
def test_two_blocks_with_256_rows(columns: int, mode: int) -> None:
    """Either block may issue the product; each has half of the rows of A, and of the columns of B."""
    cells, expected = in_two_blocks(256, columns, mode)
    assert np.array_equal(np.concatenate([cells[rank, :columns].T for rank in range(2)]), expected)
    assert (cells[:, columns:] == np.uint32(0x7F000000).view(np.float32)).all()


def test_two_blocks_with_128_rows() -> None:
    """Lanes 64 and up have the second half of the columns."""
    cells, expected = in_two_blocks(128, 96)
    found = [np.concatenate([cells[rank, :48, :64].T, cells[rank, :48, 64:].T], 1) for rank in range(2)]
    assert np.array_equal(np.concatenate(found), expected)
    assert (cells[:, 48:] == np.uint32(0x7F000000).view(np.float32)).all()


def test_both_blocks_have_to_allocate() -> None:
    with pytest.raises(KernelFault, match=r"warp 0 of block .* for an allocation of as many by the peer block"):
        in_two_blocks(256, 64, 1)


# Copies and shifts ----------------------------------------------------------------------------------------------------

COPIES = {
    "128x256b": (8, lambda lane: lane), "128x128b": (4, lambda lane: lane),
    "64x128b.warpx2::02_13": (4, lambda lane: lane % 64),
    "64x128b.warpx2::01_23": (4, lambda lane: lane // 64 * 32 + lane % 32),
    "32x128b.warpx4": (4, lambda lane: lane % 32), "4x256b": (8, lambda lane: lane // 32 if lane % 32 == 0 else -1),
}  # fmt: skip
"""Columns that a copy writes, and the row of shared memory that goes to a lane."""
CASES = " ".join(
    f'case {i}: asm volatile("tcgen05.cp.cta_group::1.{shape} [%0], %1;" :: "r"(8), "l"(descriptor) : "memory"); break;'
    for i, shape in enumerate(COPIES)
)
MOVES = f"""
extern "C" __global__ void k(const u32* a, u32* y, u64 kind, int form) {{
  extern __shared__ __align__(1024) u32 s[]; __shared__ u32 place; __shared__ u64 bar; int t = threadIdx.x, w = t / 32;
  for (int i = t; i < 1024; i += 128) s[i] = a[i];
  if (t == 0) init(&bar, 1);
  if (w == 0) alloc(&place, 32);
  PROXY();
  __syncthreads();
  u32 own = w * 32 << 16;
  for (int c = 0; c < 32; ++c) store_cell(own + c, 1000 * c + t);
  WAIT_ST(); BEFORE(); __syncthreads(); AFTER();
  if (t == 0) {{
    u64 descriptor = kind + (place_of(s) >> 4);
    switch (form) {{
      {CASES}
      case 7:
        asm volatile("tcgen05.cp.cta_group::1.4x256b [%0], %1;" :: "r"(31 << 16 | 8), "l"(descriptor) : "memory");
        break;
      case 6: asm volatile("tcgen05.shift.cta_group::1.down [%0];" :: "r"(32 << 16 | 8) : "memory"); break;
    }}
    commit(&bar);
  }}
  wait(&bar, 0); AFTER();
  for (int c = 0; c < 32; ++c) y[c * 128 + t] = load_cell(own + c);
  WAIT_LD(); BEFORE(); __syncthreads();
  if (w == 0) dealloc(place, 32);
}}"""


def moved(form: int) -> tuple[Array, Array, Array]:
    """Rows of shared memory (128, 8 words), and cells (32 columns, 128 lanes) before and after."""
    rows = np.arange(1, 1025, dtype=np.uint32).reshape(128, 8) << 16
    image = PLAIN.image(rows.view(np.uint16), 4096).view(np.uint32)
    arrays = {"a": image, "y": np.zeros((32, 128), np.uint32)}
    args = ("a", "y", np.uint64(PLAIN.descriptor()), np.int32(form))
    after, _ = run_blackwell(MOVES, arrays, args, block=(128, 1, 1), shared_bytes=4096)
    before = 1000 * np.arange(32, dtype=np.uint32)[:, None] + np.arange(128, dtype=np.uint32)
    return rows, before, after["y"]


@pytest.mark.parametrize(("form", "shape"), [*enumerate(COPIES)])
def test_copies_from_shared_memory(form: int, shape: str) -> None:
    rows, before, after = moved(form)
    width, row_of = COPIES[shape]
    expected = before.copy()
    for lane in range(128):
        if row_of(lane) >= 0:
            expected[8 : 8 + width, lane] = rows[row_of(lane), :width]
    assert np.array_equal(after, expected)


def test_a_copy_of_four_rows_to_the_last_lane_of_each_warp() -> None:
    rows, before, after = moved(7)
    expected = before.copy()
    expected[8:16, 31::32] = rows[:4].T
    assert np.array_equal(after, expected)


def test_a_shift_moves_lanes_down() -> None:
    _, before, after = moved(6)
    expected = before.copy()
    expected[8:16, 33:64] = before[8:16, 32:63]
    assert np.array_equal(after, expected)
