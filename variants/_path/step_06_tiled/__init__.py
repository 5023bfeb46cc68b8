"""Step 6: tiles in shared memory: FlashAttention-1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from harness import Buffer, Figure, Launch, Lesson, Plan, Prediction, Problem, Traffic
from variants._path import HEAD_DIM, cuda_kernels, one_head, small
from variants._path.plans import BLOCKS, BYTES, BYTES_OF_K, BYTES_OF_O, NUMERICS, ROW
from variants._path.step_06_tiled.task import TASK

BC, BR = 32, 8
"""Keys of a tile; rows at a time."""
SECTOR = 32
"""Bytes that the memory moves at least."""


def numba_kernels() -> tuple[Any, ...]:
    from variants._path.step_06_tiled.kernel_numba import KERNELS

    return KERNELS


def plan(p: Problem, kernels: tuple[Any, ...]) -> Plan:
    (attention,) = kernels
    rows = (p.q_len,)
    args = ("Q", "K", "V", "O", "m", "l", np.int32(p.q_len), np.int32(p.kv_len), np.float32(p.tau))
    buffers = Buffer("m", rows, "float32"), Buffer("l", rows, "float32")
    return Plan((Launch(attention, (1,), (32, BR), args),), buffers)


def claim(p: Problem) -> Traffic:
    """K and V once, but a sector for every element; Q, O, m and l once per tile; O, m and l once more at the start."""
    tiles = -(-p.kv_len // BC)
    KV = 2 * p.kv_len * HEAD_DIM * SECTOR
    return Traffic(
        read_bytes=KV + tiles * p.q_len * (2 * ROW + 2 * SECTOR),
        write_bytes=(1 + tiles) * p.q_len * (ROW + 2 * SECTOR),
    )


LESSON = Lesson(
    number="6",
    follows="5",
    name="tiled",
    title="Tiles in shared memory: FlashAttention-1",
    idea="tiles of 32 keys are loaded into shared memory, where all rows use them",
    folder=Path(__file__).parent,
    problem=small(256),
    cuda=cuda_kernels("attention"),
    numba=numba_kernels,
    plan=plan,
    claim=claim,
    supports=one_head,
    prediction=Prediction(
        question="There are 8 tiles of 32 keys. O has 32,768 bytes. It is kept in memory while the block works "
        "on other rows. How many bytes of O are read and written in all?",
        figure=BYTES_OF_O,
        because="O is written once as zeros, and then read and written for each of the 8 tiles: 17 times 32,768 bytes. "
        "Step 7 swaps the loops, so that O stays in registers.",
        tolerance=0.0,
        slips=(
            (16 * 32_768, "Nearly: it is also set to zero at the start."),
            (8 * 32_768, "Each tile both reads and writes O."),
            (
                32_768,
                "That would do if each row used all tiles before the next row did. Here, all rows use each tile.",
            ),
            (9 * 32_768, "Count the reads as well as the writes."),
        ),
    ),
    task=TASK,
    figures=(
        BYTES,
        Figure(name="bytes of K that lanes ask for", kind="requested_bytes", unit="bytes", buffer="K"),
        BYTES_OF_K,
        Figure(name="sectors per request of K", kind="sectors_per_request", unit="sectors", buffer="K"),
        BLOCKS,
        Figure(name="wavefronts of shared memory", kind="wavefronts"),
        Figure(name="of these, bank conflicts", kind="conflicts"),
    ),
    numerics=NUMERICS,
)
