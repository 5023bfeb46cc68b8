"""Boxes of tensors whose elements have 4 or 6 bits: packed, and padded in shared memory (PTX ISA 5.5.1.1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from operands import Array

from harness.emulator.launch.kernel_launch import LaunchCounts
from harness.model.tensor_map import TensorMap
from harness.support.errors import KernelFault, PlanError
from tests.emulator.bulk_copies import swizzled
from tests.emulator.hopper_kernel import run_hopper

ROWS, HEIGHT, WIDTH = 8, 24, 256
"""Rows of a box and of the tensor; elements of a row of the tensor."""
KERNEL = """extern "C" __global__ void k(const __grid_constant__ Map from, const __grid_constant__ Map to,
  const u32* given, u32* y, int x0, int y0, int words, int bytes, int stores) {
  extern __shared__ __align__(1024) u32 s[]; __shared__ u64 bar; int t = threadIdx.x;
  if (t == 0) { init(&bar, 1); asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  __syncthreads();
  if (t == 0) { load2(s, &from, x0, y0, &bar); expect(&bar, bytes); }
  wait(&bar, 0);
  for (int i = t; i < words; i += 32) y[i] = s[i];
  __syncwarp();
  for (int i = t; i < words; i += 32) s[i] = given[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (t == 0 && stores) { store2(s, &to, x0, y0); COMMIT(); STORED(); }
}"""
BITS = {"b4x16": (4, 4), "b4x16_p64": (8, 4), "b6x16_p32": (8, 6)}
"""In shared memory and in global memory."""


def tensor(name: str, dtype: str, swizzle: int = 0) -> TensorMap:
    return TensorMap(name, (WIDTH, HEIGHT), (WIDTH * BITS[dtype][1] // 8,), (128, ROWS), dtype, swizzle)


def run(
    dtype: str, x: int, y: int, swizzle: int = 0, to: str = "", missing: int = 0
) -> tuple[dict[str, Array], LaunchCounts]:
    """A box is loaded, and another stored if `to` is a type."""
    inner, outer = BITS[dtype]
    rng = np.random.default_rng(outer)
    source = rng.integers(0, 256, (HEIGHT, WIDTH * outer // 8)).astype(np.uint8)
    size = ROWS * 128 * inner // 8
    given = rng.integers(0, 256, size).astype(np.uint8)
    arrays: dict[str, Any] = {"source": source, "target": np.zeros_like(source), "given": given, "y": 0 * given}
    scalars = (x, y, size // 4, ROWS * 128 * outer // 8 - missing, int(bool(to)))
    maps = tensor("source", dtype, swizzle), tensor("target", to or dtype, swizzle)
    args = (*maps, "given", "y", *map(np.int32, scalars))
    after, counts = run_hopper(KERNEL, arrays, args, shared_bytes=size)
    return {**arrays, **after}, counts


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize(("x", "y", "swizzle"), [(0, 0, 0), (128, 5, 0), (128, 18, 0), (0, 8, 128)])
def test_loads(dtype: str, x: int, y: int, swizzle: int) -> None:
    """Each 16 elements, then padding, whose bits are all set. Rows after the last one are zeros, padding and all.

    The mbarrier counts the bytes without padding.
    """
    inner, outer = BITS[dtype]
    if inner < 8 and swizzle:
        swizzle = 64
    after, counts = run(dtype, x, y, swizzle)
    units = np.zeros((ROWS, 128 // 16, 2 * inner), np.uint8)
    inside = after["source"][y : y + ROWS, x * outer // 8 : (x + 128) * outer // 8].reshape(-1, 8, 2 * outer)
    units[: len(inside), :, : 2 * outer], units[: len(inside), :, 2 * outer :] = inside, 0xFF
    rows = units.reshape(-1).view(np.float32)
    assert np.array_equal(after["y"], swizzled(rows, swizzle).view(np.uint8))
    (site,) = (site for site in counts.sites if site.buffer == "source")
    assert (site.requests, site.requested_bytes) == (1, inside.size)


@pytest.mark.parametrize("dtype", ["b4x16", "b6x16_p32"])
def test_stores(dtype: str) -> None:
    """Elements of 6 bits are the lower bits of bytes in shared memory (`.b6p2x16`)."""
    after, _ = run(dtype, 128, 4, to=dtype)
    packed = after["given"].reshape(ROWS, -1)
    if dtype == "b6x16_p32":
        bits = np.unpackbits(packed.reshape(ROWS, 128, 1), axis=-1, bitorder="little")[..., :6]
        packed = np.packbits(bits.reshape(ROWS, -1), axis=-1, bitorder="little")
    expected = np.zeros_like(after["source"])
    expected[4 : 4 + ROWS, expected.shape[1] // 2 :] = packed
    assert np.array_equal(after["target"], expected)


def test_the_mbarrier_counts_bytes_without_padding() -> None:
    with pytest.raises(KernelFault, match="mbarrier"):
        run("b4x16_p64", 0, 0, missing=-512)


def test_what_is_refused_at_the_copy() -> None:
    with pytest.raises(KernelFault, match=r"a store to a tensor of type .b4x16_p64, which only loads have"):
        run("b4x16", 0, 0, to="b4x16_p64")
    with pytest.raises(
        KernelFault, match="element 64 of the innermost dimension, the element must be a multiple of 128"
    ):
        run("b6x16_p32", 64, 0)
    with pytest.raises(
        KernelFault, match="element 16 of the innermost dimension, the element must be a multiple of 32"
    ):
        run("b4x16", 16, 0)


BAD = {
    "box": ((256, 8), (128,), (64, 8), 0, "boxes have rows of 128"),
    "extent": ((192, 8), (128,), (128, 8), 0, "tensors a multiple of it"),
    "stride": ((256, 8), (144,), (128, 8), 0, "each is a multiple of 32"),
    "swizzle": ((256, 8), (128,), (128, 8), 64, "has 0 or 128"),
}


@pytest.mark.parametrize("name", BAD)
def test_maps_that_are_refused(name: str) -> None:
    extents, strides, box, swizzle, message = BAD[name]
    with pytest.raises(PlanError, match=message):
        TensorMap("x", extents, strides, box, "b4x16_p64", swizzle)


def test_rows_of_whole_bytes() -> None:
    with pytest.raises(PlanError, match="33 elements of 4 bits, which are no whole bytes"):
        TensorMap("x", (33,), (), (32,), "b4x16")
