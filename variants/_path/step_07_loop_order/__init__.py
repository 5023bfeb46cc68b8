"""Step 7: FlashAttention-2, rows in the outer loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from harness import Figure, Launch, Lesson, Numerics, Plan, Prediction, Problem, Traffic
from variants._path import F32, HEAD_DIM, cuda_kernels, one_head, small
from variants._path.step_07_loop_order.task import TASK

BR = 32
SECTOR_BYTES = 32
NUMERICS = Numerics(scores="float32", weights="float32", sums="nearest", one_score=True, divides_last=True)


def numba_kernels() -> tuple[Any, ...]:
    from variants._path.step_07_loop_order.kernel_numba import KERNELS

    return KERNELS


def plan(p: Problem, kernels: tuple[Any, ...]) -> Plan:
    (attention,) = kernels
    blocks = -(-p.q_len // BR)
    sizes = np.int32(p.q_len), np.int32(p.kv_len), np.float32(p.tau)
    return Plan((Launch(attention, (blocks,), (32, BR), ("Q", "K", "V", "O", *sizes)),))


def claim(p: Problem) -> Traffic:
    """Each block reads all of K and V, a sector per element; Q is read and O is written once."""
    row, blocks = HEAD_DIM * F32, -(-p.q_len // BR)
    KV = 2 * p.kv_len * HEAD_DIM * SECTOR_BYTES
    return Traffic(read_bytes=p.q_len * row + blocks * KV, write_bytes=p.q_len * row)


LESSON = Lesson(
    number="7",
    name="loop-order",
    title="Rows in the outer loop: FlashAttention-2",
    idea="a block owns its rows for all keys, so O, m and l stay in registers",
    folder=Path(__file__).parent,
    problem=small(256),
    cuda=cuda_kernels("attention"),
    numba=numba_kernels,
    plan=plan,
    claim=claim,
    supports=one_head,
    prediction=Prediction(
        question="O has 256 rows of 32 floats. Step 6 reads and writes all of it for each of the 8 tiles of keys. How "
        "many bytes of O does step 7 move?",
        figure=Figure(name="bytes of O", kind="bytes", unit="bytes", buffer="O"),
        because="Each row of O stays in the registers of one warp until all keys are done. It is written once and "
        "never read: 256 x 32 x 4 = 32,768 bytes.",
        tolerance=0.0,
        slips=(
            (2 * 32_768, "O is not read: it begins as zeros in registers."),
            (8 * 32_768, "O is no longer written for each tile of keys."),
            (16 * 32_768, "These are the bytes of step 6, which reads and writes O once per tile of keys."),
            (17 * 32_768, "These are the bytes of step 6, including the zeros that it writes at the start."),
        ),
    ),
    task=TASK,
    follows="6",
    figures=(
        Figure(name="bytes of K", kind="bytes", unit="bytes", buffer="K"),
        Figure(name="blocks, which run in parallel", kind="blocks"),
        Figure(name="scratch memory", kind="scratch_bytes", unit="bytes"),
    ),
    numerics=NUMERICS,
)
