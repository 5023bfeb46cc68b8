"""In which order blocks that own keys add their parts of dQ to memory. The CUDA twin is order.cuh: same names.

A kernel's parameter `order` is a tuple: of the array of turns (`OrderOfKeys`), or empty (`AnyOrder`).
"""

from __future__ import annotations

from numba import cuda, uint32, uint64
from numba.cuda import types
from numba.cuda.extending import intrinsic

from variants._mma.numba_assembly import I32, U64, assembly
from variants._mma.numba_mma import global_address
from variants._mma_backward.order import TURN_ROWS

INT32_BYTES = 4


# Where the number of the tile of keys is whose turn it is. A block waits for the one with the tile before, which has
# started: blocks start in the order of their indices.
@cuda.jit(device=True, forceinline=True)
def turn_of(order, head, row, q_len):
    tiles = uint64(uint32(q_len + TURN_ROWS - 1) // uint32(TURN_ROWS))
    tile = uint64(head) * tiles + uint64(uint32(row) // uint32(TURN_ROWS))
    return global_address(order[0]) + tile * uint64(INT32_BYTES)


# By one thread, before blocks wait.
@intrinsic
def begin_turns(typing_context, turn):
    return assembly("st.global.s32 [$0], 0;", types.void(U64), ordered=True)


# What other blocks added before their turns ended is in memory for the asynchronous copies that follow.
@intrinsic
def wait_for_turn(typing_context, turn, number):
    ptx = """{
    .reg .pred waits;
    .reg .s32 now;
    again:
    ld.acquire.gpu.global.s32 now, [$0];
    setp.ne.s32 waits, now, $1;
    @waits bra again;
    fence.proxy.async.global;
    }"""
    return assembly(ptx, types.void(U64, I32), together=True)


# It is the turn of the tile with this number, once what this thread added by asynchronous copies is in memory.
@intrinsic
def pass_turn(typing_context, turn, number):
    ptx = "cp.async.bulk.wait_group 0; st.release.gpu.global.s32 [$0], $1;"
    return assembly(ptx, types.void(U64, I32), together=True)
