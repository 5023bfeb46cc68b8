"""The Numba twin of hopper.cuh: the instructions are inline assembly, since Numba has no functions for them.

Addresses in shared memory, also of barriers, are uint32; descriptions of tiles for the products are uint64.
"""

from __future__ import annotations

from numba import cuda, uint32
from numba.cuda import types
from numba.cuda.extending import intrinsic

from variants._hopper import numba_hopper as hopper
from variants._hopper.numba_products import numba_products
from variants._mma.numba_assembly import I32, U32, U64, assembly
from variants._path import numba_tensor_cores as mma

D, BC = 32, 32
INFINITY, shared_address, fill = mma.INFINITY, mma.shared_address, mma.fill
pack_eight, quad_max, quad_sum, store_pair = mma.pack_eight, mma.quad_max, mma.quad_sum, mma.store_pair
init_barrier, publish_barriers = hopper.init_barrier, hopper.publish_barriers
arrive, arrive_and_expect, wait = hopper.arrive, hopper.arrive_and_expect, hopper.wait
begin_products, commit_products = hopper.begin_products, hopper.commit_products
along_rows, across_rows = hopper.numba_hopper(D).along_rows, hopper.numba_hopper(D).across_rows
steps_along, steps_across = hopper.numba_hopper(D).steps_along, hopper.numba_hopper(D).steps_across
add_Q_Kt = numba_products(BC, D, "float16").multiply_add_along
add_P_V = numba_products(BC, D, "float16").multiply_add
wait_for_all = hopper.wait_for_products(0, 16)


# One thread begins to copy a tile, from row `row` of the array on.
@intrinsic
def copy_tile(typing_context, tile, tensor_map, row, barrier):
    text = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {0, $2}], [$3];"
    return assembly(text, types.void(U32, U64, I32, U32), together=True)


# Barrier `number` of several that follow each other, or tile `number` of `size` bytes.
@cuda.jit(device=True, forceinline=True)
def nth(first, number, size=8):
    return uint32(first + uint32(number) * uint32(size))


# Until all products have been added to `sums`.
@cuda.jit(device=True, forceinline=True)
def wait_for_products(sums):
    commit_products()
    wait_for_all(sums)
