"""What kernels on tensor cores have in common. The CUDA twin is mma.cuh: same names, same order, same layouts.

Addresses in shared memory are uint32, in global memory uint64. A fragment is a tuple of its registers.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda, int32, uint32, uint64
from numba.cuda import libdevice, types
from numba.cuda.extending import intrinsic

from variants._mma.numba_assembly import F32, GLOBAL, I32, SHARED, U16, U32, U64, address, assembly

FOUR_MATRICES = A_FRAGMENT = types.UniTuple(U32, 4)
C_FRAGMENT = types.UniTuple(F32, 4)
MINUS_INFINITY = np.float32(-np.inf)
LN_2 = np.float32(0.693147180559945)
LOG2_E = np.float32(1.4426950408889634)
ALL_LANES = 0xFFFFFFFF


@intrinsic
def shared_address(typing_context, array):
    return address(array, SHARED, U32)


@intrinsic
def global_address(typing_context, array):
    return address(array, GLOBAL, U64)


# threadIdx.x, read anew wherever it is asked for: else what is computed from it occupies a register from one place to
# the next, where there is none to spare.
@intrinsic
def thread_index(typing_context):
    return assembly("mov.u32 $0, %tid.x;", I32(), ordered=True)


# blockIdx.x, likewise.
@intrinsic
def block_index(typing_context):
    return assembly("mov.u32 $0, %ctaid.x;", I32(), ordered=True)


@cuda.jit(device=True, forceinline=True)
def lane_index():
    return uint32(thread_index() & 31)


# `number`, of which the compiler knows nothing from here on: a loop that ends there stays a loop, and what is worked
# out from it is not worked out earlier.
@intrinsic
def unknown(typing_context, number):
    kind = U32 if number == U32 else I32
    return assembly("mov.b32 $0, $1;", kind(kind), ordered=True)


# At the beginning of a loop's body: ptxas, to which `unknown` numbers are none, does not unroll it either (PTX ISA:
# .pragma "nounroll").
@intrinsic
def keep_loop(typing_context):
    return assembly(r".pragma \22nounroll\22;", types.void(), ordered=True)  # quotes, as LLVM spells them


# The grid is (blocks of a head, heads, batch). Heads are counted through the batch.
@cuda.jit(device=True, forceinline=True)
def head_index():
    return uint64(cuda.blockIdx.z) * uint64(cuda.gridDim.y) + uint64(cuda.blockIdx.y)


# --- Masks: a query row sees a run of keys ---------------------------------------------------------------------------


# Row i lies on key i + kv_len - q_len, and sees the keys from `before` ahead of that one to `after` behind it. No row
# is on a key beyond the last, so the first that it sees is none either. A row that lies too far ahead of all keys has
# end_seen = 0.
@cuda.jit(device=True, forceinline=True)
def first_seen(row, q_len, kv_len, before):
    return int32(max(int32(row + kv_len - q_len - before), int32(0)))


@cuda.jit(device=True, forceinline=True)
def end_seen(row, q_len, kv_len, after):
    return int32(min(max(int32(row + kv_len - q_len + after + 1), int32(0)), kv_len))


# --- One unit of 2, 4, 8 or 16 bytes, aligned to as many (PTX ISA: ld, st) -------------------------------------------


def unit(BYTES: int, first: int) -> tuple[str, str, Any]:
    """The suffix of ld or st, the registers from $`first` on, and their type."""
    words = BYTES // 4
    if words < 2:
        return f"b{8 * BYTES}", f"${first}", U32 if words else U16
    registers = ", ".join(f"${first + word}" for word in range(words))
    return f"v{words}.b32", f"{{{registers}}}", types.UniTuple(U32, words)


def load(space: str, address_type: Any, BYTES: int) -> Any:
    kind, registers, what = unit(BYTES, 0)
    ptx = f"ld.{space}.{kind} {registers}, [${max(BYTES // 4, 1)}];"

    @intrinsic
    def load_unit(typing_context, at):
        return assembly(ptx, what(address_type), ordered=True)

    return load_unit


def store(space: str, address_type: Any, BYTES: int) -> Any:
    kind, registers, what_type = unit(BYTES, 1)
    ptx = f"st.{space}.{kind} [$0], {registers};"

    @intrinsic
    def store_unit(typing_context, at, what):
        return assembly(ptx, types.void(address_type, what_type), ordered=True)

    return store_unit


@functools.cache
def load_shared(BYTES: int) -> Any:
    return load("shared", U32, BYTES)


@functools.cache
def store_shared(BYTES: int) -> Any:
    return store("shared", U32, BYTES)


@functools.cache
def load_global(BYTES: int) -> Any:
    return load("global", U64, BYTES)


@functools.cache
def store_global(BYTES: int) -> Any:
    return store("global", U64, BYTES)


# --- Asynchronous copies (PTX ISA: cp.async, cp.async.commit_group, cp.async.wait_group) -----------------------------


# BYTES (4, 8 or 16, to which both addresses are aligned) go from global to shared memory; zeros where not `valid`.
# 16 bytes go past L1: nobody else on this multiprocessor reads them.
@functools.cache
def copy_async(BYTES: int) -> Any:
    cache = "cg" if BYTES == 16 else "ca"

    @intrinsic
    def copy(typing_context, to, source, source_bytes):
        ptx = f"cp.async.{cache}.shared.global [$0], [$1], {BYTES}, $2;"
        return assembly(ptx, types.void(U32, U64, U32), ordered=True)

    @cuda.jit(device=True, forceinline=True)
    def copy_where(to, source, valid):
        copy(to, source, uint32(BYTES) if valid else uint32(0))

    return copy_where


# The copies that this thread has issued since the last call become one group.
@intrinsic
def commit_copies(typing_context):
    return assembly("cp.async.commit_group;", types.void(), ordered=True)


# Until at most PENDING of this thread's groups, the youngest, are under way. Others' copies need a barrier besides.
@functools.cache
def wait_for_copies(PENDING: int) -> Any:
    @intrinsic
    def wait(typing_context):
        return assembly(f"cp.async.wait_group {PENDING};", types.void(), ordered=True)

    return wait


# --- Shared memory without bank conflicts ----------------------------------------------------------------------------

# A row is a whole number of 128-byte lines of eight 16-byte chunks; ldmatrix reads one chunk of eight adjacent rows at
# once. Chunk c of row r lies where chunk c ^ (r % 8) would, so that these eight lie in different banks.
CHUNK_BYTES = 16


@cuda.jit(device=True, forceinline=True)
def swizzled(ROW_BYTES, row, chunk):
    row, chunk = uint32(row), uint32(chunk)
    return uint32(row * uint32(ROW_BYTES) + (chunk ^ (row & uint32(7))) * uint32(CHUNK_BYTES))


# From a swizzled address in chunk 0 or 1 of a row to the one an even number of chunks further: mostly a constant.
@cuda.jit(device=True, forceinline=True)
def chunks_further(address, chunks):
    return uint32((address ^ uint32((chunks & 7) * CHUNK_BYTES)) + (chunks >> 3) * 8 * CHUNK_BYTES)


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


# Both halves of a register.
@intrinsic
def halves(typing_context, both):
    return assembly("mov.b32 {$0, $1}, $2;", types.UniTuple(U16, 2)(U32))


# 2^x, to 2 ulp; 0 for -inf (PTX ISA: ex2.approx.ftz.f32).
@intrinsic
def exp2_approx(typing_context, x):
    return assembly("ex2.approx.ftz.f32 $0, $1;", F32(F32))


# tanh(x), to a relative error of 2^-11 (PTX ISA: tanh.approx.f32).
@intrinsic
def tanh_approx(typing_context, x):
    return assembly("tanh.approx.f32 $0, $1;", F32(F32))


# Over the four lanes that share a row of C.
@cuda.jit(device=True, forceinline=True)
def quad_max(x):
    x = max(x, cuda.shfl_xor_sync(ALL_LANES, x, 1))
    return max(x, cuda.shfl_xor_sync(ALL_LANES, x, 2))


@cuda.jit(device=True, forceinline=True)
def quad_sum(x):
    x += cuda.shfl_xor_sync(ALL_LANES, x, 1)
    return x + cuda.shfl_xor_sync(ALL_LANES, x, 2)


@functools.cache
def numba_mma(dtype: str) -> SimpleNamespace:
    """What depends on how elements are stored: as float16 or bfloat16."""
    KIND = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    EXPONENT = {"float16": 0x7C00, "bfloat16": 0x7F80}[dtype]  # infinity and NaN have one of ones alone

    # A B + C, 16 x 8 x 16 (PTX ISA: mma.sync.m16n8k16), summed in float32.
    @intrinsic
    def product_and_sum(typing_context, a, b0, b1, c):
        ptx = f"mma.sync.aligned.m16n8k16.row.col.f32.{KIND}.{KIND}.f32 "
        ptx += "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
        return assembly(ptx, C_FRAGMENT(A_FRAGMENT, U32, U32, C_FRAGMENT))

    # C[i, j] += A B. C and A are in local arrays, which stay in registers where their indices become constants.
    @cuda.jit(device=True, forceinline=True)
    def multiply_add(C, i, j, A, b0, b1):
        a = A[0], A[1], A[2], A[3]
        c = C[i, j, 0], C[i, j, 1], C[i, j, 2], C[i, j, 3]
        C[i, j, 0], C[i, j, 1], C[i, j, 2], C[i, j, 3] = product_and_sum(a, b0, b1, c)

    # Two floats, rounded to 16 bits, in one register: `low` in the lower half, which is the element at the lower
    # address.
    @intrinsic
    def packed(typing_context, low, high):
        return assembly(f"cvt.rn.{KIND}x2.f32 $0, $2, $1;", U32(F32, F32))

    if dtype == "float16":

        @intrinsic
        def widened(typing_context, half):
            return assembly("cvt.f32.f16 $0, $1;", F32(U16))

    else:

        @cuda.jit(device=True, forceinline=True)
        def widened(half):
            return libdevice.int_as_float(int32(uint32(half) << 16))

    # Both halves of such a register.
    @cuda.jit(device=True, forceinline=True)
    def unpacked(both):
        low, high = halves(both)
        return widened(low), widened(high)

    # Whether either half is infinity or NaN.
    @cuda.jit(device=True, forceinline=True)
    def not_finite(both):
        return (both & EXPONENT) == EXPONENT or ((both >> 16) & EXPONENT) == EXPONENT

    # Bit 15 where the low half is infinity or NaN, bit 31 where the high half is; the other bits mean nothing. An
    # exponent of all ones carries over.
    @cuda.jit(device=True, forceinline=True)
    def carry(both):
        return uint32(uint32(both & uint32(EXPONENT * 0x10001)) + uint32((EXPONENT & -EXPONENT) * 0x10001))

    # Both halves, each 0 if it is infinity or NaN.
    @cuda.jit(device=True, forceinline=True)
    def finite_or_zero(both):
        low = 0 if (both & EXPONENT) == EXPONENT else both & 0xFFFF
        high = 0 if ((both >> 16) & EXPONENT) == EXPONENT else both & 0xFFFF0000
        return uint32(high | low)

    return SimpleNamespace(
        multiply_add=multiply_add,
        packed=packed,
        unpacked=unpacked,
        not_finite=not_finite,
        carry=carry,
        finite_or_zero=finite_or_zero,
    )
