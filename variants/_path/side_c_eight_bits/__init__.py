"""Side path c: factors of 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from harness import Buffer, Figure, Launch, Lesson, Numerics, Plan, Prediction, Problem, Traffic
from variants._path import cuda_kernels
from variants._path.halves import ROW_BYTES, SECTOR_BYTES, one_head_of_halves, sizes, small_halves
from variants._path.side_c_eight_bits.task import TASK

BR, WARPS, FACTORS = 64, 4, 3


def numba_kernels() -> tuple[Any, ...]:
    from variants._path.side_c_eight_bits.kernel_numba import KERNELS

    return KERNELS


def plan(p: Problem, kernels: tuple[Any, ...]) -> Plan:
    find_scale, attention = kernels
    lengths = np.int32(p.q_len), np.int32(p.kv_len)
    blocks = -(-p.q_len // BR)
    return Plan(
        (
            Launch(find_scale, (FACTORS,), (32,), ("Q", "K", "V", "scales", *lengths)),
            Launch(attention, (blocks,), (32, WARPS), ("Q", "K", "V", "O", "scales", *sizes(p))),
        ),
        (Buffer("scales", (FACTORS,), "float32"),),
    )


def claim(p: Problem) -> Traffic:
    """Q, K and V once for their scales; then as step 10, and three scales for each warp."""
    blocks = -(-p.q_len // BR)
    return Traffic(
        read_bytes=(2 * p.q_len + (1 + blocks) * 2 * p.kv_len) * ROW_BYTES + blocks * WARPS * FACTORS * SECTOR_BYTES,
        write_bytes=p.q_len * ROW_BYTES // 16 * SECTOR_BYTES + FACTORS * SECTOR_BYTES,
    )


LESSON = Lesson(
    number="c",
    name="eight-bits",
    title="Factors of 8 bits",
    idea="Q, K, V and P are scaled and rounded to e4m3, which tensor cores multiply 16 x 8 x 32 at a time",
    folder=Path(__file__).parent,
    problem=small_halves(256),
    cuda=cuda_kernels("find_scale", "attention"),
    numba=numba_kernels,
    plan=plan,
    claim=claim,
    supports=one_head_of_halves,
    prediction=Prediction(
        question="Step 10 executes 2,048 mma, each of which multiplies 16 x 16 by 16 x 8 elements of 16 bits. With 8 "
        "bits, an mma multiplies 16 x 32 by 32 x 8. How many mma do all warps execute?",
        figure=Figure(name="mma", kind="tensor_instructions"),
        because="Each mma sums twice as many products, since a row of A now has 32 elements of 8 bits instead of 16 of "
        "16 bits. Half as many mma are needed: 1,024.",
        tolerance=0.0,
        slips=(
            (2_048, "An mma of 8-bit factors sums 32 products instead of 16."),
            (512, "The rows and columns of a piece stay 16 and 8; only the sum is twice as long."),
            (4_096, "8-bit factors need fewer instructions, not more."),
        ),
    ),
    task=TASK,
    follows="10",
    figures=(
        Figure(name="launches", kind="launches"),
        Figure(name="bytes of K", kind="bytes", unit="bytes", buffer="K"),
        Figure(name="shared memory of a block", kind="shared_bytes", unit="bytes"),
        Figure(name="instructions of all warps", kind="instructions"),
    ),
    numerics=Numerics(scores="float32", sums="truncated", one_score=True, divides_last=True, factors="e4m3"),
)
