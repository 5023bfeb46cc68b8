"""Step 3: the online softmax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import Lesson, Prediction, Problem, Traffic
from variants._path import F32, cuda_kernels, one_head, small
from variants._path.plans import BYTES, BYTES_OF_S, EXPONENTIALS, LAUNCHES, NUMERICS, ROW, SCRATCH, three_kernels
from variants._path.step_03_online.task import TASK


def numba_kernels() -> tuple[Any, ...]:
    from variants._path.step_03_online.kernel_numba import KERNELS

    return KERNELS


def claim(p: Problem) -> Traffic | None:
    """As step 1: one pass over S for maximum and sum, one for the weights."""
    if p.kv_len % 8:
        return None  # rows of S share sectors
    S = p.kv_len * F32
    return Traffic(read_bytes=p.q_len * (ROW + 2 * p.kv_len * ROW + 3 * S), write_bytes=p.q_len * (ROW + 2 * S))


LESSON = Lesson(
    number="3",
    follows="2",
    name="online",
    title="The online softmax",
    idea="maximum and sum come from one pass: the sum is corrected whenever the maximum grows",
    folder=Path(__file__).parent,
    problem=small(256),
    cuda=cuda_kernels("scores", "softmax", "output"),
    numba=numba_kernels,
    plan=three_kernels,
    claim=claim,
    supports=one_head,
    prediction=Prediction(
        question="The price is arithmetic. The softmax of step 2 executes 16 warp instructions for exponentials per "
        "row: 8 for each of two passes over the keys, 4,096 in all. How many does step 3 execute, for all rows?",
        figure=EXPONENTIALS,
        because="For each 32 keys, the first pass needs two, one for the correction and one for the new keys, and the "
        "second pass one. One more corrects the l of each lane: 8 x 2 + 1 + 8 = 25 per row, times 256 rows.",
        tolerance=0.0,
        slips=(
            (4_096, "The correction exp(m - m_new) is an exponential, too."),
            (6_144, "Nearly: one more per row corrects the l of the 32 lanes, each of which has its own m."),
        ),
    ),
    task=TASK,
    figures=(BYTES_OF_S, BYTES, SCRATCH, LAUNCHES),
    explains_time=False,
    numerics=NUMERICS,
)
