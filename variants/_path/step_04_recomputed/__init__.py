"""Step 4: scores computed twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import Lesson, Prediction, Problem, Traffic
from variants._path import cuda_kernels, one_head, small
from variants._path.plans import BYTES, BYTES_OF_K, EXPONENTIALS, LAUNCHES, NUMERICS, ROW, SCRATCH, one_kernel
from variants._path.step_04_recomputed.task import TASK


def numba_kernels() -> tuple[Any, ...]:
    from variants._path.step_04_recomputed.kernel_numba import KERNELS

    return KERNELS


def claim(p: Problem) -> Traffic:
    """Each row reads its row of Q, K twice and V once, and writes its row of O."""
    return Traffic(read_bytes=p.q_len * (ROW + 3 * p.kv_len * ROW), write_bytes=p.q_len * ROW)


LESSON = Lesson(
    number="4",
    follows="3",
    name="recomputed",
    title="Scores computed twice",
    idea="S is not stored: each of the two passes computes the scores from Q and K",
    folder=Path(__file__).parent,
    problem=small(256),
    cuda=cuda_kernels("attention"),
    numba=numba_kernels,
    plan=one_kernel,
    claim=claim,
    supports=one_head,
    prediction=Prediction(
        question="K has 256 rows of 128 bytes: 32,768 bytes. In step 3, each of the 256 rows of Q reads all of K once: "
        "8,388,608 bytes. How many bytes of K does this step read?",
        figure=BYTES_OF_K,
        because="Each of the two passes over the keys computes all scores, and needs all of K for that. No byte of S "
        "is moved any more, and no scratch memory is needed; but more bytes are read than before.",
        tolerance=0.0,
        slips=(
            (8_388_608, "The second pass needs the scores again, and no pass has stored them."),
            (32_768, "That is K once. Every row of Q reads all of it."),
            (65_536, "That is K twice. Every row of Q does that."),
        ),
    ),
    task=TASK,
    figures=(BYTES, SCRATCH, EXPONENTIALS, LAUNCHES),
    explains_time=False,
    numerics=NUMERICS,
)
