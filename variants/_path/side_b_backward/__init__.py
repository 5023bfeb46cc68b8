"""Side path b: the backward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from harness import Buffer, Figure, Launch, Lesson, Numerics, Plan, Prediction, Problem, Traffic
from variants._path import F32, HEAD_DIM, cuda_kernels, one_head
from variants._path.side_b_backward.task import TASK, small_backward

B = 32
SECTOR_BYTES = 32


def numba_kernels() -> tuple[Any, ...]:
    from variants._path.side_b_backward.kernel_numba import KERNELS

    return KERNELS


def plan(p: Problem, kernels: tuple[Any, ...]) -> Plan:
    prepare, keys, rows_of_Q = kernels
    sizes = np.int32(p.q_len), np.int32(p.kv_len), np.float32(p.tau)
    given = "Q", "K", "V", "lse", "dO", "delta"
    return Plan(
        (
            Launch(prepare, (p.q_len,), (32,), ("O", "dO", "delta")),
            Launch(keys, (-(-p.kv_len // B),), (32, B), (*given, "dK", "dV", *sizes)),
            Launch(rows_of_Q, (-(-p.q_len // B),), (32, B), (*given, "dQ", *sizes)),
        ),
        (Buffer("delta", (p.q_len,), "float32"),),
    )


def claim(p: Problem) -> Traffic | None:
    """O and dO once; then Q and dO for each 32 keys, K and V for each 32 rows; lse and delta by each warp."""
    if p.q_len % B or p.kv_len % B:
        return None  # warps beyond the last row or key read again what others read
    row, numbers = HEAD_DIM * F32, 2 * SECTOR_BYTES
    rows, n = p.q_len, p.kv_len
    keys = 2 * n * row + n // B * 2 * rows * row + n * rows // B * 2 * B * F32
    rows_of_Q = 2 * rows * row + rows // B * 2 * n * row + rows * numbers
    return Traffic(
        read_bytes=2 * rows * row + keys + rows_of_Q,
        write_bytes=rows * SECTOR_BYTES + 2 * n * row + rows * row,
    )


LESSON = Lesson(
    number="b",
    name="backward",
    title="The backward pass",
    idea="P is computed again from lse; each gradient has one owner, so nothing is added up in memory",
    folder=Path(__file__).parent,
    problem=small_backward(256),
    cuda=cuda_kernels("prepare", "keys", "rows_of_Q"),
    numba=numba_kernels,
    plan=plan,
    claim=claim,
    supports=one_head,
    prediction=Prediction(
        question="The forward pass of 256 rows and keys computes 256 x 256 exponentials, 32 per instruction of a warp: "
        "2,048, and one correction for each row and tile. How many instructions ex2 do the kernels of the backward "
        "pass execute?",
        figure=Figure(name="exponentials of warps", kind="exponentials"),
        because="`keys` computes P once, and `rows_of_Q` computes it once more: 2 x 2,048. There are no corrections, "
        "since lse contains the final maximum and sum. P itself would take 262,144 bytes of memory.",
        tolerance=0.0,
        slips=(
            (2_048, "P is computed twice: dK and dV belong to keys, dQ belongs to rows."),
            (0, "P is not in memory, so it has to be computed again."),
            (131_072, "One instruction computes 32 exponentials, one for each lane."),
            (8_192, "dK and dV share a P."),
        ),
    ),
    task=TASK,
    figures=(
        Figure(name="scratch memory", kind="scratch_bytes", unit="bytes"),
        Figure(name="bytes of dQ", kind="bytes", unit="bytes", buffer="dQ"),
        Figure(name="bytes of Q", kind="bytes", unit="bytes", buffer="Q"),
        Figure(name="bank conflicts", kind="conflicts"),
    ),
    numerics=Numerics(scores="float32", weights="float32", sums="nearest"),
    operation="attention-backward",
)
