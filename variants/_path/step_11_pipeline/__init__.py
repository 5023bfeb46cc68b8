"""Step 11: a pipeline of asynchronous copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import Figure, Lesson, Prediction
from variants._path import cuda_kernels
from variants._path.halves import one_head_of_halves, small_halves
from variants._path.step_10_tensor_cores import NUMERICS, claim, plan
from variants._path.step_11_pipeline.task import TASK


def numba_kernels() -> tuple[Any, ...]:
    from variants._path.step_11_pipeline.kernel_numba import KERNELS

    return KERNELS


LESSON = Lesson(
    number="11",
    name="pipeline",
    title="A pipeline of asynchronous copies",
    idea="the next tiles are copied (cp.async) while the current ones are multiplied",
    folder=Path(__file__).parent,
    problem=small_halves(256),
    cuda=cuda_kernels("attention"),
    numba=numba_kernels,
    plan=plan,
    claim=claim,
    supports=one_head_of_halves,
    prediction=Prediction(
        question="Step 10 has a tile of 64 rows of Q and one tile each of 32 rows of K and of V in shared memory; a "
        "row has 64 bytes: 8,192 bytes. How many bytes of shared memory does a block of step 11 need?",
        figure=Figure(name="shared memory of a block", kind="shared_bytes", unit="bytes"),
        because="While one tile of K and one of V are multiplied, the next two arrive, so there is room for 2 of each: "
        "64 x 64 + 2 x 2 x 32 x 64 = 12,288 bytes. Only the time at which copies begin has changed.",
        tolerance=0.0,
        slips=(
            (8_192, "The next tiles arrive while the current ones are read, so they need memory of their own."),
            (10_240, "There is room for two tiles of K and for two of V."),
            (16_384, "Q is loaded once, so there is one tile of Q."),
        ),
    ),
    task=TASK,
    follows="10",
    figures=(
        Figure(name="bytes of K", kind="bytes", unit="bytes", buffer="K"),
        Figure(name="requests of K", kind="requests", buffer="K"),
        Figure(name="barriers that warps wait at", kind="barriers"),
        Figure(name="instructions of all warps", kind="instructions"),
    ),
    picture="timeline",
    numerics=NUMERICS,
)
