"""Hopper's own instructions for Numba: barriers that count arrivals and bytes (mbarrier), copies of boxes (TMA), and
descriptors of tiles in shared memory for products of four warps (wgmma). sm_90a alone. The CUDA twin is hopper.cuh:
same names, same order. Products are in numba_products.py.

Addresses in shared memory are uint32. A tensor map is the uint64 that a kernel is given for a `TensorMap`: its address.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from numba import cuda, int32, uint32, uint64
from numba.cuda import types
from numba.cuda.extending import intrinsic

from variants._hopper import ELEMENT_BYTES, box_columns
from variants._mma.numba_assembly import I32, U32, U64, assembly, assembly_in_place
from variants._mma.numba_mma import ALL_LANES, CHUNK_BYTES

WARPGROUP = 128  # threads


# Registers that each thread of the warpgroup has from here on.
@functools.cache
def set_registers(change: str, REGISTERS: int) -> Any:
    @intrinsic
    def set_max_registers(typing_context):
        return assembly(f"setmaxnreg.{change}.sync.aligned.u32 {REGISTERS};", types.void(), together=True)

    return set_max_registers


# x, which all lanes of a warp have: the compiler may keep what follows from it in uniform registers, where products
# have their descriptors.
@cuda.jit(device=True, forceinline=True)
def uniform(x):
    return uint32(cuda.shfl_sync(ALL_LANES, int32(x), 0))


# --- Barriers (PTX ISA: mbarrier) ------------------------------------------------------------------------------------


@intrinsic
def init_barrier(typing_context, barrier, arrivals):
    return assembly("mbarrier.init.shared::cta.b64 [$0], $1;", types.void(U32, I32), together=True)


# Of one thread, once it has initialised all: other threads, and copies, may use them behind the next syncthreads().
@intrinsic
def publish_barriers(typing_context):
    ptx = "fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;"
    return assembly(ptx, types.void(), together=True)


@intrinsic
def arrive(typing_context, barrier):
    return assembly("mbarrier.arrive.shared::cta.b64 _, [$0];", types.void(U32), together=True)


# Arrive, and let the phase last until so many bytes have been copied, too.
@intrinsic
def arrive_and_expect(typing_context, barrier, bytes):
    return assembly("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", types.void(U32, I32), together=True)


# Until the phase of this parity is over: phases have parity 0, 1, 0, ..., and the one before the first has 1.
@intrinsic
def wait(typing_context, barrier, parity):
    ptx = """{
    .reg .pred over;
    again:
    mbarrier.try_wait.parity.shared::cta.b64 over, [$0], $1;
    @over bra done;
    bra again;
    done:
    }"""
    return assembly(ptx, types.void(U32, U32), together=True)


# --- Named barriers (PTX ISA: bar) -----------------------------------------------------------------------------------


@intrinsic
def sync_threads(typing_context, barrier, threads):
    return assembly("bar.sync $0, $1;", types.void(I32, I32), together=True)


# Counts this thread in, and does not wait.
@intrinsic
def arrive_threads(typing_context, barrier, threads):
    return assembly("bar.arrive $0, $1;", types.void(I32, I32), together=True)


# Whether it is true, not 0, of any of these threads.
@intrinsic
def any_of_threads(typing_context, barrier, threads, is_true):
    ptx = """{
    .reg .pred mine, some;
    setp.ne.b32 mine, $3, 0;
    bar.red.or.pred some, $1, $2, mine;
    selp.b32 $0, 1, 0, some;
    }"""
    return assembly(ptx, I32(I32, I32, I32), together=True)


# --- Copies of boxes (PTX ISA: cp.async.bulk.tensor) -----------------------------------------------------------------


HEAD_OF_SEQUENCE = types.UniTuple(I32, 2)
"""(head, sequence), of a map that has an axis for sequences besides that for heads."""


@intrinsic
def load_box(typing_context, tile, tensor_map, column, row, head, barrier):
    if head == HEAD_OF_SEQUENCE:
        place = "[$1, {$2, $3, $4, $5}], [$6]"
        ptx = f"cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], {place};"
        return assembly(ptx, types.void(U32, U64, I32, I32, head, U32), together=True)
    ptx = "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3, $4}], [$5];"
    return assembly(ptx, types.void(U32, U64, I32, I32, I32, U32), together=True)


@intrinsic
def store_box(typing_context, tensor_map, column, row, head, tile):
    ptx = "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [$0, {$1, $2, $3}], [$4];"
    return assembly(ptx, types.void(U64, I32, I32, I32, U32), together=True)


# Of a map of packs, from `row` of each of a pack's heads on.
@intrinsic
def load_packed_box(typing_context, rows, tensor_map, column, row, pack, barrier):
    if pack == HEAD_OF_SEQUENCE:
        place = "[$1, {$2, $3, 0, $4, $5}], [$6]"
        ptx = f"cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], {place};"
        return assembly(ptx, types.void(U32, U64, I32, I32, pack, U32), together=True)
    ptx = (
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {$2, $3, 0, $4}], [$5];"
    )
    return assembly(ptx, types.void(U32, U64, I32, I32, I32, U32), together=True)


@intrinsic
def store_packed_box(typing_context, tensor_map, column, row, pack, rows):
    if pack == HEAD_OF_SEQUENCE:
        ptx = "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [$0, {$1, $2, 0, $3, $4}], [$5];"
        return assembly(ptx, types.void(U64, I32, I32, pack, U32), together=True)
    ptx = "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [$0, {$1, $2, 0, $3}], [$4];"
    return assembly(ptx, types.void(U64, I32, I32, I32, U32), together=True)


# A run of bytes, a multiple of 16 (PTX ISA: cp.async.bulk): memory -> shared memory.
@intrinsic
def load_run(typing_context, to, source, bytes, barrier):
    ptx = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
    return assembly(ptx, types.void(U32, U64, I32, U32), together=True)


# Floats are added to those in memory (PTX ISA: cp.reduce.async.bulk).
@intrinsic
def add_run(typing_context, to, source, bytes):
    ptx = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [$0], [$1], $2; cp.async.bulk.commit_group;"
    return assembly(ptx, types.void(U64, U32, I32), together=True)


@intrinsic
def commit_stores(typing_context):
    return assembly("cp.async.bulk.commit_group;", types.void(), together=True)


# Until what this thread stored has been read from shared memory.
@intrinsic
def wait_until_read(typing_context):
    return assembly("cp.async.bulk.wait_group.read 0;", types.void(), together=True)


# What this thread wrote to shared memory is there for copies and products that a barrier orders behind it.
@intrinsic
def publish_to_async(typing_context):
    return assembly("fence.proxy.async.shared::cta;", types.void(), together=True)


# Four 8 x 8 matrices (PTX ISA: stmatrix), in the layout of load_matrices.
@intrinsic
def store_matrices(typing_context, at, matrices):
    ptx = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};"
    return assembly(ptx, types.void(U32, types.UniTuple(U32, 4)), together=True)


# --- Products (PTX ISA: wgmma) ---------------------------------------------------------------------------------------


# Registers written so far are there for the products that follow.
@intrinsic
def begin_products(typing_context):
    return assembly("wgmma.fence.sync.aligned;", types.void(), together=True)


@intrinsic
def commit_products(typing_context):
    return assembly("wgmma.commit_group.sync.aligned;", types.void(), together=True)


# COUNT registers that are written up to here, and read from here on.
@functools.cache
def registers_written(COUNT: int) -> Any:
    @intrinsic
    def written(typing_context, registers):
        return assembly_in_place("", COUNT, types.void(registers), apart=True)

    return written


# Until at most PENDING groups, the youngest, are under way; `sums` are COUNT registers of a group that is not.
@functools.cache
def wait_for_products(PENDING: int, COUNT: int) -> Any:
    @intrinsic
    def wait_for_groups(typing_context):
        return assembly(f"wgmma.wait_group.sync.aligned {PENDING};", types.void(), together=True)

    read_from_here = registers_written(COUNT)  # the compiler must not read them any earlier

    @cuda.jit(device=True, forceinline=True)
    def wait_for_sums(sums):
        wait_for_groups()
        read_from_here(sums)

    return wait_for_sums


@functools.cache
def numba_hopper(D: int) -> SimpleNamespace:
    """Tiles with rows of `D` elements, padded.

    A tile of R rows is BOXES boxes, one behind the other, of R rows of COLUMNS elements each. Within 8 rows of a box
    pieces of 16 bytes are exchanged, as the copies leave them and the products expect them.
    """
    COLUMNS = box_columns(D)
    ROW_BYTES = COLUMNS * ELEMENT_BYTES  # of a box; also its swizzle
    BOXES = D // COLUMNS
    SWIZZLE = (1 if COLUMNS == 64 else 2) << 62
    EIGHT_ROWS = (8 * ROW_BYTES // 16) << 32  # from 8 rows to the next 8

    # `rows` rows of a head, from `row` on -> a tile. What lies outside of the tensor arrives as zeros, and counts as
    # bytes. The map is `rows_map` of _hopper/__init__.py; `head` is a head's number among those of all sequences or,
    # with a layout, (head, sequence).
    @cuda.jit(device=True, forceinline=True)
    def load_tile(tile, rows, tensor_map, row, head, barrier):
        for box in range(BOXES):
            load_box(uint32(tile + box * rows * ROW_BYTES), tensor_map, box * COLUMNS, row, head, barrier)

    # The first rows of a tile of `rows` rows -> as many rows of a head as a box of the map has; what lies outside is
    # left out.
    @cuda.jit(device=True, forceinline=True)
    def store_tile(tile, rows, tensor_map, row, head):
        for box in range(BOXES):
            store_box(tensor_map, box * COLUMNS, row, head, uint32(tile + box * rows * ROW_BYTES))
        commit_stores()

    # A warpgroup's 64 rows of a tile of `extent` rows come from the heads of a pack, from `row` of each on. The map is
    # `packed_map`.
    @cuda.jit(device=True, forceinline=True)
    def load_rows(rows, extent, tensor_map, row, pack, barrier):
        for box in range(BOXES):
            load_packed_box(uint32(rows + box * extent * ROW_BYTES), tensor_map, box * COLUMNS, row, pack, barrier)

    # And go back there; what lies outside of the tensor is left out.
    @cuda.jit(device=True, forceinline=True)
    def store_rows(rows, extent, tensor_map, row, pack):
        for box in range(BOXES):
            store_packed_box(tensor_map, box * COLUMNS, row, pack, uint32(rows + box * extent * ROW_BYTES))
        commit_stores()

    # Where in a box piece `piece` of 16 bytes of a row lies.
    @cuda.jit(device=True, forceinline=True)
    def piece_of_row(row, piece):
        row, piece = uint32(row), uint32(piece)
        exchanged = row & uint32(7) if COLUMNS == 64 else (row >> uint32(1)) & uint32(3)
        return uint32(row * uint32(ROW_BYTES) + (piece ^ exchanged) * uint32(CHUNK_BYTES))

    # A descriptor counts in 16 bytes. Of a tile whose rows are summed over: A, and B as columns of rows.
    @cuda.jit(device=True, forceinline=True)
    def along_rows(address):
        return uint64((address & uint32(0x3FFFF)) >> uint32(4)) | uint64(EIGHT_ROWS) | uint64(SWIZZLE)

    # Of a tile of `rows` rows that is summed over its rows.
    @cuda.jit(device=True, forceinline=True)
    def across_rows(address, rows):
        return along_rows(address) | uint64(rows * ROW_BYTES // 16 << 16)

    # From a descriptor `along_rows` of a tile of `rows` rows to the next 16 elements of each row, `step` times.
    @cuda.jit(device=True, forceinline=True)
    def steps_along(rows, step):
        steps = COLUMNS // 16
        return uint64(step // steps * (rows * ROW_BYTES // 16) + step % steps * 2)

    # From a descriptor `across_rows` to the next 16 rows, `step` times.
    @cuda.jit(device=True, forceinline=True)
    def steps_across(step):
        return uint64(step * ROW_BYTES)

    return SimpleNamespace(
        COLUMNS=COLUMNS,
        ROW_BYTES=ROW_BYTES,
        BOXES=BOXES,
        load_tile=load_tile,
        store_tile=store_tile,
        load_rows=load_rows,
        store_rows=store_rows,
        piece_of_row=piece_of_row,
        along_rows=along_rows,
        across_rows=across_rows,
        steps_along=steps_along,
        steps_across=steps_across,
    )
