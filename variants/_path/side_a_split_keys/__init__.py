"""Side path a: keys split among blocks, Flash-Decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from harness import Buffer, Figure, Launch, Lesson, Numerics, Plan, Prediction, Problem, Traffic
from variants._path import F32, HEAD_DIM, cuda_kernels, one_head, small
from variants._path.side_a_split_keys.task import TASK

BR, BC, SPLITS = 32, 32, 8
SECTOR_BYTES = 32


def numba_kernels() -> tuple[Any, ...]:
    from variants._path.side_a_split_keys.kernel_numba import KERNELS

    return KERNELS


def plan(p: Problem, kernels: tuple[Any, ...]) -> Plan:
    attention, combine = kernels
    rows, n, tau = np.int32(p.q_len), np.int32(p.kv_len), np.float32(p.tau)
    keys = np.int32(-(-p.kv_len // (BC * SPLITS)) * BC)
    parts = "O_of", "m_of", "l_of"
    split = Launch(attention, (-(-p.q_len // BR), SPLITS), (32, BR), ("Q", "K", "V", *parts, rows, n, keys, tau))
    join = Launch(combine, (p.q_len,), (32,), (*parts, "O", rows, np.int32(SPLITS)))
    shape = (SPLITS, p.q_len)
    buffers = (
        Buffer("O_of", (*shape, HEAD_DIM), "float32"),
        Buffer("m_of", shape, "float32"),
        Buffer("l_of", shape, "float32"),
    )
    return Plan((split, join), buffers)


def claim(p: Problem) -> Traffic:
    """Q, and O, m and l of each split, once each; K and V once for each 32 rows. m and l of a row are a sector each."""
    row, blocks = HEAD_DIM * F32, -(-p.q_len // BR)
    parts = SPLITS * p.q_len * (row + 2 * SECTOR_BYTES)
    return Traffic(
        read_bytes=SPLITS * p.q_len * row + blocks * 2 * p.kv_len * row + parts,
        write_bytes=parts + p.q_len * row,
    )


LESSON = Lesson(
    number="a",
    name="split-keys",
    title="Split keys: Flash-Decoding",
    idea="the keys of a row are split among blocks; a second kernel combines their O, m and l",
    folder=Path(__file__).parent,
    problem=small(8, 2048),
    cuda=cuda_kernels("attention", "combine"),
    numba=numba_kernels,
    plan=plan,
    claim=claim,
    supports=one_head,
    prediction=Prediction(
        question="There are 8 rows and 2,048 keys, which are split among 8 blocks. Each block leaves a row of O (32 "
        "floats), m and l for each of the 8 rows. How many bytes of memory do these take?",
        figure=Figure(name="scratch memory", kind="scratch_bytes", unit="bytes"),
        because="8 blocks x 8 rows x 34 floats x 4 bytes = 8,704 bytes. K and V have 524,288, so this costs little, "
        "and eight multiprocessors work instead of one.",
        tolerance=0.0,
        slips=(
            (8_192, "m and l are needed as well: without them, the parts of O cannot be weighted."),
            (1_088, "Each of the 8 blocks leaves its own part for each row."),
            (2_176, "A float has 4 bytes."),
        ),
    ),
    task=TASK,
    follows="9",
    figures=(
        Figure(name="blocks, which run in parallel", kind="blocks"),
        Figure(name="bytes of K", kind="bytes", unit="bytes", buffer="K"),
        Figure(name="launches", kind="launches"),
    ),
    numerics=Numerics(scores="float32", weights="float32", sums="nearest", one_score=True, divides_last=True),
)
