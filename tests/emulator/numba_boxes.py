"""A Numba kernel that moves boxes of a tensor, which it knows by the addresses of tensor maps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, int32, uint8, uint32, uint64

from harness.model.plan import Launch, Plan
from harness.model.tensor_map import TensorMap
from harness.operations.attention.problem import Problem
from variants._hopper.numba_hopper import (
    arrive_and_expect,
    commit_stores,
    init_barrier,
    load_box,
    publish_barriers,
    store_packed_box,
    wait,
    wait_until_read,
)
from variants._mma.numba_mma import shared_address, thread_index

ROWS, COLUMNS = 16, 32  # of a box
PROBLEM = Problem(heads=1, q_len=40, kv_len=1, head_dim=COLUMNS, dtype="float16")


@cuda.jit(arch="sm_90a")
def moves_boxes(Q, O, bytes):
    tile = shared_address(cuda.shared.array(2048, uint8, alignment=128))
    barrier = shared_address(cuda.shared.array(1, uint64))
    if thread_index() == 0:
        init_barrier(barrier, 1)
        publish_barriers()
        arrive_and_expect(barrier, bytes)
        load_box(tile, Q, 0, int32(ROWS * cuda.blockIdx.x), 0, barrier)
        wait(barrier, uint32(0))
        store_packed_box(O, 0, int32(ROWS * cuda.blockIdx.x), 0, tile)
        commit_stores()
        wait_until_read()


def moved(*maps: Any, kernel: Any = moves_boxes) -> Plan:
    """Each of Q's boxes to its place in O."""
    blocks, box_bytes = -(-PROBLEM.q_len // ROWS), np.int32(2 * ROWS * COLUMNS)
    return Plan((Launch(kernel, (blocks,), (32,), (*maps, box_bytes)),))


def whole(name: str, ones: int = 1) -> TensorMap:
    """A map of Q or O, of rows and so many dimensions more, each of one."""
    row_bytes, rows = 2 * COLUMNS, PROBLEM.q_len
    strides = row_bytes, *(rows * row_bytes,) * ones
    return TensorMap(name, (COLUMNS, rows, *(1,) * ones), strides, (COLUMNS, ROWS, *(1,) * ones), PROBLEM.dtype)
