"""Step 10: products on tensor cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import Figure, Launch, Lesson, Numerics, Plan, Prediction, Problem, Traffic
from variants._path import cuda_kernels
from variants._path.halves import ROW_BYTES, SECTOR_BYTES, one_head_of_halves, sizes, small_halves
from variants._path.step_10_tensor_cores.task import TASK

BR = 64
WARPS = 4
NUMERICS = Numerics(scores="float32", weights="problem", sums="truncated", one_score=True, divides_last=True)


def numba_kernels() -> tuple[Any, ...]:
    from variants._path.step_10_tensor_cores.kernel_numba import KERNELS

    return KERNELS


def plan(p: Problem, kernels: tuple[Any, ...]) -> Plan:
    (attention,) = kernels
    return Plan((Launch(attention, (-(-p.q_len // BR),), (32, WARPS), ("Q", "K", "V", "O", *sizes(p))),))


def claim(p: Problem) -> Traffic:
    """Each block reads all of K and V. Four lanes write 16 bytes of a row at once, half of a sector."""
    blocks = -(-p.q_len // BR)
    return Traffic(
        read_bytes=(p.q_len + blocks * 2 * p.kv_len) * ROW_BYTES,
        write_bytes=p.q_len * ROW_BYTES // 16 * SECTOR_BYTES,
    )


LESSON = Lesson(
    number="10",
    name="tensor-cores",
    title="Tensor cores",
    idea="16-bit factors, which tensor cores multiply 16 x 8 x 16 at a time",
    folder=Path(__file__).parent,
    problem=small_halves(256),
    cuda=cuda_kernels("attention"),
    numba=numba_kernels,
    plan=plan,
    claim=claim,
    supports=one_head_of_halves,
    prediction=Prediction(
        question="S = Q K^T multiplies 256 x 32 by 32 x 256 elements, and P V multiplies 256 x 256 by 256 x 32. One "
        "mma multiplies 16 x 16 by 16 x 8 elements. How many mma do all warps execute?",
        figure=Figure(name="mma", kind="tensor_instructions"),
        because="S has 16 x 32 pieces of 16 x 8 elements, each a sum over two pieces of 16 elements: 1,024 mma. O has "
        "16 x 4 pieces, each a sum over 16 pieces of 16 keys: 1,024 more.",
        tolerance=0.0,
        slips=(
            (1_024, "That is one of the two products."),
            (512, "A piece of S needs two mma: its sum has 32 elements, one mma adds 16."),
            (65_536, "All 32 lanes of a warp execute one mma together: count it once per warp, not once per lane."),
            (4_096, "An mma multiplies 16 x 16 by 16 x 8: 2,048 products of two numbers, each added to a sum."),
        ),
    ),
    task=TASK,
    follows="9",
    figures=(
        Figure(name="instructions of all warps", kind="instructions"),
        Figure(name="bytes of K", kind="bytes", unit="bytes", buffer="K"),
        Figure(name="bytes of O", kind="bytes", unit="bytes", buffer="O"),
        Figure(name="bank conflicts", kind="conflicts"),
    ),
    picture="banks",
    numerics=NUMERICS,
)
