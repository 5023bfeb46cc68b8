"""The Numba twin of eight_bits.cuh: the instructions are inline assembly, since Numba has no functions for them."""

from __future__ import annotations

from numba import cuda, uint32
from numba.cuda.extending import intrinsic

from variants._mma import numba_mma as ptx
from variants._mma.numba_assembly import F32, U32, assembly
from variants._path import numba_tensor_cores as mma
from variants._path.numba_warp import warp_max

INFINITY, fill, quad_max, quad_sum, store_pair = mma.INFINITY, mma.fill, mma.quad_max, mma.quad_sum, mma.store_pair
shared_address, largest_of_warp, unpacked = ptx.shared_address, warp_max, ptx.numba_mma("float16").unpacked
load_word, store_word, load_two_words = ptx.load_shared(4), ptx.store_shared(4), ptx.load_global(8)
ZEROS = (uint32(0), uint32(0))


# Four floats, rounded to e4m3, in one register; `a` at the lowest address.
@intrinsic
def pack(typing_context, a, b, c, d):
    text = """{
    .reg .b16 low, high;
    cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
    cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
    mov.b32 $0, {low, high};
    }"""
    return assembly(text, U32(F32, F32, F32, F32))


# A B + C, 16 x 8 x 32.
@intrinsic
def product_and_sum(typing_context, a, b0, b1, c):
    text = "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
    text += "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    return assembly(text, ptx.C_FRAGMENT(ptx.A_FRAGMENT, U32, U32, ptx.C_FRAGMENT))


# C += A B. C has four floats, from c[i] on; A has four registers.
@cuda.jit(device=True, forceinline=True)
def multiply_add(c, i, a, b0, b1):
    sums = product_and_sum((a[0], a[1], a[2], a[3]), b0, b1, (c[i], c[i + 1], c[i + 2], c[i + 3]))
    c[i], c[i + 1], c[i + 2], c[i + 3] = sums


# Elements `first` to `first` + 3 of an array of 16 bits as floats; zeros if they do not exist.
@cuda.jit(device=True, forceinline=True)
def load_four(array, first, exists):
    x = load_two_words(mma.element(array, first)) if exists else ZEROS
    low, high = unpacked(x[0]), unpacked(x[1])
    return low[0], low[1], high[0], high[1]
