"""Triton kernels that the tests of its toolchain share."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scaled(x, out, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, factor * tl.load(x + i, i < n), i < n)


@triton.jit(do_not_specialize=("n",))
def unspecialized(x, n):
    tl.store(x + n, 1.0)


@triton.jit
def row_sums(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0), tl.sum(tl.load(x + i), 0))


@triton.jit
def doubled_by_tiles(x_desc, out_desc, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS
    out_desc.store([row, 0], x_desc.load([row, 0]) * 2)


@triton.jit
def doubled_by_own_tiles(x, out, ROWS: tl.constexpr):
    x_desc = tl.make_tensor_descriptor(x, [32, 64], [64, 1], [ROWS, 64])
    out_desc = tl.make_tensor_descriptor(out, [32, 64], [64, 1], [ROWS, 64])
    row = tl.program_id(0) * ROWS
    out_desc.store([row, 0], x_desc.load([row, 0]) * 2)


@triton.jit
def misspelt(x):
    tl.store(x, tl.lode(x))
