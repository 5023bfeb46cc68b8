"""Clusters for Numba: their barrier, and shared memory of their other blocks (Hopper)."""

from __future__ import annotations

from numba import cuda, float32, int32, uint32
from numba.cuda import types
from numba.cuda.extending import intrinsic

from variants._mma.numba_assembly import F32, I32, U32, assembly
from variants._mma.numba_mma import shared_address


# All threads of the cluster arrive, and each waits until all have (PTX ISA: barrier.cluster).
@intrinsic
def cluster_arrive(typing_context):
    return assembly("barrier.cluster.arrive;", types.void(), together=True)


@intrinsic
def cluster_wait(typing_context):
    return assembly("barrier.cluster.wait;", types.void(), together=True)


# A pair, to the address in another block's shared memory that `address` is in this block's (PTX ISA: mapa).
@intrinsic
def store_to_block(typing_context, address, block, first, second):
    ptx = """{
    .reg .u32 there;
    mapa.shared::cluster.u32 there, $0, $1;
    st.shared::cluster.v2.f32 [there], {$2, $3};
    }"""
    return assembly(ptx, types.void(U32, I32, F32, F32), ordered=True)


# Row `number` of `pairs`, of shape (pairs, 2), in block `block` of the cluster.
@cuda.jit(device=True, forceinline=True)
def store_pair(pairs, number, block, first, second):
    store_to_block(uint32(shared_address(pairs) + 8 * number), int32(block), float32(first), float32(second))
