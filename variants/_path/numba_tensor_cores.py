"""The Numba twin of tensor_cores.cuh: the instructions are inline assembly, since Numba has no functions for them.

Matrices are spread over the registers of a warp as described there. Addresses in shared memory are uint32.
"""

from __future__ import annotations

import numpy as np
from numba import cuda, uint32, uint64
from numba.cuda.extending import intrinsic

from variants._mma import numba_mma as ptx
from variants._mma.numba_assembly import U32, assembly

INFINITY = np.float32(np.inf)
ZEROS = (uint32(0), uint32(0), uint32(0), uint32(0))

shared_address, load_matrices, load_transposed = ptx.shared_address, ptx.load_matrices, ptx.load_matrices_transposed
pack, quad_max, quad_sum = ptx.numba_mma("float16").packed, ptx.quad_max, ptx.quad_sum
commit_copies, wait_for_all_but_last = ptx.commit_copies, ptx.wait_for_copies(1)
load_chunk, store_chunk, copy_chunk, store_word = (
    ptx.load_global(16),
    ptx.store_shared(16),
    ptx.copy_async(16),
    ptx.store_global(4),
)


# A B + C, 16 x 8 x 16.
@intrinsic
def product_and_sum(typing_context, a, b0, b1, c):
    text = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
    text += "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    return assembly(text, ptx.C_FRAGMENT(ptx.A_FRAGMENT, U32, U32, ptx.C_FRAGMENT))


# C += A B. C has four floats, from c[i] on; A has four registers.
@cuda.jit(device=True, forceinline=True)
def multiply_add(c, i, a, b0, b1):
    sums = product_and_sum(a, b0, b1, (c[i], c[i + 1], c[i + 2], c[i + 3]))
    c[i], c[i + 1], c[i + 2], c[i + 3] = sums


# Eight floats from x[i] on, rounded to 16 bits, in four registers.
@cuda.jit(device=True, forceinline=True)
def pack_eight(x, i):
    return pack(x[i], x[i + 1]), pack(x[i + 2], x[i + 3]), pack(x[i + 4], x[i + 5]), pack(x[i + 6], x[i + 7])


# Elements `first` to `first` + 7 of an array to shared memory; zeros if they do not exist.
@cuda.jit(device=True, forceinline=True)
def copy_eight(to, array, first, exists):
    store_chunk(to, load_chunk(element(array, first)) if exists else ZEROS)


# The same with cp.async.
@cuda.jit(device=True, forceinline=True)
def begin_to_copy_eight(to, array, first, exists):
    copy_chunk(to, element(array, first), exists)


# Two floats, rounded to 16 bits, to elements `first` and `first` + 1 of an array.
@cuda.jit(device=True, forceinline=True)
def store_pair(array, first, low, high):
    store_word(element(array, first), pack(low, high))


# Address of an element of 16 bits.
@cuda.jit(device=True, forceinline=True)
def element(array, index):
    return ptx.global_address(array) + uint64(index) * uint64(2)


# Set the first elements of a local array to a value.
@cuda.jit(device=True, forceinline=True)
def fill(x, count, value):
    for i in range(count):
        x[i] = value
