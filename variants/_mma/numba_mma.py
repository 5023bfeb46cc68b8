"""What kernels on tensor cores have in common. The CUDA twin is mma.cuh: same names, same order, same layouts.

Addresses in shared memory are uint32, in global memory uint64. A fragment is a tuple of its registers.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda, float32, uint32
from numba.cuda import libdevice, types
from numba.cuda.extending import intrinsic

from variants._mma.numba_assembly import GLOBAL, SHARED, address, assembly

U32, U64, F32 = types.uint32, types.uint64, types.float32
FOUR_MATRICES = A_FRAGMENT = types.UniTuple(U32, 4)
C_FRAGMENT = types.UniTuple(F32, 4)
MINUS_INFINITY = np.float32(-np.inf)


@intrinsic
def shared_address(typing_context, array):
    return address(array, SHARED, U32)


@intrinsic
def global_address(typing_context, array):
    return address(array, GLOBAL, U64)


# --- Asynchronous copies (PTX ISA: cp.async, cp.async.commit_group, cp.async.wait_group) -----------------------------


# BYTES (4, 8 or 16, to which both addresses are aligned) go from global to shared memory; of them, the last
# BYTES - source_bytes are zeros. 16 bytes go past L1: nobody else on this multiprocessor reads them.
@functools.cache
def copy_async(BYTES: int) -> Any:
    cache = "cg" if BYTES == 16 else "ca"

    @intrinsic
    def copy(typing_context, to, source, source_bytes):
        ptx = f"cp.async.{cache}.shared.global [$0], [$1], {BYTES}, $2;"
        return assembly(ptx, types.void(U32, U64, U32), ordered=True)

    return copy


# The copies that this thread has issued since the last call become one group.
@intrinsic
def commit_copies(typing_context):
    return assembly("cp.async.commit_group;", types.void(), ordered=True)


# Until at most `pending` (a compile-time constant) of this thread's groups, the youngest, are under way.
@intrinsic
def wait_for_copies(typing_context, pending):
    if not isinstance(pending, types.Literal):
        return None  # Numba then asks again, with the literal
    return assembly(f"cp.async.wait_group {pending.literal_value};", types.void(pending), ordered=True)


# --- Fragments -------------------------------------------------------------------------------------------------------


# Four 8 x 8 matrices (PTX ISA: ldmatrix). Lane t gives the address of row t % 8 of matrix t / 8, and gets of each
# matrix row t / 4, columns 2 (t % 4) and the next; transposed: column t / 4, rows 2 (t % 4) and the next.
@intrinsic
def load_matrices(typing_context, at):
    return assembly(
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];", FOUR_MATRICES(U32), ordered=True
    )


@intrinsic
def load_matrices_transposed(typing_context, at):
    return assembly(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0, $1, $2, $3}, [$4];", FOUR_MATRICES(U32), ordered=True
    )


# 2^x, to 2 ulp; 0 for -inf (PTX ISA: ex2.approx.ftz.f32).
@intrinsic
def exp2_approx(typing_context, x):
    return assembly("ex2.approx.ftz.f32 $0, $1;", F32(F32))


# Over the four lanes that share a row of C.
@cuda.jit(device=True, forceinline=True)
def quad_max(x):
    x = max(x, cuda.shfl_xor_sync(0xFFFFFFFF, x, 1))
    return max(x, cuda.shfl_xor_sync(0xFFFFFFFF, x, 2))


@cuda.jit(device=True, forceinline=True)
def quad_sum(x):
    x += cuda.shfl_xor_sync(0xFFFFFFFF, x, 1)
    return x + cuda.shfl_xor_sync(0xFFFFFFFF, x, 2)


@functools.cache
def numba_mma(dtype: str) -> SimpleNamespace:
    """What depends on the 16-bit type: float16 or bfloat16."""
    KIND = {"float16": "f16", "bfloat16": "bf16"}[dtype]

    # A B + C, 16 x 8 x 16 (PTX ISA: mma.sync.m16n8k16), summed in float32.
    @intrinsic
    def multiply_add(typing_context, a, b0, b1, c):
        ptx = f"mma.sync.aligned.m16n8k16.row.col.f32.{KIND}.{KIND}.f32 "
        ptx += "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
        return assembly(ptx, C_FRAGMENT(A_FRAGMENT, U32, U32, C_FRAGMENT))

    # Two floats, rounded to 16 bits, in one register: `low` in the lower half, which is the element at the lower
    # address.
    @intrinsic
    def packed(typing_context, low, high):
        return assembly(f"cvt.rn.{KIND}x2.f32 $0, $2, $1;", U32(F32, F32))

    return SimpleNamespace(multiply_add=multiply_add, packed=packed)
