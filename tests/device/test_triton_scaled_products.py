"""Triton's `tl.dot_scaled` for Blackwell: products with block scaling, and padded operands by TMA."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl

from harness import Device, TritonKernel

pytestmark = [pytest.mark.compiles, pytest.mark.thorough]

M, N, K, STEPS = 128, 128, 128, 2
"""Sizes of one step, and how many there are."""
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""Of e2m1."""


@triton.jit
def scaled(
    a, b, a_scales, b_scales, out, TA: tl.constexpr, A_PACKED: tl.constexpr, V: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    m, n, ks = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // V)
    ka, kb = tl.arange(0, K // A_PACKED), tl.arange(0, K // 2)
    total = tl.zeros((M, N), tl.float32)
    for i in range(STEPS):
        x = tl.load(a + m[:, None] * (STEPS * K // A_PACKED) + i * (K // A_PACKED) + ka[None, :])
        y = tl.load(b + n[None, :] * (STEPS * K // 2) + i * (K // 2) + kb[:, None])
        s = tl.load(a_scales + m[:, None] * (STEPS * K // V) + i * (K // V) + ks[None, :])
        t = tl.load(b_scales + n[:, None] * (STEPS * K // V) + i * (K // V) + ks[None, :])
        total = tl.dot_scaled(x, s, TA, y, t, "e2m1", total)
    tl.store(out + m[:, None] * N + n[None, :], total)


@triton.jit
def scaled_boxes(a, b, a_scales, b_scales, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr):
    m, n, ks = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // 32)
    total = tl.zeros((M, N), tl.float32)
    for i in range(STEPS):
        s = tl.load(a_scales + m[:, None] * (STEPS * K // 32) + i * (K // 32) + ks[None, :])
        t = tl.load(b_scales + n[:, None] * (STEPS * K // 32) + i * (K // 32) + ks[None, :])
        x, y = a.load([0, i * K]), b.load([0, i * (K // 2)])
        total = tl.dot_scaled(x, s, "e4m3", y.T, t, "e2m1", total)
    tl.store(out + m[:, None] * N + n[None, :], total)


def operand(rng: np.random.Generator, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of a matrix (128, K STEPS), and their numbers."""
    if kind == "e2m1":
        packed = rng.integers(0, 256, (128, STEPS * K // 2)).astype(np.uint8)
        return packed, VALUES[np.stack([packed & 15, packed >> 4], -1).reshape(128, -1)]
    numbers = rng.integers(-4, 5, (128, STEPS * K)).astype(np.float32)
    return numbers.astype(ml_dtypes.float8_e4m3fn).view(np.uint8), numbers.astype(np.float64)


def scales(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the scales of `size` elements each: ue8m0 for 32, ue4m3 for 16; and the factor of each element."""
    shape = 128, STEPS * K // size
    if size == 32:
        codes = rng.integers(125, 130, shape).astype(np.uint8)
        numbers = 2.0 ** (codes.astype(np.float64) - 127)
    else:
        codes = rng.integers(0x30, 0x40, shape).astype(np.uint8)
        numbers = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return codes, np.repeat(numbers, size, 1)


@pytest.mark.parametrize(
    ("a_type", "size", "boxes"),
    [("e2m1", 32, False), ("e2m1", 16, False), ("e4m3", 32, False), ("e4m3", 32, True)],
    ids=["mxf4", "mxf4nvf4", "mxf8f6f4", "mxf8f6f4 by TMA"],
)
def test_sums_are_exact(a_type: str, size: int, boxes: bool) -> None:
    """As is what the sanitizer finds: nothing."""
    rng = np.random.default_rng(size)
    (a, x), (b, y) = operand(rng, a_type), operand(rng, "e2m1")
    (a_scales, s), (b_scales, t) = scales(rng, size), scales(rng, size)
    device = Device("sm_100", sanitize=True)
    given: list[Any] = [device.array(each) for each in (a, b, a_scales, b_scales)]
    out = device.empty((M, N))
    sizes = {"M": M, "N": N, "K": K, "STEPS": STEPS}
    pointer = "*u8" if size == 32 else "*fp8e4nv"
    types = {"a_scales": pointer, "b_scales": pointer}
    if boxes:
        maps = (
            device.tensor_map(given[0], (128, M), swizzle=128),
            device.tensor_map(given[1], (128, N), swizzle=128, element_type="b4x16_p64"),
        )
        given[:2] = (
            (each, *map(np.int32, array.shape), *map(np.int64, (array.shape[1], 1))) for each, array in zip(maps, given)
        )
        types |= {"a": f"tensordesc<fp8e4nv[{M}, {K}]>", "b": f"tensordesc<u8[{N}, {K // 2}]>"}
        kernel = TritonKernel(scaled_boxes, sizes, types=types)
    else:
        types |= {"a": "*u8" if a_type == "e2m1" else "*fp8e4nv", "b": "*u8"}
        packed = 2 if a_type == "e2m1" else 1
        kernel = TritonKernel(scaled, {"TA": a_type, "A_PACKED": packed, "V": size, **sizes}, types=types)
    result = device.launch(kernel, 1, kernel.block, (*given, out))
    assert np.array_equal(out.numpy(), (x * s) @ (y * t).T)
    assert result.findings == ()
