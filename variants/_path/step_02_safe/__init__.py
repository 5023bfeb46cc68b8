"""Step 2: the safe softmax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import Lesson, Prediction, Problem, Traffic
from variants._path import F32, cuda_kernels, one_head, small
from variants._path.plans import BYTES, BYTES_OF_S, EXPONENTIALS, LAUNCHES, NUMERICS, ROW, SCRATCH, three_kernels
from variants._path.step_02_safe.task import TASK


def numba_kernels() -> tuple[Any, ...]:
    from variants._path.step_02_safe.kernel_numba import KERNELS

    return KERNELS


def claim(p: Problem) -> Traffic | None:
    """As step 1, and S once more for the maximum."""
    if p.kv_len % 8:
        return None  # rows of S share sectors
    S = p.kv_len * F32
    return Traffic(read_bytes=p.q_len * (ROW + 2 * p.kv_len * ROW + 4 * S), write_bytes=p.q_len * (ROW + 2 * S))


LESSON = Lesson(
    number="2",
    follows="1",
    name="safe",
    title="The safe softmax",
    idea="the maximum of the row is subtracted, at the price of one more pass over S",
    folder=Path(__file__).parent,
    problem=small(256),
    cuda=cuda_kernels("scores", "softmax", "output"),
    numba=numba_kernels,
    plan=three_kernels,
    claim=claim,
    supports=one_head,
    prediction=Prediction(
        question="Step 1 moves 1,310,720 bytes of S and P: five times 262,144. How many bytes does this step move?",
        figure=BYTES_OF_S,
        because="The maximum of a row is known only after all of the row has been read, so the row is read once more "
        "for the sum: S and P are now moved six times, 6 x 262,144 bytes.",
        tolerance=0.0,
        slips=(
            (1_310_720, "That would be right if one pass gave both the maximum and the sum. Step 3 does that."),
            (7 * 262_144, "The additional pass, for the maximum, only reads S."),
        ),
    ),
    task=TASK,
    figures=(EXPONENTIALS, BYTES, SCRATCH, LAUNCHES),
    explains_time=False,
    numerics=NUMERICS,
)
